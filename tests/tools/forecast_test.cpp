#include "bound/forecast.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace lms::tool {
namespace {

constexpr Bytes kUnit = 512;                              ///< what addresses are multiples of
constexpr LinkModel kLink{kUnit, kUnit, kUnit, 0, 0, 0};  ///< a unit a ms

// x and y are made by the forward half and used by the backward one; w is there before, and d,
// which reads w and y, needs most.
//
//   a -> x (4 units)   b -> y (2 units)   c (10 ms)   d (reads w, y; workspace 3)   e (reads x)
Trace step() {
  TraceBuilder builder;
  const auto w = builder.existing(1 * kUnit);
  builder.run("a", {w}, {}, 1);
  const auto x = builder.result(4 * kUnit);
  builder.run("b", {w}, {}, 1);
  const auto y = builder.result(2 * kUnit);
  builder.run("c", {}, {}, 10);
  builder.run("d", {w, y}, {}, 1, 3 * kUnit);
  builder.dies(y);
  builder.run("e", {x}, {}, 4);
  builder.dies(x);
  return builder.build();
}

TEST(Forecast, LeastLimitIsWhatTheGreatestOperatorNeeds) {
  const LeastLimit least = least_limit(step());
  EXPECT_EQ(least.bytes, 6 * kUnit);
  EXPECT_EQ(least.where, "operator 3 (d)");
  EXPECT_EQ(peak_in_memory(step()), 10 * kUnit);
  EXPECT_EQ(ms_in_memory(step()), 17);
}

TEST(Forecast, LeastLimitIsTheLeastThatWorks) {
  const Trace trace = step();
  const Bytes least = least_limit(trace).bytes;
  EXPECT_NO_THROW(make_plan(trace, least, kLink, {.seconds = 0.1}));
  EXPECT_THROW(make_plan(trace, least - 1, kLink, {.seconds = 0.1}), OutOfMemory);
}

TEST(Forecast, PlansTheStepAndPlacesIt) {
  // x is away from b until e: 4 ms out beside c, 4 ms in, of which d hides 1 at most.
  const Trace trace = step();
  const Forecast answer = forecast(trace, 6 * kUnit, kLink, 0.2);
  ASSERT_TRUE(answer.fits()) << answer.why_not;
  EXPECT_TRUE(verify_plan(trace, answer.planned->plan, answer.limit).empty());
  EXPECT_TRUE(verify_placement(trace, answer.planned->plan, answer.placement).empty());
  EXPECT_LE(answer.placement.bytes, answer.limit);
  EXPECT_LE(answer.planned->predicted.peak, answer.limit);
  EXPECT_GT(answer.overhead(), 0);
  EXPECT_DOUBLE_EQ(answer.overhead(), answer.planned->predicted.step_ms / 17 - 1);
}

TEST(Forecast, WhatFitsAnywayCostsNothing) {
  const Forecast answer = forecast(step(), 10 * kUnit, kLink, 0.1);
  ASSERT_TRUE(answer.fits());
  EXPECT_EQ(answer.overhead(), 0);
  EXPECT_EQ(answer.planned->predicted.bytes_out, 0);
}

TEST(Forecast, WithoutTimesThereIsNoOverhead) {
  TraceBuilder builder;
  builder.run("a", {}, {}, 0);
  const auto x = builder.result(kUnit);
  builder.run("b", {x}, {}, 0);
  builder.dies(x);
  const Forecast answer = forecast(builder.build(), 4 * kUnit, kLink, 0.1);
  ASSERT_TRUE(answer.fits()) << answer.why_not;
  EXPECT_EQ(answer.overhead(), 0);
}

TEST(Forecast, WhatCannotFitSaysWhy) {
  const Forecast answer = forecast(step(), 5 * kUnit, kLink, 0.1);
  EXPECT_FALSE(answer.fits());
  EXPECT_NE(answer.why_not.find("operator 3 (d)"), std::string::npos) << answer.why_not;
}

TEST(Forecast, HalfTheBatchHalvesWhatTheStepMakes) {
  TraceBuilder builder;
  const auto w = builder.existing(100);
  const auto kept = builder.existing(60);
  builder.run("a", {w}, {}, 3, 40);
  builder.temporary(20, 0, 1);
  const auto x = builder.result(80);
  builder.run("b", {x, kept}, {}, 5);
  const auto gradient = builder.result(60);
  builder.dies(x);
  builder.dies(kept);
  builder.carried(kept, gradient);
  const Trace halved = half_batch(builder.build());
  EXPECT_TRUE(halved.validate().empty());
  EXPECT_EQ(halved.blocks[w].bytes, 100);
  EXPECT_EQ(halved.blocks[x].bytes, 40);
  EXPECT_EQ(halved.blocks[kept].bytes, 60);
  EXPECT_EQ(halved.blocks[gradient].bytes, 60) << "kept for the next step";
  EXPECT_EQ(halved.operators[0].workspace, 20);
  EXPECT_EQ(halved.operators[0].temporaries[0].bytes, 10);
  EXPECT_EQ(ms_in_memory(halved), 4);
}

TEST(Forecast, NoLimitIsBelowTheBound) {
  const BoundAnswer answer = ask_bound(step(), 6 * kUnit, kLink);
  if (!answer.bound) GTEST_SKIP() << "no bound here: " << answer.why_not;
  const Forecast planned = forecast(step(), 6 * kUnit, kLink, 0.2);
  EXPECT_LE(answer.bound->step_ms, planned.planned->predicted.step_ms * (1 + 1e-9));
  EXPECT_FALSE(ask_bound(step(), 5 * kUnit, kLink).bound);
}

}  // namespace
}  // namespace lms::tool
