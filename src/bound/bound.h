#pragma once

#include "plan/link.h"
#include "trace/trace.h"

namespace lms {

struct BoundOptions {
  int bins = 100;          ///< stretches of operators that the step is cut into
  bool recompute = false;  ///< may repeatable operators be run again, or may blocks only be copied
};

struct Bound {
  bool feasible = false;  ///< false: some operator alone needs more than the budget
  double step_ms = 0;     ///< no plan can be faster
  double overhead = 0;    ///< step_ms over the sum of the operators, less one
};

/// The least step time that any plan which keeps the operators' order could reach on this trace
/// under `budget` bytes: a linear program in time. Operators over lists count as one operator a
/// tensor; blocks from before the step may be absent over its end; roundings are in the schedule's
/// favour. The link's copy tax is left out. Throws Error if the solver is missing or fails.
Bound bound(const Trace& trace, Bytes budget, const LinkModel& link,
            const BoundOptions& options = {});

}  // namespace lms
