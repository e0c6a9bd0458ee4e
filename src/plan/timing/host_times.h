#pragma once

#include <span>
#include <vector>

#include "plan/plan.h"
#include "plan/timing/link.h"
#include "plan/timing/measured.h"
#include "trace/trace.h"

namespace lms {

/// What the host took in a step that was timed.
struct HostTimes {
  /// By operator, from when the one before had been queued until it had been; what the plan did
  /// meanwhile and what timing costs are no part of it.
  std::vector<double> operators_ms;
  /// What the plan did, each time.
  std::vector<double> copies_ms;
  std::vector<double> leaves_ms;
  std::vector<double> remakes_ms;
  /// What steps like it take in which nothing is timed: the host has had no more than that for all
  /// of it. 0: not known.
  double step_ms = 0;
};

/// Puts what the host takes, and where it waits for the device, into the operators of a trace; the
/// costs of what plans do. While the device is far behind, the host may stand still because no more
/// can be queued: what it seems to take then is not believed, and what it takes elsewhere for
/// operators of that name counts, or for most operators, if that is less. If it is hardly ever
/// near, or the device never stands still, nothing is known (TraceOperator::host_ms is 0), and
/// nothing need be. What the plan did costs the mean, of which nothing counts for more than a few
/// times what most take: a thread that has lost its core once says nothing of copies. Cores are
/// shared, and what is timed may be the one step in which they were slow: in sum it is no more than
/// HostTimes::step_ms.
HostCosts set_host_times(Trace& trace, const HostTimes& host,
                         std::span<const MeasuredOperator> device);

/// What the host takes, of a trace and in `link`, is made less, until the plan would take hardly
/// longer than `step_ms`, which steps that followed it have taken. So a step that the device alone
/// explains is not planned for a host that had been late in the one that was timed: then nothing is
/// known of the host. Nothing is done where `step_ms` is 0.
void fit_host_times(Trace& trace, LinkModel& link, const Plan& plan, double step_ms);

}  // namespace lms
