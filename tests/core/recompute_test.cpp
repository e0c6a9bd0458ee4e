// Choosing what is computed again: the step written out, and whole plans.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "core/plan_random.h"
#include "core/plan_words.h"
#include "plan/recompute/unrolled.h"
#include "plan/search.h"

namespace lms::testing {
namespace {

SearchOptions recomputing(std::int64_t rounds) {
  return {.seconds = 60, .rounds = rounds, .recompute = true};
}

std::ptrdiff_t count(const Plan& plan, Action action) {
  return std::ranges::count(plan.directives, action, &Directive::action);
}

PlannedStep proven(const Trace& trace, Bytes budget, std::int64_t rounds = 200) {
  PlannedStep step = make_plan(trace, budget, kUnit, recomputing(rounds));
  EXPECT_EQ(verify_plan(trace, step.plan, budget), std::vector<std::string>{});
  return step;
}

/// x (4 bytes) is made in `ms` from w, idles while z needs its room, and is used by d.
Trace idle_block(double ms, bool repeatable) {
  TraceBuilder builder;
  const auto w = builder.existing(2);
  builder.run("a", {w}, {}, ms);
  if (repeatable) builder.repeatable();
  const auto x = builder.result(4);
  builder.run("z", {}, {}, 1, 8);
  builder.run("d", {x}, {}, 5);
  builder.dies(x);
  return builder.build();
}

TEST(Recompute, NothingIsComputedAgainInVain) {
  const PlannedStep step = proven(idle_block(1, true), 14);
  EXPECT_TRUE(step.plan.directives.empty());
}

TEST(Recompute, WhatIsCheapIsComputedAgainWhatIsDearIsMoved) {
  // Copies take 4 ms each way, and nothing hides them but z's 1 ms.
  EXPECT_EQ(proven(idle_block(2, true), 10).predicted.recomputed_ms, 2);
  EXPECT_EQ(proven(idle_block(2, true), 10).predicted.step_ms, 2 + 1 + 2 + 5);
  EXPECT_EQ(proven(idle_block(20, true), 10).predicted.recomputed_ms, 0);
}

TEST(Recompute, WhatIsNotRepeatableIsMoved) {
  const PlannedStep step = proven(idle_block(2, false), 10);
  EXPECT_EQ(count(step.plan, Action::kDrop), 0);
  EXPECT_EQ(step.predicted.bytes_out, 4);
}

TEST(Recompute, InputsThatHaveDiedAreGhosts) {
  // x is made of h, which dies at once; both are quicker to compute than x is to copy.
  TraceBuilder builder;
  builder.run("g", {}, {}, 1);
  builder.repeatable();
  const auto h = builder.result(2);
  builder.run("a", {h}, {}, 1);
  builder.repeatable();
  const auto x = builder.result(8);
  builder.dies(h);
  builder.run("z", {}, {}, 1, 12);
  builder.run("d", {x}, {}, 5);
  builder.dies(x);
  const Trace trace = builder.build();
  const PlannedStep step = proven(trace, 14);
  EXPECT_EQ(step.predicted.recomputed_ms, 2);
  EXPECT_EQ(count(step.plan, Action::kRematerialise), 2);
  EXPECT_EQ(count(step.plan, Action::kDrop), 2);
}

TEST(Recompute, ChainsComeBackFromWhatIsKept) {
  // Forward: layer i makes a_i (10 bytes) of a_(i - 1) in 1 ms. Backward: layer i needs a_i and
  // a_(i - 1) for 2 ms. 16 layers, 160 bytes and a workspace of 10; the link is of no use. With
  // every fourth block kept all others are computed again once, 12 ms, in 40 + 30 bytes and what
  // the operators take.
  TraceBuilder builder;
  std::vector<TraceBlockId> activations;
  for (int i = 0; i < 16; ++i) {
    builder.run("forward", activations.empty() ? activations : std::vector{activations.back()}, {},
                1);
    builder.repeatable();
    activations.push_back(builder.result(10));
  }
  for (; !activations.empty(); activations.pop_back()) {
    std::vector<TraceBlockId> reads{activations.back()};
    if (activations.size() > 1) reads.push_back(activations[activations.size() - 2]);
    builder.run("backward", reads, {}, 2, 10);
    builder.dies(activations.back());
  }
  const Trace trace = builder.build();
  const LinkModel slow{0.01, 0.01, 0.01, 0, 0, 0};
  const PlannedStep step = make_plan(trace, 90, slow, recomputing(1000));
  EXPECT_EQ(verify_plan(trace, step.plan, 90), std::vector<std::string>{});
  EXPECT_EQ(step.predicted.bytes_out, 0);
  EXPECT_LE(step.predicted.step_ms, 16 + 32 + 12);
  // Half of it: blocks must be dropped again after they have served.
  const PlannedStep narrow = make_plan(trace, 50, slow, recomputing(3000));
  EXPECT_EQ(verify_plan(trace, narrow.plan, 50), std::vector<std::string>{});
  EXPECT_EQ(narrow.predicted.bytes_out, 0);
  EXPECT_LE(narrow.predicted.recomputed_ms, 30);
}

TEST(Recompute, ASearchGoesOnFromAPlan) {
  // A chain that takes some search, and then, from its plan, none.
  TraceBuilder builder;
  std::vector<TraceBlockId> activations;
  for (int i = 0; i < 24; ++i) {
    builder.run("forward", activations.empty() ? activations : std::vector{activations.back()}, {},
                1 + i % 3);
    builder.repeatable();
    activations.push_back(builder.result(6 + i % 5));
  }
  for (; !activations.empty(); activations.pop_back()) {
    builder.run("backward", {activations.back()}, {}, 2, 10);
    builder.dies(activations.back());
  }
  const Trace trace = builder.build();
  const LinkModel link{2, 2, 2, 0, 0.02, 0.02};
  const PlannedStep found = make_plan(trace, 90, link, recomputing(1000));
  const PlannedStep cold = make_plan(trace, 90, link, recomputing(0));
  SearchOptions options = recomputing(0);
  options.start = &found.plan;
  const PlannedStep again = make_plan(trace, 90, link, options);
  EXPECT_LT(found.predicted.step_ms, cold.predicted.step_ms);
  EXPECT_LE(again.predicted.step_ms, found.predicted.step_ms * 1.02);
  // It may come from another budget.
  const PlannedStep less = make_plan(trace, 60, link, options);
  EXPECT_EQ(verify_plan(trace, less.plan, 60), std::vector<std::string>{});
}

/// x is multiplied, the product is converted and dies; the result is wanted at the end, when only x
/// is there. `by_the_way`: the conversion can be run again without the product.
Trace converted_product(bool by_the_way) {
  TraceBuilder builder;
  const auto x = builder.existing(4);
  builder.run("multiply", {x}, {}, 2);
  builder.repeatable();
  const auto product = builder.result(4);
  builder.run("convert", {product}, {}, 1);
  builder.repeatable();
  if (by_the_way) builder.reads_again({x});
  const auto result = builder.result(2);
  builder.dies(product);
  builder.run("large", {}, {}, 1);
  builder.dies(builder.result(6));
  builder.run("use", {x, result}, {}, 1);
  builder.dies(result);
  return builder.build();
}

TEST(Recompute, AConversionByTheWayOfItsProduct) {
  // While "large" runs there is room for x alone.
  for (const bool by_the_way : {false, true}) {
    const Trace trace = converted_product(by_the_way);
    const PlannedStep step = make_plan(trace, 10, kUnit, recomputing(200));
    EXPECT_EQ(verify_plan(trace, step.plan, 10), std::vector<std::string>{});
    EXPECT_DOUBLE_EQ(step.predicted.step_ms, by_the_way ? 6 : 8);
    EXPECT_EQ(count(step.plan, Action::kRematerialise), by_the_way ? 1 : 2);
  }
}

RandomTraceOptions larger_step() {
  return {.existing = 5, .operators = 20, .results = 2, .repeatable = 90, .writes = 6, .dies = 12};
}

RC_GTEST_PROP(RecomputeProperty, WhatIsWrittenOutIsWhatThePlanDoes, ()) {
  const Trace trace = random_trace(larger_step());
  const StepModel model(trace);
  const Derivations derivations(trace);
  Unrolled unrolled(trace, model, derivations);
  Drops drops;
  int dropped = 0;
  for (int round = 0; round < 2; ++round) {  // the second time with what the first has left
    drops = {};
    const auto hold = [] {
      return chance(50) ? std::numeric_limits<float>::infinity() : static_cast<float>(upto(8));
    };
    for (int g = 0; g < static_cast<int>(model.gaps.size()); ++g) {
      const bool drop = unrolled.can_drop(g) && chance(60);
      dropped += drop ? 1 : 0;
      drops.dropped.push_back(drop ? 1 : 0);
      drops.hold_ms.push_back(hold());
    }
    for (std::size_t id = 0; id < trace.blocks.size(); ++id) drops.ghost_hold_ms.push_back(hold());
    unrolled.write_out(drops);
  }
  const Plan plan = unrolled.fold({});
  RC_ASSERT(unrolled.trace().validate() == std::vector<std::string>{});
  RC_ASSERT(verify_plan(trace, plan, kAmple) == std::vector<std::string>{});
  const PlanTiming timing = time_plan(trace, plan, kUnit);
  RC_ASSERT(timing.peak == std::max(peak(unrolled.trace()), timing.peak));
  RC_ASSERT(verify_plan(trace, plan, peak(unrolled.trace())) == std::vector<std::string>{});
  RC_ASSERT(timing.recomputed_ms == unrolled.recomputed_ms());
  RC_ASSERT(timing.step_ms == time_plan(unrolled.trace(), {}, kUnit).step_ms);
  RC_CLASSIFY(dropped > 0, "steps with drops");
  RC_CLASSIFY(count(plan, Action::kRematerialise) > 0, "steps that compute again");
}

RC_GTEST_PROP(RecomputeProperty, PlansAreProven, ()) {
  const Trace trace = random_trace(larger_step());
  const LinkModel link{1, 2, 0.8, 0.125, 0.0625, 0.125};
  PlannedStep step;
  Bytes budget = upto(static_cast<int>(peak(trace)));
  // The least that works is what swapping alone needs; the error says it.
  for (;; ++budget) {
    try {
      step = make_plan(trace, budget, link, recomputing(20));
      break;
    } catch (const OutOfMemory&) {
      RC_ASSERT(budget < peak(trace));
    }
  }
  RC_ASSERT(verify_plan(trace, step.plan, budget) == std::vector<std::string>{});
  RC_ASSERT(step.predicted.peak <= budget);
  RC_ASSERT(step.predicted.step_ms == time_plan(trace, step.plan, link).step_ms);
  const Plan again = make_plan(trace, budget, link, recomputing(20)).plan;
  RC_ASSERT(again.absent_at_start == step.plan.absent_at_start);
  RC_ASSERT(std::ranges::equal(again.directives, step.plan.directives, [](auto& x, auto& y) {
    return x.before == y.before && x.action == y.action && x.block == y.block;
  }));
  SearchOptions onward = recomputing(0);
  onward.start = &step.plan;
  const PlannedStep next = make_plan(trace, budget, link, onward);
  RC_ASSERT(verify_plan(trace, next.plan, budget) == std::vector<std::string>{});
  RC_CLASSIFY(next.predicted.step_ms <= step.predicted.step_ms * 1.001, "starts as good as given");
  RC_CLASSIFY(count(step.plan, Action::kRematerialise) > 0, "plans that compute again");
  RC_CLASSIFY(count(step.plan, Action::kFinishOut) > 0, "plans that swap");
}

}  // namespace
}  // namespace lms::testing
