#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/report/load.h"

namespace lms::report {

/// How far a method got.
struct Maximum {
  std::string method;
  double value = 0;              ///< side or batch
  std::optional<double> factor;  ///< of the in-memory maximum, in pixels, voxels or samples
  std::optional<double> failed;  ///< the smallest size beyond it that was tried
  std::string why;               ///< outcome of that

  [[nodiscard]] bool ended() const { return failed.has_value(); }
};

/// The smallest size at which a method failed, beyond all that ran.
struct Failure {
  std::string method;
  double x = 0;                 ///< side or batch
  std::string why;              ///< its outcome
  const Record* run = nullptr;  ///< none where only a search tells of it
};

/// Runs that differ in one size, method and link alone: what one chart shows. Points into the
/// input.
struct Panel {
  std::string series;
  std::string model;
  std::string precision;
  std::optional<double> cap;
  bool over_side = true;  ///< else over the batch
  int dimensions = 2;
  std::vector<const Record*> runs;    ///< over the machine's own link, in the order of size
  std::vector<const Record*> linked;  ///< over emulated links
  std::vector<Maximum> maxima;        ///< in the order of methods
  std::vector<Failure> failures;      ///< one a method, also of those of which nothing ran
  const Record* reference = nullptr;  ///< the largest run in memory

  /// Side or batch of a run; none where it does not say.
  [[nodiscard]] std::optional<double> x(const Record& run) const;
  /// "6000²", "batch 12".
  [[nodiscard]] std::string name(const Record& run) const;
  [[nodiscard]] std::string name(double x) const;
  /// How many times the in-memory maximum a size is; none where that is not known.
  [[nodiscard]] std::optional<double> factor(double x) const;
  /// How many times the samples of one size another has.
  [[nodiscard]] double growth(double from, double to) const;
  /// The size that is `factor` times the in-memory maximum.
  [[nodiscard]] std::optional<double> x_of_factor(double factor) const;
  /// Whether a search has found the end of a method: that something hardly larger failed.
  [[nodiscard]] bool found(const Maximum& maximum) const;
  /// "ends at 3000²", or "ends between 3000² and 6000²"; nothing where nothing failed.
  [[nodiscard]] std::string end(const Maximum& maximum) const;
  /// Rate per sample over that of the last run in memory, less one; and time likewise. Nothing
  /// where that run was on another GPU, or counted other samples.
  [[nodiscard]] std::optional<double> rate_change(const Record& run) const;
  [[nodiscard]] std::optional<double> overhead(const Record& run) const;
  /// What `seconds` a step, of this run, would be as overhead.
  [[nodiscard]] std::optional<double> overhead_of(const Record& run,
                                                  std::optional<double> seconds) const;
  [[nodiscard]] const Maximum* maximum(const std::string& method) const;
  [[nodiscard]] const Failure* failure(const std::string& method) const;
  /// "9050² (8.52×): more than the host's memory, of which 100 GiB were allowed". Says so where it
  /// is the physical end: one operator that is too large.
  [[nodiscard]] std::string reason(const Failure& failure) const;
  /// "resolution at batch 2", "batch at 900²".
  [[nodiscard]] std::string title() const;
  /// "16 GiB, fp32": what sets it apart.
  [[nodiscard]] std::string conditions() const;
  /// "slack 2 GiB, training.lr 0.001": what all runs are set to besides, and whether others differ.
  [[nodiscard]] std::string settings() const;
  [[nodiscard]] std::vector<std::string> methods() const;
};

/// Whether it is an end of the machine, and not merely of the method: a full host, or one operator
/// that is too large.
bool is_an_end(const Failure& failure);

/// In a word or two: "host full", "operator too large".
std::string short_reason(const Failure& failure);

/// How a goal was met.
struct Verdict {
  enum class State { kNotMeasured, kMeasured, kReached, kMissed };
  const Goal* goal = nullptr;
  const Panel* panel = nullptr;
  std::optional<double> value;
  std::optional<double> at;  ///< factor at which a rate or overhead was taken
  std::string size;          ///< and the size
  std::string end;           ///< of a factor: why it goes no further, or did not go at all
  std::string doubt;         ///< why it is kMeasured, though its value is what is to be reached
  State state = State::kNotMeasured;
};

struct Study {
  std::string name;
  std::string title;
  const Published* published = nullptr;  ///< none for studies of one's own
  std::vector<Panel> panels;
  std::vector<Verdict> verdicts;
};

/// The input, by study: first the published ones that have runs, in their order, then others. The
/// input must outlive what is returned.
std::vector<Study> studies_of(const Input& input);

}  // namespace lms::report
