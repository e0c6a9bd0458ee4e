#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "plan/plan.h"
#include "trace/trace.h"

namespace lms {

/// Random, but valid, traces and plans.
class RandomPlan {
 public:
  explicit RandomPlan(std::uint64_t seed) : engine_(seed) {}

  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(engine_); }
  bool chance(int percent) { return below(100) < percent; }

  Trace trace() {
    Trace trace;
    for (int i = below(6); i > 0; --i) trace.blocks.push_back({1 + below(40), false});
    std::vector<TraceBlockId> alive;
    for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) alive.push_back(id);
    for (int k = 1 + below(30); k > 0; --k) {
      TraceOperator& op = trace.operators.emplace_back();
      op.name = "op";
      for (const TraceBlockId id : alive) {
        if (chance(20)) op.reads.push_back(id);
        if (chance(5)) op.writes.push_back(id);
      }
      for (int i = below(3); i > 0; --i) {
        op.allocs.push_back(static_cast<TraceBlockId>(trace.blocks.size()));
        alive.push_back(op.allocs.back());
        trace.blocks.push_back({1 + below(40), true});
      }
      give_temporaries(op);
      std::erase_if(alive, [&](TraceBlockId id) {
        const bool dies = chance(trace.blocks[id].born_in_step ? 15 : 2);
        if (dies) op.frees.push_back(id);
        return dies;
      });
    }
    for (const TraceBlockId id : alive) {
      if (trace.blocks[id].born_in_step && chance(70)) carry(trace, id);
    }
    return trace;
  }

  /// Workspaces and temporaries for all operators.
  void give_temporaries(Trace& trace) {
    for (TraceOperator& op : trace.operators) give_temporaries(op);
  }

  Plan plan(const Trace& trace) {
    const auto count = static_cast<TraceBlockId>(trace.blocks.size());
    Plan plan;
    enum class Where { kNowhere, kHere, kAway };
    std::vector<Where> where(count, Where::kNowhere);
    std::vector<bool> away_at_end(count);
    std::vector<bool> here_at_end(count);
    std::vector<bool> dies(count);
    for (const TraceOperator& op : trace.operators) {
      for (const TraceBlockId id : op.frees) dies[id] = true;
    }
    for (TraceBlockId id = 0; id < count; ++id) {
      const TraceBlock& block = trace.blocks[id];
      if (block.born_in_step) continue;
      const auto end =
          block.carried_from == kNoBlock ? id : static_cast<TraceBlockId>(block.carried_from);
      const bool away = !dies[end] && chance(30);
      where[id] = away ? Where::kAway : Where::kHere;
      if (away) plan.absent_at_start.push_back(id);
      (away ? away_at_end : here_at_end)[end] = true;
    }
    const auto go = [&](std::size_t k, TraceBlockId id) {
      plan.directives.push_back({k, Action::kStartOut, id});
      plan.directives.push_back({k, Action::kFinishOut, id});
      where[id] = Where::kAway;
    };
    const auto come = [&](std::size_t k, TraceBlockId id) {
      plan.directives.push_back({k, Action::kStartIn, id});
      where[id] = Where::kHere;
    };
    for (std::size_t k = 0; k < trace.operators.size(); ++k) {
      const TraceOperator& op = trace.operators[k];
      const auto uses = [&](TraceBlockId id) {
        return std::ranges::find(op.reads, id) != op.reads.end() ||
               std::ranges::find(op.writes, id) != op.writes.end();
      };
      for (TraceBlockId id = 0; id < count; ++id) {
        if (where[id] == Where::kHere && chance(15)) go(k, id);
        if (where[id] == Where::kAway && (uses(id) || chance(10))) come(k, id);
      }
      for (const TraceBlockId id : op.allocs) where[id] = Where::kHere;
      for (const TraceBlockId id : op.frees) where[id] = Where::kNowhere;
    }
    for (TraceBlockId id = 0; id < count; ++id) {
      if (where[id] == Where::kHere && away_at_end[id]) go(trace.operators.size(), id);
      if (where[id] == Where::kAway && here_at_end[id]) come(trace.operators.size(), id);
    }
    return plan;
  }

 private:
  void give_temporaries(TraceOperator& op) {
    if (chance(40)) {
      op.workspace = below(30);
      return;
    }
    const int count = below(4) + static_cast<int>(op.allocs.size());
    std::vector<int> numbers(static_cast<std::size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    std::ranges::shuffle(numbers, engine_);
    numbers.resize(numbers.size() - op.allocs.size());
    std::ranges::sort(numbers);
    for (const int begin : numbers) {
      const int end = begin + 1 + below(count - begin);
      op.temporaries.push_back(
          {1 + below(30), static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
      op.workspace += op.temporaries.back().bytes;
    }
  }
  /// Gives the trace the block of the step before that `fresh` will be in the step after.
  void carry(Trace& trace, TraceBlockId fresh) {
    const auto id = static_cast<TraceBlockId>(trace.blocks.size());
    trace.blocks.push_back({trace.blocks[fresh].bytes, false, true, fresh});
    const auto last = static_cast<std::size_t>(below(static_cast<int>(trace.operators.size())));
    for (std::size_t k = 0; k <= last; ++k) {
      if (chance(30)) trace.operators[k].reads.push_back(id);
    }
    trace.operators[last].frees.push_back(id);
  }

  std::mt19937_64 engine_;
};

}  // namespace lms
