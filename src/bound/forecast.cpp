#include "bound/forecast.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "bound/below.h"
#include "plan/placed_plan.h"
#include "plan/swap/gaps.h"

namespace lms {
namespace {

/// Of the peak in memory: limits that are asked about.
constexpr std::array kParts{1.0, 1.25, 1.5, 2.0, 3.0, 4.0};
/// Of the least limit: where addresses may fit. They waste more the fewer blocks there are.
constexpr std::array kAboveLeast{1.0, 1.01, 1.02, 1.04, 1.07, 1.1, 1.15, 1.25, 1.5, 2.0};
/// A limit so near to the smallest says nothing more.
constexpr double kNear = 1.02;
/// As on NVIDIA's GPUs.
constexpr Bytes kPage = 2 * kMiB;

Bytes half(Bytes bytes) { return std::max<Bytes>(1, bytes / 2); }

}  // namespace

LeastLimit least_limit(const Trace& trace) {
  const StepModel model(trace);
  std::vector<Bytes> needed;
  needed.reserve(static_cast<std::size_t>(model.operators));
  for (int op = 0; op < model.operators; ++op) needed.push_back(model.during(op));
  for (const Gap& gap : model.gaps) model.add(needed, gap, -gap.bytes);
  LeastLimit least;
  for (std::size_t at = 0; at < needed.size(); ++at) {
    if (needed[at] <= least.bytes) continue;
    least.bytes = needed[at];
    // The model's first and last operator stand for the step's beginning and end.
    if (at == 0) {
      least.where = "the beginning of the step";
    } else if (at > trace.operators.size()) {
      least.where = "the end of the step";
    } else {
      least.where =
          "operator " + std::to_string(at - 1) + " (" + trace.operators[at - 1].name + ")";
    }
  }
  return least;
}

Bytes peak_in_memory(const Trace& trace) {
  const std::vector<Bytes> live = trace.live_bytes();
  return live.empty() ? 0 : *std::ranges::max_element(live);
}

double ms_in_memory(const Trace& trace) {
  double ms = 0;
  for (const TraceOperator& op : trace.operators) ms += op.ms;
  return ms;
}

Trace half_batch(const Trace& trace) {
  Trace halved = trace;
  std::vector<bool> carried(trace.blocks.size());
  for (const TraceBlock& block : trace.blocks) {
    const std::int64_t from = block.carried_from;
    if (from != kNoBlock) carried[static_cast<std::size_t>(from)] = true;
  }
  for (std::size_t id = 0; id < trace.blocks.size(); ++id) {
    TraceBlock& block = halved.blocks[id];
    if (block.born_in_step && !carried[id]) block.bytes = half(block.bytes);
  }
  for (TraceOperator& op : halved.operators) {
    op.ms /= 2;
    op.workspace = (op.workspace + 1) / 2;
    for (TraceTemporary& temporary : op.temporaries) temporary.bytes = half(temporary.bytes);
  }
  return halved;
}

Forecast forecast(const Trace& trace, Bytes limit, const LinkModel& link, double seconds,
                  bool recompute, const Plan* start) {
  Forecast answer{.limit = limit,
                  .in_memory_peak = peak_in_memory(trace),
                  .in_memory_ms = ms_in_memory(trace),
                  .least = least_limit(trace),
                  .budget = limit};
  try {
    PlacedPlan made =
        make_placed_plan(trace, {.room = limit, .page = kPage}, link,
                         {.seconds = seconds, .recompute = recompute, .start = start});
    answer.budget = made.budget;
    answer.planned = std::move(made.step);
    answer.below = most_below(trace, answer.planned->plan);
    answer.placement = std::move(made.placement);
  } catch (const OutOfMemory& error) {
    answer.why_not = error.what();
  }
  return answer;
}

std::optional<Forecast> smallest_fit(const Trace& trace, const LinkModel& link) {
  const Bytes least = least_limit(trace).bytes;
  Bytes fails = round_up(least, kPage) - kPage;  // below what one moment needs
  std::optional<Forecast> fits;
  const auto fits_at = [&](Bytes limit) {
    Forecast found = forecast(trace, limit, link, 0);
    if (!found.fits()) return false;
    fits = std::move(found);
    return true;
  };
  for (const double factor : kAboveLeast) {
    const auto limit = static_cast<Bytes>(static_cast<double>(least) * factor);
    if (round_up(limit, kPage) > fails && fits_at(round_up(limit, kPage))) break;
    fails = std::max(fails, round_up(limit, kPage));
  }
  if (!fits) return std::nullopt;
  while (fits->limit - fails > kPage) {
    const Bytes middle = fails + (fits->limit - fails) / kPage / 2 * kPage;
    if (!fits_at(middle)) fails = middle;
  }
  return fits;
}

std::vector<Bytes> limits_to_ask(Bytes peak, Bytes smallest) {
  std::vector<Bytes> limits;
  for (const double part : kParts) {
    const auto limit = static_cast<Bytes>(static_cast<double>(peak) / part);
    if (static_cast<double>(limit) > kNear * static_cast<double>(smallest)) limits.push_back(limit);
  }
  limits.push_back(smallest);
  return limits;
}

namespace {

/// What fits under a smaller limit fits under a larger one.
void take_if_faster(Forecast& answer, const Forecast& other) {
  if (!other.fits()) return;
  const double ms = other.planned->predicted.step_ms;
  if (answer.fits() && answer.planned->predicted.step_ms <= ms) return;
  const Bytes limit = answer.limit;
  answer = other;
  answer.limit = limit;
}

}  // namespace

std::vector<Forecast> forecasts(const Trace& trace, const std::vector<Bytes>& limits,
                                const LinkModel& link, double seconds,
                                const std::optional<Forecast>& known) {
  std::vector<Forecast> answers;
  for (const Bytes limit : limits) {
    const bool before = !answers.empty() && answers.back().fits();
    const Plan* start = before ? &answers.back().planned->plan : nullptr;
    answers.push_back(forecast(trace, limit, link, seconds, /*recompute=*/true, start));
  }
  if (known && !answers.empty()) take_if_faster(answers.back(), *known);
  for (std::size_t at = answers.size(); at-- > 1;) take_if_faster(answers[at - 1], answers[at]);
  return answers;
}

BoundAnswer ask_bound(const Trace& trace, Bytes limit, const LinkModel& link) {
  try {
    const Bound answer = bound(trace, limit, link);
    if (!answer.feasible) return {.why_not = "one operator alone needs more than the limit"};
    return {.bound = answer};
  } catch (const Error& error) {
    return {.why_not = error.what()};
  }
}

}  // namespace lms
