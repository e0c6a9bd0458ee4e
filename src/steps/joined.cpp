#include "steps/joined.h"

#include <algorithm>
#include <cstdint>

namespace lms {
namespace {

/// It can only be another pass over the whole block.
bool fits(const TraceOperator& op, const ReplayCost& cost, const std::vector<TraceBlock>& blocks) {
  if (!op.repeatable || op.writes.size() != 1 || !op.allocs.empty()) return false;
  const TraceBlockId written = op.writes.front();
  const auto others = std::ranges::count_if(op.reads, [&](TraceBlockId read) {
    return read != written && blocks[read].bytes == blocks[written].bytes;
  });
  return others == cost.operands && op.reads.size() == 1U + cost.operands;
}

}  // namespace

std::vector<bool> joined_operators(const StepShape& shape) {
  const Trace& trace = shape.trace;
  std::vector<bool> joined(trace.operators.size());
  std::vector<std::uint8_t> places(trace.blocks.size());  // of the last in the block's chain, or 0
  for (std::size_t i = 0; i < trace.operators.size(); ++i) {
    const TraceOperator& op = trace.operators[i];
    const ReplayCost& cost = shape.operators[i].replay_cost;
    for (const TraceBlockId written : op.writes) {
      std::uint8_t& place = places[written];
      joined[i] = place > 0 && cost.place > place && fits(op, cost, trace.blocks);
      place = joined[i] ? cost.place : 0;
    }
    if (cost.place == 1 && op.repeatable && op.allocs.size() == 1) places[op.allocs.front()] = 1;
  }
  return joined;
}

void price_replays(StepShape& shape) {
  const std::vector<bool> joined = joined_operators(shape);
  for (std::size_t i = 0; i < joined.size(); ++i) {
    TraceOperator& op = shape.trace.operators[i];
    const ReplayCost& cost = shape.operators[i].replay_cost;
    const float part = joined[i] ? cost.joined : cost.alone;
    if (!joined[i] && cost.alone_ms >= 0) {
      op.replay_ms = std::min<double>(cost.alone_ms, op.ms);
    } else if (part < 1) {
      op.replay_ms = part * op.ms;
    }
  }
}

}  // namespace lms
