#pragma once

#include <string>
#include <string_view>

#include "plan/plan.h"
#include "plan/timing/measured.h"
#include "plan/timing/timing.h"
#include "trace/trace.h"

namespace lms {

/// The step in Chrome's trace event format, for Perfetto (ui.perfetto.dev): JSON with a process
/// "predicted" and, if `measured` is given, a process "measured". Each has the threads "compute"
/// (operators, and waits before them), "copies out" and "copies in", and counters of the bytes on
/// the device and of the budget. Drops and recomputations of the plan are marks on "compute".
/// `predicted` must have its timeline. Throws Error if one of them does not belong to the trace.
std::string chrome_trace(const Trace& trace, const Plan& plan, const PlanTiming& predicted,
                         Bytes budget, const MeasuredTimeline* measured = nullptr);

/// The step as a still picture, an SVG document of its own: a row for computation and one for each
/// lane, of the prediction and, if `measured` is given, of the measurement, above the memory on the
/// device against the budget and against what the step takes if nothing leaves. A copy that lasts
/// over the end of the step goes on at its beginning, as it does when steps repeat.
/// `predicted` must have its timeline. Throws Error if one of them does not belong to the trace.
std::string timeline_svg(const Trace& trace, const Plan& plan, const PlanTiming& predicted,
                         Bytes budget, std::string_view title = {},
                         const MeasuredTimeline* measured = nullptr);

}  // namespace lms
