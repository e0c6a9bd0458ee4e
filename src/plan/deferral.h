#pragma once

#include <cstddef>
#include <vector>

#include "plan/planned_step.h"
#include "trace/trace.h"

namespace lms {

/// The update of one weight by an optimizer, as a step has it: a position of an operator's lists.
struct WeightUpdate {
  std::size_t op = 0;  ///< the operator that does it
  /// Weight, gradient, state, in the order of the operator's lists.
  std::vector<TraceBlockId> blocks;
  Bytes bytes = 0;  ///< of all of these
  double ms = 0;    ///< its share of the operator
  /// The next operator, in this step or, where it comes before `op`, the next one, that uses any of
  /// the blocks: the latest before which the update may run.
  std::size_t wanted_by = 0;
};

/// The updates of a step that could wait until their results are wanted. Empty if it has no
/// operator of an optimizer over weights, gradients born in the step, and state, all of them
/// movable.
std::vector<WeightUpdate> deferrable_updates(const Trace& trace);

/// The step with some of these updates where they are wanted, in every step. What waits keeps its
/// gradient. The trace must be valid, and so is the result.
Trace with_updates_deferred(const Trace& trace, const std::vector<WeightUpdate>& waiting);

/// Of these, the ones that are wanted last: no more than this share of the bytes of all.
/// `operators`: of the trace.
std::vector<WeightUpdate> latest_wanted(std::vector<WeightUpdate> updates, std::size_t operators,
                                        double share);

/// The updates that had better wait for a step like the trace's to be fast under `budget` bytes;
/// none where that gains nothing to speak of. Plans the step several times, in `options.seconds`
/// altogether. Throws what make_plan throws.
std::vector<WeightUpdate> choose_deferred(const Trace& trace, Bytes budget, const LinkModel& link,
                                          const SearchOptions& options);

}  // namespace lms
