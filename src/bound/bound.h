#pragma once

#include "plan/timing/link.h"
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
/// under `budget` bytes: a linear program in time, over bins of operators of about equal times.
/// - Operators over lists count as one operator a tensor, which has its part of their time.
/// - What is written once is copied out at most once, and may then leave the device as often as it
///   is not in use. Blocks from before the step may be absent over its end, and blocks that nobody
///   writes are below already.
/// - With recompute, a block that is born in the step, by repeatable operators alone, may be
///   dropped, and costs the time of running the operators that wrote it again, at its next use.
///   Their inputs are left out; a plan must bring them back too.
/// - Everything else that is rounded (the moments of copies, to a bin) is in the schedule's favour.
///   The link's latency and copy tax are left out.
/// Takes milliseconds if the step fits, else seconds. Throws BadSetting for options and rates that
/// cannot be, Error if the solver is missing or fails (see minimum()). Thread-safe.
Bound bound(const Trace& trace, Bytes budget, const LinkModel& link,
            const BoundOptions& options = {});

}  // namespace lms
