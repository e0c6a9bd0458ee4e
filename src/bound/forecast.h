#pragma once

#include <optional>
#include <string>
#include <vector>

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
  Bytes below = 0;   ///< most_below() of the plan
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
/// dropped and computed again; the search then begins with `start`, if it is given: a plan of this
/// trace for any limit.
Forecast forecast(const Trace& trace, Bytes limit, const LinkModel& link, double seconds,
                  bool recompute = true, const Plan* start = nullptr);

/// A limit, in pages of 2 MiB, for which a plan and its addresses are found, with them, while none
/// are for a page less; nothing if there is none up to twice the least. A moment's search for each
/// that is tried, which may end otherwise another time: none found is no proof.
std::optional<Forecast> smallest_fit(const Trace& trace, const LinkModel& link);

/// Limits to ask about, descending: the peak in memory, parts of it down to a quarter, and
/// `smallest`, which ends them.
std::vector<Bytes> limits_to_ask(Bytes peak, Bytes smallest);

/// A forecast for each of the limits, which must descend. Each search begins with the plan for the
/// limit before, and what a smaller limit is found to allow is an answer for larger ones, too: no
/// answer is slower than that of a smaller limit. `known`: an answer for the last limit, in case
/// that the search finds none, or a slower one.
std::vector<Forecast> forecasts(const Trace& trace, const std::vector<Bytes>& limits,
                                const LinkModel& link, double seconds,
                                const std::optional<Forecast>& known = {});

/// The bound, or why there is none.
struct BoundAnswer {
  std::optional<Bound> bound;
  std::string why_not;
};
BoundAnswer ask_bound(const Trace& trace, Bytes limit, const LinkModel& link);

}  // namespace lms
