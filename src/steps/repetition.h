#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "steps/step_log.h"

namespace lms {

/// Of what a step takes, so much may be other blocks each time if it only reads them, and so much
/// if it writes them. With more, runs on other blocks are other steps (two models in turn), of
/// which a longer one consists.
inline constexpr Bytes kTurningRead = 2;
inline constexpr Bytes kTurningWritten = 8;

/// A stretch of operators each of which is the same as the one `lag` before it, as it grows: two
/// runs of `lag` operators, or more, one after the other. The blocks of a run correspond to those
/// of the next one to one: a block that was there before the first run to itself, or to another one
/// of its size that was there (a batch of several that are kept: is_step() says how much of a step
/// may be so); else one that was born in a run, or in the run before the first, to the one born at
/// the same place `lag` later. Constant cost per use.
class Repetition {
 public:
  /// What must be equal of two operators: LoggedOperator::signature, or its form.
  using Alike = std::uint64_t LoggedOperator::*;

  explicit Repetition(Alike alike = &LoggedOperator::signature) : alike_(alike) {}

  enum class Verdict : std::uint8_t {
    kSame,         ///< the stretch has grown by one
    kOtherBlocks,  ///< looks the same, but works on others: the stretch is empty, and begins anew
    kOther,        ///< likewise, and does not look the same
  };

  /// An empty stretch before operator `next`. `next` >= `lag` + log.first_whole().
  void begin(std::uint64_t lag, std::uint64_t next);
  void stop() { lag_ = 0; }
  [[nodiscard]] bool active() const { return lag_ != 0; }
  [[nodiscard]] std::uint64_t lag() const { return lag_; }
  /// The stretch is [start(), next()).
  [[nodiscard]] std::uint64_t start() const { return start_; }
  [[nodiscard]] std::uint64_t next() const { return next_; }

  /// True if there are no steps of this length here, though it looks like it: what looks the same
  /// has worked on other blocks time and again, or there is no point where they could begin.
  [[nodiscard]] bool failing() const {
    return looked_ ? !boundary_ : next_ - begun_ >= 2 * lag_ && next_ - start_ < lag_;
  }

  /// Looks at operator next(), which must be whole: the one after it has begun. And at the one
  /// `lag` before, which must be in the log with all that belongs to it.
  Verdict follow(const StepLog& log);

  /// A point where steps of `lag` operators begin, if the stretch is as long and they are steps:
  /// see StepLog::repeated_step(). Others are whole lags away. Cost: linear in `lag`, once.
  [[nodiscard]] std::optional<std::uint64_t> boundary(const StepLog& log);

  /// Is the run that ends at `end`, within the stretch, the step before it over again: do their
  /// blocks correspond one to one, and are those that were there before and are others each time
  /// little beside what the step takes? If not, the stretch begins anew. Cost: linear in `lag`,
  /// once for each `end`.
  [[nodiscard]] bool is_step(const StepLog& log, std::uint64_t end);

 private:
  void restart(std::uint64_t next);
  /// Where the run before the stretch begins.
  [[nodiscard]] std::int64_t first_run() const { return static_cast<std::int64_t>(start_ - lag_); }
  [[nodiscard]] bool same_blocks(const StepLog& log);
  [[nodiscard]] bool by_form() const { return alike_ == &LoggedOperator::form; }
  [[nodiscard]] bool correspond(const KnownBlock& earlier, const KnownBlock& later);
  [[nodiscard]] bool one_to_one(const StepLog& log, std::uint64_t end) const;
  [[nodiscard]] std::vector<bool> possible_boundaries(const StepLog& log,
                                                      std::uint64_t begin) const;

  Alike alike_;
  std::uint64_t lag_ = 0;
  std::uint64_t start_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t begun_ = 0;  ///< where the first stretch did
  bool looked_ = false;      ///< for the boundary
  std::optional<std::uint64_t> boundary_;
  std::uint64_t turned_ = 0;   ///< one past the last operator that worked on another such block
  std::uint64_t checked_ = 0;  ///< is_step() was true of the run that ends there
};

}  // namespace lms
