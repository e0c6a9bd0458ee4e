#pragma once

#include "plan/planned_step.h"

namespace lms {

/// A plan for steps like the trace's under `budget` bytes that keeps and swaps whole blocks, and
/// drops and computes them again if it may, and is as fast as the search can find. It satisfies
/// verify_plan. Throws OutOfMemory, naming the operator and the smallest workable budget, if there
/// is no plan that only keeps and swaps.
PlannedStep make_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                      const SearchOptions& options = {});

}  // namespace lms
