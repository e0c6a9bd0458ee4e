#pragma once

#include <cstdint>
#include <vector>

#include "plan/place/placement.h"
#include "trace/trace.h"

namespace lms {

/// An allocation that a plan gives no place, since its operator has no room for it.
struct Unplaced {
  std::size_t op = 0;
  std::uint32_t number = 0;  ///< among the operator's allocations
  bool passed_on = false;    ///< it counts as the first of the next operator's instead
};

/// Operators that need more than `room` bytes, with all else away, run all the same: in parts, or
/// on operands where they lie in the tier below (docs/design/0019). So that a plan can be made of
/// the step, they are made to need no more. What is largest is left out until it fits: first of
/// what the operator only reads, then of its results, which count as the next operator's (if they
/// die at once, as nothing), then of what it writes, then of its temporaries. It is not run again,
/// nor is the operator that its results are passed on to. `trace` stays valid; where even that is
/// not enough, an operator still needs more. Returns the allocations without a place, in the order
/// in which they were found.
std::vector<Unplaced> use_below(Trace& trace, Bytes room);

/// A placement that was made of what use_below() has left, for the step as it runs: what is
/// unplaced has kNoAddress. To be called once.
void leave_unplaced(Placement& placement, const std::vector<Unplaced>& unplaced);

/// What is there before the step and no operator uses counts as hardly anything from then on: where
/// room is short, it is the first to leave, and nobody brings it back. True if there is such.
bool leave_out_unused(Trace& trace);

}  // namespace lms
