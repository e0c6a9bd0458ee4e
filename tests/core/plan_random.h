#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <vector>

#include "plan/plan.h"
#include "trace/trace.h"

namespace lms::testing {

/// Evenly, whatever size rapidcheck has reached.
inline int upto(int most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, most + 1));
}
inline bool chance(int percent) { return upto(99) >= 100 - percent; }

struct RandomTraceOptions {
  int existing = 3;
  int operators = 6;
  int results = 2;      ///< of one operator
  int repeatable = 80;  ///< percent
  int writes = 15;      ///< percent: of every block by every operator
  int spared = 30;      ///< percent of the writes
  int dies = 15;        ///< percent: of every block with every operator
};

/// A step with blocks that cannot move, that are carried over its end, that linger unused.
inline Trace random_trace(const RandomTraceOptions& options = {}) {
  TraceBuilder builder;
  std::vector<TraceBlockId> alive;
  for (int i = upto(options.existing); i > 0; --i) alive.push_back(builder.existing(1 + upto(8)));
  const auto existing = static_cast<TraceBlockId>(alive.size());
  for (int i = 1 + upto(options.operators - 1); i > 0; --i) {
    std::vector<TraceBlockId> reads;
    std::vector<TraceBlockId> writes;
    for (const auto id : alive) {
      if (chance(30)) reads.push_back(id);
      if (chance(options.writes)) writes.push_back(id);
    }
    builder.run("op", reads, writes, upto(5), upto(3));
    for (int born = upto(options.results); born > 0; --born) {
      alive.push_back(builder.result(1 + upto(8)));
    }
    std::erase_if(alive, [&](TraceBlockId id) {
      const bool dies = chance(options.dies);
      if (dies) builder.dies(id);
      return dies;
    });
  }
  Trace trace = builder.build();
  for (TraceOperator& op : trace.operators) {
    op.repeatable = chance(options.repeatable);
    if (chance(30)) op.replay_ms = op.ms / 2;
    for (const TraceBlockId id : op.writes) {
      if (chance(options.spared)) op.spared.push_back(id);
    }
  }
  for (TraceBlock& block : trace.blocks) block.movable = !chance(8);
  // The blocks from before the step that died are found again in the next one: as what this one
  // leaves.
  for (TraceBlockId id = 0; id < existing; ++id) {
    if (std::ranges::count(alive, id) > 0) continue;
    const auto heir = std::ranges::find_if(alive, [&](auto other) { return other >= existing; });
    if (heir == alive.end()) break;
    trace.blocks[id].carried_from = *heir;
    trace.blocks[*heir].bytes = trace.blocks[id].bytes;
    trace.blocks[*heir].movable = trace.blocks[id].movable;
    alive.erase(heir);
  }
  return trace;
}

}  // namespace lms::testing
