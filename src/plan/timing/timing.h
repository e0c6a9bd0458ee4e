#pragma once

#include <memory>
#include <vector>

#include "plan/plan.h"
#include "plan/timing/link.h"
#include "trace/trace.h"

namespace lms {

/// When one operator ran: a stretch of the compute stream.
struct OperatorTiming {
  double begin_ms = 0;  ///< after its waits
  double end_ms = 0;
  double waited_ms = 0;  ///< for copies, before begin_ms
  Bytes device = 0;      ///< bytes on the device while it ran, workspace included
};

/// When one copy ran.
struct CopyTiming {
  TraceBlockId block = 0;
  bool out = false;
  double begin_ms = 0;
  double end_ms = 0;
};

/// What a planned step takes.
struct PlanTiming {
  double step_ms = 0;
  double compute_ms = 0;  ///< sum of the operators and recomputations, without copy tax
  double tax_ms = 0;      ///< what copies took from the computation
  double waited_ms = 0;   ///< computation standing still for copies
  double late_ms = 0;     ///< computation standing still for the host
  double out_busy_ms = 0;
  double in_busy_ms = 0;
  double host_ms = 0;  ///< what the host takes, what the plan does included; 0: not known
  double recomputed_ms = 0;
  Bytes bytes_out = 0;
  Bytes bytes_in = 0;
  Bytes bytes_recomputed = 0;
  Bytes peak = 0;
  std::vector<OperatorTiming> operators;  ///< empty unless asked for
  /// Likewise: those that the step started, by lane in the order of their queues. One that lasts
  /// over the step's end is shown whole.
  std::vector<CopyTiming> copies;
};

/// Predicts the step in its steady state (the lanes' backlog of one step is met by the next), under
/// the rules by which the engine carries a plan out on a device with streams:
/// - the compute stream runs operators in order; a directive takes effect when it gets there;
/// - kStartOut queues a copy on the out lane that starts then at the earliest; a block that is
///   clean (its copy below is valid: it came in and nobody has written it) is not copied;
/// - kFinishOut makes the compute stream wait for that copy, then the memory is free;
/// - kStartIn queues a copy on the in lane, which starts then at the earliest and after the
///   block's own copy out; the first operator that uses the block waits for it;
/// - each lane serves its queue in order, at the rates of `link`;
/// - kRematerialise runs the operators that made the block's contents again, on the compute stream,
///   once all that they read has come in (TraceOperator::again_ms each);
/// - the memory of a block that dies or is dropped is not free before a copy in has ended;
/// - a copy that runs beside computation slows it by the copy tax;
/// - the latency of a copy passes before its first byte, and leaves the other lane its full rate.
/// - if it is known what the host takes (TraceOperator::host_ms), it queues operators, copies and
///   recomputations one after the other, at those times and link.host's, and the device comes to
///   nothing before it has been queued.
/// The plan must satisfy verify_plan. Cost: linear in operators, uses and directives, times the
/// steps until the steady state is met (1 if no copy lasts over the step's end).
PlanTiming time_plan(const Trace& trace, const Plan& plan, const LinkModel& link,
                     bool with_timeline = false);

/// time_plan() for many plans of one trace: keeps its memory. The trace must outlive it. Not
/// thread-safe.
class PlanTimer {
 public:
  PlanTimer(const Trace& trace, const LinkModel& link);
  PlanTimer(PlanTimer&&) noexcept;
  PlanTimer& operator=(PlanTimer&&) noexcept;
  ~PlanTimer();

  /// Valid until the next call.
  const PlanTiming& time(const Plan& plan, bool with_timeline = false);

 private:
  class Run;
  std::unique_ptr<Run> run_;
};

}  // namespace lms
