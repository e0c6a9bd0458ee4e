#include "plan/search.h"

#include "base/error.h"
#include "plan/recompute/search.h"
#include "plan/swap/search.h"

namespace lms {

PlannedStep make_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                      const SearchOptions& options) {
  const auto notes = trace.validate();
  if (!notes.empty()) throw Error("make_plan: the trace is inconsistent: " + notes.front());
  if (options.recompute) return make_mixed_plan(trace, budget, link, options);
  return make_swap_plan(trace, budget, link, options);
}

}  // namespace lms
