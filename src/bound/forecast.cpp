#include "bound/forecast.h"

#include <algorithm>

#include "base/error.h"
#include "plan/placed_plan.h"
#include "plan/swap/gaps.h"

namespace lms {
namespace {

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

/// As on NVIDIA's GPUs.
constexpr Bytes kPage = 2 * kMiB;

Forecast forecast(const Trace& trace, Bytes limit, const LinkModel& link, double seconds,
                  bool recompute) {
  Forecast answer{.limit = limit,
                  .in_memory_peak = peak_in_memory(trace),
                  .in_memory_ms = ms_in_memory(trace),
                  .least = least_limit(trace),
                  .budget = limit};
  try {
    PlacedPlan made = make_placed_plan(trace, {.room = limit, .page = kPage}, link,
                                       {.seconds = seconds, .recompute = recompute});
    answer.budget = made.budget;
    answer.planned = std::move(made.step);
    answer.placement = std::move(made.placement);
  } catch (const OutOfMemory& error) {
    answer.why_not = error.what();
  }
  return answer;
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
