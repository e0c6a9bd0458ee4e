// Random steps replayed under random limits. The replay itself compares the bytes that every
// operator finds.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "core/plan_random.h"
#include "core/plan_words.h"
#include "engine_fixture.h"
#include "sim/replay.h"

namespace lms::testing {
namespace {

Trace small_random_trace() {
  TraceBuilder builder;
  std::vector<TraceBlockId> alive;
  for (int i = upto(4); i > 0; --i) alive.push_back(builder.existing(1 + upto(9)));
  for (int i = 1 + upto(11); i > 0; --i) {
    std::vector<TraceBlockId> reads;
    std::vector<TraceBlockId> writes;
    for (const auto id : alive) {
      if (upto(3) == 0) reads.push_back(id);
      if (upto(5) == 0) writes.push_back(id);
    }
    builder.run("op", reads, writes, upto(5), upto(4));
    if (upto(2) != 0) alive.push_back(builder.result(1 + upto(9)));
    std::erase_if(alive, [&](TraceBlockId id) {
      const bool dies = upto(9) == 0;
      if (dies) builder.dies(id);
      return dies;
    });
  }
  return builder.build();
}

/// The least limit that any schedule needs: what one operator must have at one time.
Bytes floor_of(const Trace& trace) {
  Bytes floor = 0;
  for (const TraceOperator& op : trace.operators) {
    std::vector<TraceBlockId> needed = op.reads;
    needed.insert(needed.end(), op.writes.begin(), op.writes.end());
    needed.insert(needed.end(), op.allocs.begin(), op.allocs.end());
    std::ranges::sort(needed);
    const auto repeated = std::ranges::unique(needed);
    needed.erase(repeated.begin(), repeated.end());
    Bytes sum = op.workspace;
    for (const auto id : needed) sum += trace.blocks[id].bytes;
    floor = std::max(floor, sum);
  }
  return floor;
}

RC_GTEST_PROP(SimProperty, StepsThatFitNeverWait, ()) {
  const Trace trace = small_random_trace();
  const auto live = trace.live_bytes();
  const Bytes all = std::ranges::max(live);
  World world(all);
  const SimResult result = replay(trace, world.engine, world.sim);
  RC_ASSERT(result.ms == computation(trace));
  RC_ASSERT(result.peak == all);
  RC_ASSERT(result.bytes_out == 0);
}

RC_GTEST_PROP(SimProperty, TightStepsPayForWhatTheyMove, ()) {
  const Trace trace = small_random_trace();
  const auto live = trace.live_bytes();
  const Bytes all = std::ranges::max(live);
  const Bytes limit = std::max<Bytes>(1, all * (60 + upto(40)) / 100);
  const bool stress = *rc::gen::arbitrary<bool>();
  World world(limit, {},
              stress ? std::make_unique<EvictEverythingPolicy>() : std::make_unique<LruPolicy>());
  try {
    const SimResult result = replay(trace, world.engine, world.sim);
    RC_ASSERT(limit >= floor_of(trace));
    RC_ASSERT(result.peak <= limit);
    RC_ASSERT(result.stalled_ms == static_cast<double>(result.bytes_out + result.bytes_in));
    RC_ASSERT(result.ms == computation(trace) + result.stalled_ms);
    RC_CLASSIFY(result.stalls > 0, "steps that wait");
  } catch (const OutOfMemory&) {
    // Results that no operator has read yet cannot leave, so more than the floor may be needed;
    // never more than the whole step.
    RC_ASSERT(limit < all);
    RC_CLASSIFY(true, "steps that do not fit");
  }
  check_consistent(world);
  RC_ASSERT(!::testing::Test::HasFailure());
  RC_ASSERT(world.sim.device_peak() <= limit);
  RC_ASSERT(world.sim.device_used() == 0);
}

}  // namespace
}  // namespace lms::testing
