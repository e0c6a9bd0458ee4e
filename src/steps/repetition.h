#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "steps/step_log.h"

namespace lms {

/// A stretch of operators each of which is the same as the one `lag` before it, as it grows: the
/// blocks of the one run correspond to those of the other, one to one and in all operators alike.
/// A block corresponds to itself if it was there before both runs; else one born in the earlier run
/// to the one born at the same place of the later; else, carried over, one from before the earlier
/// run to one born in it. Constant cost per use.
class Repetition {
 public:
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

  /// True if for twice the lag what looked the same has worked on other blocks time and again.
  [[nodiscard]] bool failing() const { return next_ - begun_ >= 2 * lag_ && next_ - start_ < lag_; }

  /// Looks at operator next(), which must be whole: the one after it has begun. And at the one
  /// `lag` before, which must be in the log with all that belongs to it.
  Verdict follow(const StepLog& log);

  /// A point where steps of `lag` operators begin, if the stretch is as long and they are steps:
  /// see StepLog::repeated_step(). Others are whole lags away. Cost: linear in `lag`, once.
  [[nodiscard]] std::optional<std::uint64_t> boundary(const StepLog& log);

 private:
  /// Who a block is in the run after this, and who in the run before, by slot.
  struct Partners {
    std::uint32_t later = 0;
    std::uint32_t earlier = 0;
    std::uint32_t later_epoch = 0;  ///< `later` holds if this is the present one
    std::uint32_t earlier_epoch = 0;
  };

  enum class Part : std::uint8_t { kAllocsAfter, kInside, kReleasesAfter };

  void restart(std::uint64_t next);
  bool same_blocks(const StepLog& log);
  bool pair_changes(const StepLog& log, std::uint64_t earlier, std::uint64_t later, Part part);
  bool match(std::uint32_t earlier, std::uint32_t later);
  bool pair(const KnownBlocks& blocks, std::uint32_t earlier, std::uint32_t later);
  [[nodiscard]] bool may_correspond(const KnownBlock& earlier, const KnownBlock& later) const;

  std::uint64_t lag_ = 0;
  std::uint64_t start_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t begun_ = 0;  ///< where the first stretch did
  std::vector<Partners> partners_;
  std::uint32_t epoch_ = 0;
  bool looked_ = false;  ///< for the boundary
  std::optional<std::uint64_t> boundary_;
};

}  // namespace lms
