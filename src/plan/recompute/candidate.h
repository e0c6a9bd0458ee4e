#pragma once

#include <limits>
#include <vector>

#include "plan/recompute/unrolled.h"
#include "plan/swap/scheduler.h"

namespace lms {

/// For Drops::hold_ms. Of a stretch of time, the part that is just not long enough to stay over it.
inline constexpr float kHoldForever = std::numeric_limits<float>::infinity();
inline constexpr float kTooShort = 0.98F;
/// For Candidate::moved.
inline constexpr double kMovedFreely = 1e9;

/// Everything that is to be decided about a plan that recomputes and swaps, by gaps of the step's
/// own model.
struct Candidate {
  Drops drops;
  std::vector<char> swaps;  ///< by gap: may be swapped where it is not dropped
  Tactics tactics;
  /// What a millisecond of a lane is taken to cost when a gap must be swapped or dropped, beside
  /// the copy tax.
  double lane_price = 0.5;
  double breadth = 1;  ///< GapPrices::breadth
  double each_ms = 0;  ///< GapPrices::each_ms
  /// GapPrices::most_moved, in parts of what the lane can take until the fullest moment.
  double moved = kMovedFreely;
};

/// Nothing is dropped or swapped.
Candidate empty_candidate(const Trace& trace, const StepModel& model);

/// About what the plan does. `model` is of `trace`, which has the operators and blocks of the
/// plan's step.
Candidate candidate_of(const Plan& plan, const Trace& trace, const StepModel& model);

}  // namespace lms
