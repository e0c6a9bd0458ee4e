#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace lms::train {

/// What the progress line tells.
struct ProgressFacts {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double epoch = 0;
  double loss = 0;
  double rate = 0;  ///< of learning
  double samples_per_s = 0;
  double mega_per_s = 0;  ///< megapixels or megavoxels
  const char* mega_unit = "MP/s";
  std::int64_t memory = 0;  ///< bytes
  double seconds_left = 0;
};

/// One line: "step 120/500  epoch 3.2  loss 0.7133  …  ETA 1:23".
std::string progress_text(const ProgressFacts& facts);

/// "1:02:03", "2:03".
std::string duration_text(double seconds);

/// Tells people how a run goes: a bar that stays in its line on a terminal, else a plain line now
/// and then. Not thread-safe.
class Progress {
 public:
  /// `mode`: auto, bar, lines or quiet (notes are printed still, but messages not).
  Progress(std::FILE* to, const std::string& mode);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const ProgressFacts& facts);
  /// A line of its own; not when quiet.
  void message(const std::string& text);
  /// A line of its own, always.
  void note(const std::string& text);

 private:
  enum class Mode { kBar, kLines, kQuiet };

  void clear();

  std::FILE* to_;
  Mode mode_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_;
  bool any_ = false;
};

}  // namespace lms::train
