#pragma once

#include <optional>
#include <string>

#include "bound/bound.h"
#include "plan/place/placement.h"
#include "plan/search.h"
#include "plan/timing/link.h"
#include "trace/trace.h"

namespace lms {

/// The most that one moment of the step needs on the device when everything else is away: no limit
/// below it works, without recomputation.
struct LeastLimit {
  Bytes bytes = 0;
  std::string where;  ///< "operator 12 (aten::convolution)"
};
LeastLimit least_limit(const Trace& trace);

/// Bytes and time of the step if nothing ever leaves.
Bytes peak_in_memory(const Trace& trace);
double ms_in_memory(const Trace& trace);

/// About the same step on half as much data: what is born in the step is half as large, workspaces
/// and times are halved. What is carried into the next step (gradients that are kept) stays as it
/// is, like all that was there before. An approximation: gradients of weights do not shrink in
/// truth, small operators do not get twice as fast.
Trace half_batch(const Trace& trace);

/// What a trace would do under a limit.
struct Forecast {
  Bytes limit = 0;
  Bytes in_memory_peak = 0;
  double in_memory_ms = 0;
  LeastLimit least;
  /// The plan and its addresses; nothing if no plan fits.
  std::optional<PlannedStep> planned;
  Placement placement;
  Bytes budget = 0;  ///< that the plan was made for: below the limit where addresses need the rest
  std::string why_not;  ///< no plan fits

  [[nodiscard]] bool fits() const { return planned.has_value(); }
  /// Of the planned step over the one in memory, less one. Only where a plan fits; of a trace
  /// without times it is 0.
  [[nodiscard]] double overhead() const {
    return in_memory_ms > 0 ? planned->predicted.step_ms / in_memory_ms - 1 : 0;
  }
};

/// Plans the step and places its blocks; a plan whose addresses do not fit under the limit is made
/// again for less. `seconds` are spent on each plan at most. With `recompute`, blocks may be
/// dropped and computed again.
Forecast forecast(const Trace& trace, Bytes limit, const LinkModel& link, double seconds,
                  bool recompute = true);

/// The bound, or why there is none.
struct BoundAnswer {
  std::optional<Bound> bound;
  std::string why_not;
};
BoundAnswer ask_bound(const Trace& trace, Bytes limit, const LinkModel& link);

}  // namespace lms
