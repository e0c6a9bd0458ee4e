#pragma once

#include "plan/planned_step.h"

namespace lms {

/// make_plan() for options.recompute. The trace must be valid.
PlannedStep make_mixed_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                            const SearchOptions& options);

}  // namespace lms
