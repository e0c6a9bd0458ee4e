#pragma once

#include <cstddef>
#include <vector>

#include "plan/planned_step.h"
#include "plan/updates.h"
#include "trace/trace.h"

namespace lms {

/// The step with some of these updates where they are wanted, in every step. What waits keeps its
/// gradient. The trace must be valid, and so is the result.
Trace with_updates_deferred(const Trace& trace, const std::vector<WeightUpdate>& waiting);

/// Of these, the groups that are wanted last: no more than this share of the bytes of all.
/// `operators`: of the trace.
std::vector<WeightUpdate> latest_wanted(std::vector<WeightUpdate> updates, std::size_t operators,
                                        double share);

/// The updates that had better wait for a step like the trace's to be fast under `budget` bytes;
/// none where that gains nothing to speak of. Plans the step several times, in `options.seconds`
/// altogether. Throws what make_plan throws.
std::vector<WeightUpdate> choose_deferred(const Trace& trace, MayWait may_wait, Bytes budget,
                                          const LinkModel& link, const SearchOptions& options);

}  // namespace lms
