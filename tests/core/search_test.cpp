#include "plan/search.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "core/plan_random.h"
#include "core/plan_words.h"

namespace lms::testing {
namespace {

SearchOptions rounds(std::int64_t count) { return {.seconds = 60, .rounds = count}; }

// x (4 bytes) idles while b computes for 20 ms; z needs its room.
Trace idle_block() {
  TraceBuilder builder;
  builder.run("a", {}, {}, 5);
  const auto x = builder.result(4);
  builder.run("b", {}, {}, 20);
  builder.run("z", {}, {}, 1, 8);
  builder.run("c", {}, {}, 20);
  builder.run("d", {x}, {}, 5);
  builder.dies(x);
  return builder.build();
}

TEST(Search, WhatFitsStaysInMemory) {
  const Trace trace = idle_block();
  const PlannedStep step = make_plan(trace, 12, kUnit, rounds(10));
  EXPECT_TRUE(step.plan.directives.empty());
  EXPECT_EQ(step.predicted.step_ms, 51);
}

TEST(Search, CopiesHideBehindComputation) {
  // compute aaaaabbbbbbbbbbbbbbbbbbbbzccccccccccccccccccccddddd
  // out          xxxx
  // in                                        (any time after z, done before d)
  const Trace trace = idle_block();
  const PlannedStep step = make_plan(trace, 8, kUnit, rounds(10));
  EXPECT_EQ(verify_plan(trace, step.plan, 8), std::vector<std::string>{});
  EXPECT_EQ(step.predicted.step_ms, 51);
  EXPECT_EQ(step.predicted.bytes_out, 4);
  EXPECT_EQ(step.predicted.bytes_in, 4);
}

TEST(Search, WeightsAndOptimizerStateMayBeAwayOverTheStepsEnd) {
  // m (6 bytes) is used in the middle alone; a at the beginning and e at the end need its room.
  TraceBuilder builder;
  const auto m = builder.existing(6);
  builder.run("a", {}, {}, 10, 6);
  builder.run("b", {}, {}, 10);
  builder.run("c", {m}, {m}, 10);
  builder.run("d", {}, {}, 10);
  builder.run("e", {}, {}, 10, 6);
  const Trace trace = builder.build();
  const PlannedStep step = make_plan(trace, 6, kUnit, rounds(10));
  EXPECT_EQ(verify_plan(trace, step.plan, 6), std::vector<std::string>{});
  EXPECT_EQ(step.plan.absent_at_start, std::vector<TraceBlockId>{m});
  EXPECT_EQ(step.predicted.step_ms, 50);
}

TEST(Search, LongIdleBlocksGoFirst) {
  // w idles in every gap and would have to move thrice; x once.
  TraceBuilder builder;
  const auto w = builder.existing(4);
  builder.run("a", {w}, {}, 1);
  const auto x = builder.result(4);
  for (int i = 0; i < 3; ++i) {
    builder.run("big", {}, {}, 1, 8);
    builder.run("use", {w}, {w}, 1);
  }
  builder.run("z", {x}, {}, 1);
  builder.dies(x);
  const PlannedStep step = make_plan(builder.build(), 12, kUnit, rounds(100));
  EXPECT_EQ(step.predicted.bytes_out, 4);
  EXPECT_EQ(step.predicted.bytes_in, 4);
}

TEST(Search, ReadOnlyBlocksLeaveForNothing) {
  // The batch x and the activation y could both go. x need not be copied out.
  TraceBuilder builder;
  const auto x = builder.existing(4);
  builder.run("a", {x}, {}, 1);
  const auto y = builder.result(4);
  builder.run("big", {}, {}, 1, 8);
  builder.run("b", {x, y}, {}, 1);
  builder.dies(y);
  const PlannedStep step = make_plan(builder.build(), 12, kUnit, rounds(20));
  EXPECT_EQ(step.predicted.bytes_out, 0);
  EXPECT_EQ(step.predicted.bytes_in, 4);
}

TEST(Search, BudgetsThatCannotWorkNameTheOperator) {
  const Trace trace = idle_block();
  try {
    make_plan(trace, 7, kUnit, rounds(1));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(),
                 "operator 2 (z) needs 8 B at one time, with all else moved away; the budget is "
                 "7 B, at least 8 bytes would work");
  }
}

TEST(Search, UnmovableBlocksCount) {
  Trace trace = idle_block();
  trace.blocks[0].movable = false;
  EXPECT_THROW(make_plan(trace, 11, kUnit, rounds(1)), OutOfMemory);
  EXPECT_TRUE(make_plan(trace, 12, kUnit, rounds(1)).plan.directives.empty());
}

TEST(Search, InconsistentTracesAreRefused) {
  Trace trace = idle_block();
  trace.operators[0].reads = {9};
  EXPECT_THROW(make_plan(trace, 8, kUnit), Error);
}

bool same(const Plan& a, const Plan& b) {
  return a.absent_at_start == b.absent_at_start &&
         std::ranges::equal(a.directives, b.directives, [](const auto& x, const auto& y) {
           return x.before == y.before && x.action == y.action && x.block == y.block;
         });
}

/// The least budget that make_plan takes, by bisection.
Bytes least_planned(const Trace& trace) {
  Bytes low = 0;
  Bytes high = peak(trace);
  while (low < high) {
    const Bytes middle = (low + high) / 2;
    try {
      make_plan(trace, middle, kUnit, rounds(0));
      high = middle;
    } catch (const OutOfMemory&) {
      low = middle + 1;
    }
  }
  return low;
}

/// What each operator must have on the device whatever moves: no plan can do with less.
Bytes needed(const Trace& trace) {
  Bytes most = 0;
  for (const TraceOperator& op : trace.operators) {
    Bytes sum = op.workspace;
    for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) {
      const bool used = std::ranges::count(op.reads, id) + std::ranges::count(op.writes, id) +
                            std::ranges::count(op.allocs, id) >
                        0;
      if (used) sum += trace.blocks[id].bytes;
    }
    most = std::max(most, sum);
  }
  return most;
}

