#pragma once

#include "figures/timeline.h"

namespace lms {

/// Throws Error, in the name of `caller`, if a timeline cannot be of this trace.
void check_timelines(const char* caller, const Trace& trace, const PlanTiming& predicted,
                     const MeasuredTimeline* measured);

/// Bytes on the device when a planned step begins.
Bytes device_at_start(const Trace& trace, const Plan& plan);

}  // namespace lms
