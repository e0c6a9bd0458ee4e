#pragma once

#include <utility>
#include <vector>

#include "plan/plan.h"
#include "trace/trace.h"

namespace lms {

/// "No address": of directives that take no memory, of temporaries that are not recorded.
inline constexpr Bytes kNoAddress = -1;

/// Addresses in one arena, from 0, for everything that a planned step has on the device.
struct Placement {
  /// Of every allocation of the step: for each operator in order, its results and temporaries in
  /// the order of their allocation (see TraceTemporary).
  std::vector<std::vector<Bytes>> allocations;
  /// Beside Plan::directives: where a kStartIn or kRematerialise puts the block.
  std::vector<Bytes> arrivals;
  /// Of every block that is on the device when the step begins.
  std::vector<std::pair<TraceBlockId, Bytes>> at_start;
  Bytes bytes = 0;        ///< end of the highest address in use: what the arena must hold
  Bytes lower_bound = 0;  ///< most bytes in use at one moment: no placement can need less
};

/// Offline dynamic storage allocation: every stay of a block on the device (from allocation or
/// arrival until it dies or has left) is a rectangle in address and time; a stay that lasts over
/// the end of the step goes on, at the same address, at the start of the next. Sizes and addresses
/// are multiples of `alignment`. Tries several orders, best fit, within `seconds`; keeps the best.
/// The plan must satisfy verify_plan.
Placement place(const Trace& trace, const Plan& plan, Bytes alignment = 512, double seconds = 1);

/// Everything that is wrong with a placement (overlaps in address and time, moves between steps, a
/// missing address), a sentence each. Independent of place().
std::vector<std::string> verify_placement(const Trace& trace, const Plan& plan,
                                          const Placement& placement, Bytes alignment = 512);

}  // namespace lms
