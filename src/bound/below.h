#pragma once

#include "plan/plan.h"
#include "trace/trace.h"

namespace lms {

/// The most bytes that lie in the tier below at one time while steps follow `plan`, one after the
/// other: a copy takes its place when it starts, and keeps it, as the plan counts on finding it
/// there, until the block is written, dropped or dead. The plan must satisfy verify_plan.
Bytes most_below(const Trace& trace, const Plan& plan);

}  // namespace lms
