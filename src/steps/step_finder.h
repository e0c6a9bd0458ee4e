#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "steps/repetition.h"
#include "steps/step_log.h"

namespace lms {

/// Finds the period of a log. Every operator is read once. A hash over the last few operators'
/// signatures tells where the same was last seen: how far back is a candidate for the period. A few
/// candidates at a time are followed, operator by operator, by a Repetition each, from as far back
/// as the signatures agree. See StepLog::repeated_step().
class StepFinder {
 public:
  /// `alike`: what must be equal in both runs.
  StepFinder(std::size_t most_operators, Repetition::Alike alike);

  void clear();
  /// The user's step ends before operator `next`; the log's first is `first`.
  void mark(std::uint64_t next, std::uint64_t first);
  std::optional<StepLog::Span> find(const StepLog& log);

 private:
  static constexpr std::size_t kWindow = 8;
  static constexpr std::size_t kCandidates = 5;
  static constexpr std::uint64_t kNowhere = UINT64_MAX;

  /// A window, by the number of its last operator.
  struct Seen {
    std::uint64_t hash = 0;
    std::uint64_t last = kNowhere;
    std::uint64_t before = kNowhere;
  };

  void restart(std::uint64_t next);
  void read(const StepLog& log);
  void read_mark(const StepLog& log);
  void follow(const StepLog& log, Repetition& repetition);
  [[nodiscard]] Seen slide(std::uint64_t signature);
  bool consider(const StepLog& log, std::uint64_t lag);
  [[nodiscard]] std::optional<StepLog::Span> best(const StepLog& log);

  Repetition::Alike alike_;
  std::uint64_t next_ = 0;  ///< the next operator to read
  std::array<std::uint64_t, kWindow> window_{};
  std::size_t in_window_ = 0;
  std::uint64_t hash_ = 0;
  std::size_t most_seen_;   ///< a power of two
  std::vector<Seen> seen_;  ///< by hash, collisions overwrite; empty until needed
  unsigned shift_;
  std::array<Repetition, kCandidates> candidates_;
  std::uint64_t credit_ = 0;  ///< operators that may be looked at again

  std::deque<std::uint64_t> marks_;  ///< not read yet
  std::optional<std::uint64_t> last_mark_;
  Repetition marked_;  ///< the last marked span, as far as it repeats
  std::optional<StepLog::Span> marked_step_;
};

}  // namespace lms
