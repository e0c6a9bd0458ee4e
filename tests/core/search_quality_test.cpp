// How near plans come to what is possible, on steps whose limit is known by hand.

#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan_unet.h"
#include "core/plan_words.h"
#include "plan/search.h"

namespace lms::testing {
namespace {

struct Result {
  double overhead = 0;
  PlanTiming timing;
};

Result planned(const Trace& trace, Bytes budget, const LinkModel& link, std::int64_t rounds) {
  const PlannedStep step = make_plan(trace, budget, link, {.seconds = 60, .rounds = rounds});
  EXPECT_EQ(verify_plan(trace, step.plan, budget), std::vector<std::string>{});
  double computation = 0;
  for (const TraceOperator& op : trace.operators) computation += op.ms;
  return {step.predicted.step_ms / computation - 1, step.predicted};
}

/// Forward: layer i makes a_i (10 bytes) in 1 ms. Backward: layer i needs a_i again, for 2 ms.
Trace chain(int layers) {
  TraceBuilder builder;
  std::vector<TraceBlockId> activations;
  for (int i = 0; i < layers; ++i) {
    builder.run("forward", activations.empty() ? activations : std::vector{activations.back()}, {},
                1);
    activations.push_back(builder.result(10));
  }
  for (; !activations.empty(); activations.pop_back()) {
    builder.run("backward", {activations.back()}, {}, 2);
    builder.dies(activations.back());
  }
  return builder.build();
}

TEST(SearchQuality, ChainBehindASlowLinkTakesWhatMustBeCopied) {
  // 100 layers, 1000 bytes at most, 500 allowed: 500 bytes leave before the last forward layer has
  // room and come back after it, which takes 250 ms each at 2 bytes/ms.
  const Result result = planned(chain(100), 500, {2, 2, 2, 0, 0, 0}, 300);
  EXPECT_EQ(result.timing.bytes_out, 500);
  EXPECT_GE(result.timing.step_ms, 500);
  EXPECT_LE(result.timing.step_ms, 500 * 1.03);
}

TEST(SearchQuality, ChainBehindAFastLinkTakesItsComputation) {
  // 500 bytes in 99 ms of forward, and the same back in 200 ms of backward.
  const Result result = planned(chain(100), 500, {6, 6, 6, 0, 0, 0}, 300);
  EXPECT_NEAR(result.overhead, 0, 0.01);
}

TEST(SearchQuality, OptimizerStateStreamsThroughBothLanesAtOnce) {
  // 20 states of 10 bytes, updated one after the other, 1 ms each; before that 400 ms in which
  // 100 bytes may stay. A state is a copy in and a copy out: 10 ms of each lane. What 100 bytes can
  // hold is fetched during the 400 ms; the other ten states stream, in and out at once.
  TraceBuilder builder;
  std::vector<TraceBlockId> states(20);
  for (TraceBlockId& state : states) state = builder.existing(10);
  for (int i = 0; i < 40; ++i) builder.run("compute", {}, {}, 10);
  for (const TraceBlockId state : states) builder.run("update", {}, {state}, 1);
  const Result result = planned(builder.build(), 100, {1, 1, 1, 0, 0, 0}, 2000);
  EXPECT_GE(result.timing.step_ms, 420 + 100 - 20);
  EXPECT_LE(result.timing.step_ms, 420 + 100 + 20);
}

TEST(SearchQuality, FewAndLargeBlocks) {
  // The bounds: 0 at 2, 2.6 % at 2.25, 5.5 % at 2.5, 11.5 % at 3, with blocks that may be away in
  // part and no copy tax (1.5 % here). What whole blocks lose at 3: the largest blocks of the way
  // back do not fit beside each other, so one must be waited for.
  const Trace trace = Unet::trace();
  const auto at = [&](double ratio) {
    const auto budget = static_cast<Bytes>(static_cast<double>(peak(trace)) / ratio);
    return planned(trace, budget, {}, 10'000).overhead;
  };
  EXPECT_LE(at(2), 0.02);
  EXPECT_LE(at(2.25), 0.055);
  EXPECT_LE(at(2.5), 0.09);
  EXPECT_LE(at(3), 0.26);
}

}  // namespace
}  // namespace lms::testing
