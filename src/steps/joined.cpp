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

void fold_products(StepShape& shape) {
  Trace& trace = shape.trace;
  const std::size_t end = trace.operators.size();
  struct Life {
    std::size_t maker = SIZE_MAX;
    std::size_t death = SIZE_MAX;
    std::size_t last_write = 0;  // after the making
  };
  std::vector<Life> lives(trace.blocks.size());
  for (std::size_t i = 0; i < end; ++i) {
    const TraceOperator& op = trace.operators[i];
    for (const TraceBlockId id : op.allocs) lives[id].maker = i;
    for (const TraceBlockId id : op.writes) lives[id].last_write = i;
    for (const TraceBlockId id : op.frees) lives[id].death = i;
  }
  const auto makes_one_of_one = [](const TraceOperator& op) {
    return op.repeatable && op.allocs.size() == 1 && op.reads.size() == 1 && op.writes.empty();
  };
  for (std::size_t i = 0; i < end; ++i) {
    TraceOperator& op = trace.operators[i];
    op.replay_reads.clear();
    if (shape.operators[i].replay_cost.fold != Fold::kConversion || !makes_one_of_one(op)) continue;
    const Life& product = lives[op.reads.front()];
    if (product.maker == SIZE_MAX || product.last_write > 0 || product.death == SIZE_MAX) continue;
    const TraceOperator& maker = trace.operators[product.maker];
    if (shape.operators[product.maker].replay_cost.fold != Fold::kProduct ||
        !makes_one_of_one(maker)) {
      continue;
    }
    const TraceBlockId factor = maker.reads.front();
    const Life& source = lives[factor];
    const bool written = source.last_write > product.maker;
    if (written || source.death < product.death ||
        trace.blocks[factor].bytes != trace.blocks[op.reads.front()].bytes) {
      continue;
    }
    op.replay_reads = {factor};
  }
}

void price_replays(StepShape& shape) {
  fold_products(shape);
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