RandomTraceOptions larger() {
  return {.existing = 6, .operators = 20, .results = 2, .repeatable = 50};
}

RC_GTEST_PROP(SearchProperty, PlansAreProven, ()) {
  const Trace trace = random_trace(larger());
  const Bytes floor = least_planned(trace);
  const Bytes budget = floor + upto(static_cast<int>(peak(trace) - floor));
  const LinkModel link{1, 2, 0.8, 0.125, 0.0625, 0.125};
  const PlannedStep step = make_plan(trace, budget, link, rounds(30));
  RC_ASSERT(verify_plan(trace, step.plan, budget) == std::vector<std::string>{});
  RC_ASSERT(step.predicted.peak <= budget);
  RC_ASSERT(step.predicted.step_ms >= computation(trace) - 1e-9);
  RC_ASSERT(step.predicted.step_ms == time_plan(trace, step.plan, link).step_ms);
  RC_ASSERT(same(step.plan, make_plan(trace, budget, link, rounds(30)).plan));
  RC_CLASSIFY(!step.plan.directives.empty(), "plans that move something");
  RC_CLASSIFY(!step.plan.absent_at_start.empty(), "plans with blocks away over the step's end");
}

RC_GTEST_PROP(SearchProperty, FloorIsWhatOperatorsNeed, ()) {
  Trace trace = random_trace(larger());
  const Bytes floor = least_planned(trace);
  RC_ASSERT(floor >= needed(trace));
  if (floor > 0) {
    try {
      make_plan(trace, floor - 1, kUnit, rounds(0));
      RC_FAIL("it found a plan");
    } catch (const OutOfMemory& error) {
      RC_ASSERT(std::string(error.what()).find("at least " + std::to_string(floor) + " bytes") !=
                std::string::npos);
    }
  }
  // With nothing that must stay, the operators' needs are all there is. What dies in one step and
  // is there again in the next is made between the steps, so it must be there at the beginning;
  // what no operator uses has no gaps.
  for (TraceBlock& block : trace.blocks) {
    block.movable = true;
    block.carried_from = kNoBlock;
  }
  for (TraceOperator& op : trace.operators) {
    std::erase_if(op.frees, [&](TraceBlockId id) { return !trace.blocks[id].born_in_step; });
  }
  TraceOperator& first = trace.operators.front();
  for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) {
    if (!trace.blocks[id].born_in_step && std::ranges::count(first.reads, id) == 0) {
      first.reads.push_back(id);
    }
  }
  RC_ASSERT(least_planned(trace) == needed(trace));
}

}  // namespace
}  // namespace lms::testing
