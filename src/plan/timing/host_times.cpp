#include "plan/timing/host_times.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/median.h"
#include "plan/timing/timing.h"

namespace lms {
namespace {

/// With fewer operators than this between host and device, the host does not stand still because
/// no more can be queued (StepClock::kMostAhead, less what timing itself queues).
constexpr int kNear = 150;
/// With so many, the device has something to do for a while: if it has done all of it by the next
/// look, the host has waited.
constexpr int kFar = 8;
/// Of all operators, the host must have been near the device at so many.
constexpr std::size_t kLeastPart = 10;
constexpr std::size_t kLeast = 16;
/// Where the device starves at less than a part in so many of the operators, the host's time is not
/// what the step takes.
constexpr std::size_t kStarvingPart = 100;
/// What is done more seldom than this is not believed.
constexpr std::size_t kOften = 4;
/// Nothing that a plan does counts for more than so many times what most of its kind take.
constexpr double kUsual = 4;
/// Guesses, in parts of what an operator takes.
constexpr double kCopy = 0.5;
constexpr double kLeave = 0.2;
constexpr double kRemake = 1.0;

void forget(Trace& trace) {
  for (TraceOperator& op : trace.operators) {
    op.host_ms = 0;
    op.host_waits = false;
  }
}

/// Where the host waits, and at which operators that is part of its time.
std::vector<char> find_waits(Trace& trace, std::span<const MeasuredOperator> device) {
  const std::size_t size = device.size();
  std::vector<char> waited(size, 0);
  for (std::size_t at = 0; at < size; ++at) {
    const MeasuredOperator& now = device[at];
    const std::size_t next = (at + 1) % size;
    const bool inside = now.behind >= kFar && now.behind_after == 0;
    const bool after = now.behind_after >= kFar && device[next].behind == 0;
    trace.operators[at].host_waits = inside || after;
    if (inside) waited[at] = 1;
    if (after) waited[next] = 1;
  }
  return waited;
}

/// Nothing: it has been done too seldom.
std::optional<double> each(std::vector<double> all) {
  if (all.size() < kOften) return std::nullopt;
  const double most = kUsual * median(all);
  const double sum = std::accumulate(all.begin(), all.end(), 0.0, [&](double so_far, double ms) {
    return so_far + std::min(ms, most);
  });
  return sum / static_cast<double>(all.size());
}

}  // namespace

HostCosts set_host_times(Trace& trace, const HostTimes& host,
                         std::span<const MeasuredOperator> device) {
  const std::size_t size = trace.operators.size();
  forget(trace);
  if (size == 0 || host.operators_ms.size() != size || device.size() != size) return {};
  const std::vector<char> waited = find_waits(trace, device);
  const auto believed = [&](std::size_t at) {
    return device[at].behind >= 0 && device[at].behind < kNear && waited[at] == 0;
  };
  std::vector<double> all;
  std::unordered_map<std::string_view, std::vector<double>> by_name;
  for (std::size_t at = 0; at < size; ++at) {
    if (!believed(at)) continue;
    all.push_back(host.operators_ms[at]);
    by_name[trace.operators[at].name].push_back(host.operators_ms[at]);
  }
  const auto starving =
      static_cast<std::size_t>(std::ranges::count_if(device, &MeasuredOperator::starved));
  if (all.size() < std::max(kLeast, size / kLeastPart) || starving * kStarvingPart < size) {
    forget(trace);
    return {};
  }
  const double typical = median(all);
  std::unordered_map<std::string_view, double> known;
  for (auto& [name, values] : by_name) known[name] = median(values);
  for (std::size_t at = 0; at < size; ++at) {
    TraceOperator& op = trace.operators[at];
    const auto alike = known.find(op.name);
    op.host_ms = host.operators_ms[at];
    // Waiting only adds to it: others that have waited, too, do not make it longer.
    if (!believed(at)) {
      op.host_ms = std::min(op.host_ms, alike == known.end() ? typical : alike->second);
    }
    op.host_ms = std::max(op.host_ms, 0.0);
  }
  const double mean = trace.host_ms() / static_cast<double>(size);
  const HostCosts costs = {.copy_ms = each(host.copies_ms).value_or(kCopy * mean),
                           .leave_ms = each(host.leaves_ms).value_or(kLeave * mean),
                           .remake_ms = each(host.remakes_ms).value_or(kRemake * mean)};
  const auto so_often = [](const std::vector<double>& all) {
    return static_cast<double>(all.size());
  };
  const double sum = trace.host_ms() + so_often(host.copies_ms) * costs.copy_ms +
                     so_often(host.leaves_ms) * costs.leave_ms +
                     so_often(host.remakes_ms) * costs.remake_ms;
  const double part = host.step_ms > 0 && sum > host.step_ms ? host.step_ms / sum : 1;
  for (TraceOperator& op : trace.operators) op.host_ms *= part;
  return {.copy_ms = part * costs.copy_ms,
          .leave_ms = part * costs.leave_ms,
          .remake_ms = part * costs.remake_ms};
}

void fit_host_times(Trace& trace, LinkModel& link, const Plan& plan, double step_ms) {
  // Nor are the device's times exact.
  constexpr double kTolerance = 1.03;
  if (step_ms <= 0 || trace.host_ms() <= 0) return;
  const double most = kTolerance * step_ms;
  const std::vector<TraceOperator> operators = trace.operators;
  const HostCosts costs = link.host;
  const auto takes_with = [&](double part) {
    for (std::size_t i = 0; i < operators.size(); ++i) {
      trace.operators[i].host_ms = part * operators[i].host_ms;
    }
    link.host = {.copy_ms = part * costs.copy_ms,
                 .leave_ms = part * costs.leave_ms,
                 .remake_ms = part * costs.remake_ms};
    return time_plan(trace, plan, link).step_ms;
  };
  if (takes_with(1) <= most) return;
  double enough = 0;
  double more = 1;
  for (int i = 0; i < 8; ++i) {
    const double part = (enough + more) / 2;
    (takes_with(part) <= most ? enough : more) = part;
  }
  (void)takes_with(enough);
  if (enough == 0) forget(trace);
}

}  // namespace lms
