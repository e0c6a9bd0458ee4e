// The predicted step, in unit costs: lanes of 1 byte/ms, no latency, no tax, unless said otherwise.
// Drawings: a row a stream, a character a millisecond, '.' is waiting.

#include "plan/timing/timing.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/plan_words.h"

namespace lms {
namespace {

using testing::kFinishOut;
using testing::kStartIn;
using testing::kStartOut;
using testing::kUnit;

// w (4 bytes) is there before the step; a reads it, d writes it.
Trace four_operators() {
  TraceBuilder builder;
  const auto w = builder.existing(4);
  builder.run("a", {w}, {}, 2);
  builder.run("b", {}, {}, 5);
  builder.run("c", {}, {}, 5, 3);
  builder.run("d", {}, {w}, 1);
  return builder.build();
}

Plan plan_of(std::vector<Directive> directives, std::vector<TraceBlockId> absent = {}) {
  return {.directives = std::move(directives), .absent_at_start = std::move(absent)};
}

TEST(Timing, EmptyPlanTakesTheOperators) {
  const PlanTiming timing = time_plan(four_operators(), {}, kUnit);
  EXPECT_EQ(timing.step_ms, 13);
  EXPECT_EQ(timing.compute_ms, 13);
  EXPECT_EQ(timing.waited_ms, 0);
  EXPECT_EQ(timing.peak, 7);
}

TEST(Timing, CopiesThatHideCostNothing) {
  // compute aabbbbbcccccd
  // out       wwww
  // in             wwww       7 to 11, d at 12
  const auto timing = time_plan(
      four_operators(), plan_of({{1, kStartOut, 0}, {2, kFinishOut, 0}, {2, kStartIn, 0}}), kUnit);
  EXPECT_EQ(timing.step_ms, 13);
  EXPECT_EQ(timing.waited_ms, 0);
  EXPECT_EQ(timing.bytes_out, 4);
  EXPECT_EQ(timing.bytes_in, 4);
  EXPECT_EQ(timing.out_busy_ms, 4);
  EXPECT_EQ(timing.in_busy_ms, 4);
}

TEST(Timing, FirstUseWaitsForTheCopyIn) {
  // compute aabbbbbccccc....d
  // out       wwww
  // in                  wwww
  const auto timing = time_plan(
      four_operators(), plan_of({{1, kStartOut, 0}, {2, kFinishOut, 0}, {3, kStartIn, 0}}), kUnit);
  EXPECT_EQ(timing.step_ms, 17);
  EXPECT_EQ(timing.waited_ms, 4);
  EXPECT_EQ(timing.peak, 4) << "w and c's workspace never meet";
}

TEST(Timing, FinishOutWaitsForTheCopyOut) {
  // compute aa....bbbbbcccccd
  // out       wwww
  // in                 wwww
  const auto timing = time_plan(
      four_operators(), plan_of({{1, kStartOut, 0}, {1, kFinishOut, 0}, {2, kStartIn, 0}}), kUnit);
  EXPECT_EQ(timing.step_ms, 17);
  EXPECT_EQ(timing.waited_ms, 4);
}

TEST(Timing, LanesServeTheirQueuesInOrder) {
  // x and y (3 bytes each) leave after a; y is wanted back first, but queued second.
  // compute aa......bbb...c         c reads y: waits for x and y
  // out       xxxyyy
  // in              xxxyyy
  TraceBuilder builder;
  const auto x = builder.existing(3);
  const auto y = builder.existing(3);
  builder.run("a", {}, {x, y}, 2);
  builder.run("b", {}, {}, 3);
  builder.run("c", {y}, {}, 1);
  const auto timing = time_plan(builder.build(),
                                plan_of({{1, kStartOut, x},
                                         {1, kStartOut, y},
                                         {1, kFinishOut, y},
                                         {1, kFinishOut, x},
                                         {1, kStartIn, x},
                                         {1, kStartIn, y}}),
                                kUnit);
  EXPECT_EQ(timing.step_ms, 2 + 6 + 3 + 3 + 1);
  EXPECT_EQ(timing.waited_ms, 9);
}

TEST(Timing, CleanBlocksLeaveForNothing) {
  // x is never written: after the first step its copy stays valid.
  TraceBuilder builder;
  const auto x = builder.existing(8);
  builder.run("a", {x}, {}, 1);
  builder.run("b", {}, {}, 9);
  const auto timing = time_plan(
      builder.build(), plan_of({{1, kStartOut, x}, {1, kFinishOut, x}, {1, kStartIn, x}}), kUnit);
  EXPECT_EQ(timing.bytes_out, 0);
  EXPECT_EQ(timing.bytes_in, 8);
  EXPECT_EQ(timing.step_ms, 10);
}

TEST(Timing, WrittenBlocksAreCopiedAgain) {
  // compute a....b....c    written by b after it came in, so it leaves by copy twice
  // out      xx     xx
  // in         xx     xx
  TraceBuilder builder;
  builder.run("a", {}, {}, 1);
  const auto x = builder.result(2);
  builder.run("b", {}, {x}, 1);
  builder.run("c", {x}, {}, 1);
  builder.dies(x);
  const auto timing = time_plan(builder.build(),
                                plan_of({{1, kStartOut, x},
                                         {1, kFinishOut, x},
                                         {1, kStartIn, x},
                                         {2, kStartOut, x},
                                         {2, kFinishOut, x},
                                         {2, kStartIn, x}}),
                                kUnit);
  EXPECT_EQ(timing.bytes_out, 4);
  EXPECT_EQ(timing.step_ms, 11);
}

TEST(Timing, BothLanesAtOnceAreSlower) {
  // Alone 1 byte/ms, both at once 1/2. y (4) comes in while x (6) goes out.
  // compute a........bbb...   in: 4 bytes in 8 ms, until 9; out: 4 then, 2 more until 11
  //                           b (1 ms) runs from 9 to 10, waits for x until 11
  TraceBuilder builder;
  const auto x = builder.existing(6);
  const auto y = builder.existing(4);
  builder.run("a", {}, {x}, 1);
  builder.run("b", {}, {y}, 1);
  const Trace trace = builder.build();
  const LinkModel link{1, 1, 0.5, 0, 0, 0};
  // y leaves after b: 4 ms alone, from 11 to 15. x comes in from 15 to 21, met by the next step's
  // a.
  const auto timing = time_plan(trace,
                                plan_of({{1, kStartOut, x},
                                         {1, kStartIn, y},
                                         {2, kFinishOut, x},
                                         {2, kStartOut, y},
                                         {2, kFinishOut, y},
                                         {2, kStartIn, x}},
                                        {y}),
                                link);
  // Steady: a waits 6 for x, and then as above.
  EXPECT_EQ(timing.step_ms, 6 + 15);
  EXPECT_EQ(timing.out_busy_ms, 10 + 4);
  EXPECT_EQ(timing.in_busy_ms, 8 + 6);
}

TEST(Timing, BacklogIsMetByTheNextStep) {
  // w comes in at the step's end: the next step's a waits for what its beginning has not hidden.
  // compute z....abbb     z 1 ms, w (5) arrives 5 ms after the step's end
  TraceBuilder builder;
  const auto w = builder.existing(5);
  builder.run("z", {}, {}, 1);
  builder.run("a", {w}, {w}, 1);
  builder.run("b", {}, {}, 5);
  const auto timing = time_plan(
      builder.build(), plan_of({{2, kStartOut, w}, {3, kFinishOut, w}, {3, kStartIn, w}}), kUnit);
  EXPECT_EQ(timing.step_ms, 1 + 4 + 1 + 5);
  EXPECT_EQ(timing.waited_ms, 4);
  EXPECT_EQ(timing.in_busy_ms, 5);
}

TEST(Timing, CarriedBlocksKeepTheirCopies) {
  // g is born in b, comes in at the step's end, and is a's block in the next step.
  TraceBuilder builder;
  const auto old = builder.existing(3);
  builder.run("a", {old}, {}, 1);
  builder.dies(old);
  builder.run("b", {}, {}, 1);
  const auto g = builder.result(3);
  Trace trace = builder.build();
  trace.blocks[old].carried_from = g;
  const auto timing =
      time_plan(trace, plan_of({{2, kStartOut, g}, {2, kFinishOut, g}, {2, kStartIn, g}}), kUnit);
  EXPECT_EQ(timing.step_ms, 3 + 1 + 1 + 3) << "a waits for the copy in, the end for the copy out";
}

TEST(Timing, LatencyComesBeforeEveryCopy) {
  LinkModel link = kUnit;
  link.latency_ms = 0.5;
  const auto timing = time_plan(
      four_operators(), plan_of({{1, kStartOut, 0}, {1, kFinishOut, 0}, {3, kStartIn, 0}}), link);
  EXPECT_EQ(timing.step_ms, 13 + 4.5 + 4.5);
  EXPECT_EQ(timing.out_busy_ms, 4.5);
}

TEST(Timing, CopiesTaxTheComputationBesideThem) {
  // A byte out beside computation costs 0.5 ms of it: b and c (10 ms) lose 4 * 0.5.
  LinkModel link = kUnit;
  link.out_tax_ms_per_byte = 0.5;
  link.in_tax_ms_per_byte = 0.25;
  auto plan = plan_of({{1, kStartOut, 0}, {3, kFinishOut, 0}, {3, kStartIn, 0}});
  auto timing = time_plan(four_operators(), plan, link);
  EXPECT_EQ(timing.tax_ms, 2);
  EXPECT_EQ(timing.step_ms, 13 + 2 + 4) << "d waits for the copy in, which taxes nobody";
  EXPECT_EQ(timing.compute_ms, 13);
  plan.directives[1].before = plan.directives[2].before = 2;
  timing = time_plan(four_operators(), plan, link);
  // b: 4 ms at half speed, 3 more. c: 4 ms at 3/4, 2 more.
  EXPECT_EQ(timing.tax_ms, 2 + 1);
  EXPECT_EQ(timing.step_ms, 16);
}

TEST(Timing, ComputationCanStandStillBesideACopy) {
  LinkModel link = kUnit;
  link.out_tax_ms_per_byte = 2;
  const auto timing = time_plan(
      four_operators(), plan_of({{1, kStartOut, 0}, {3, kFinishOut, 0}, {3, kStartIn, 0}}), link);
  EXPECT_EQ(timing.tax_ms, 4) << "never slower than not at all";
}

TEST(Timing, RematerialisingRunsTheLineageAgain) {
  // x (6): made by a from w, written by b. Dropped after b, made again before d: 2 + 3 ms.
  TraceBuilder builder;
  const auto w = builder.existing(1);
  builder.run("a", {w}, {}, 2, 5);
  const auto x = builder.result(6);
  const auto y = builder.result(4);
  builder.dies(y);
  builder.run("b", {}, {x}, 3);
  builder.run("c", {}, {}, 4);
  builder.run("d", {x}, {}, 1);
  const auto timing = time_plan(
      builder.build(), plan_of({{2, Action::kDrop, x}, {3, Action::kRematerialise, x}}), kUnit);
  EXPECT_EQ(timing.step_ms, 15);
  EXPECT_EQ(timing.recomputed_ms, 5);
  EXPECT_EQ(timing.compute_ms, 15);
  EXPECT_EQ(timing.bytes_recomputed, 6);
  EXPECT_EQ(timing.peak, 16) << "w, x, y and a's workspace, twice";
}

TEST(Timing, GhostsAndCheaperReplays) {
  // x (4) dies in b, which makes y (8) of it; y is dropped beside c and comes back with the ghost.
  TraceBuilder builder;
  const auto w = builder.existing(1);
  builder.run("a", {w}, {}, 2);
  builder.repeatable(0.5);
  const auto x = builder.result(4);
  builder.run("b", {x}, {}, 3);
  builder.repeatable();
  const auto y = builder.result(8);
  builder.dies(x);
  builder.run("c", {}, {}, 4, 3);
  builder.run("d", {y}, {}, 1);
  const auto timing = time_plan(builder.build(),
                                plan_of({{2, Action::kDrop, y},
                                         {3, Action::kRematerialise, x},
                                         {3, Action::kRematerialise, y},
                                         {3, Action::kDrop, x}}),
                                kUnit, true);
  EXPECT_EQ(timing.recomputed_ms, 3.5);
  EXPECT_EQ(timing.step_ms, 10 + 3.5);
  EXPECT_EQ(timing.bytes_recomputed, 12);
  EXPECT_EQ(timing.operators[2].device, 1 + 3);
  EXPECT_EQ(timing.operators[3].device, 1 + 8);
  EXPECT_EQ(timing.peak, 13);
}

TEST(Timing, LineagesDoNotWaitForWhatTheySpare) {
  TraceBuilder builder;
  const auto w = builder.existing(4);
  builder.run("a", {}, {w}, 1);
  builder.spared(w);
  const auto x = builder.result(6);
  builder.run("b", {x}, {}, 9);
  const auto timing = time_plan(builder.build(),
                                plan_of({{1, Action::kDrop, x},
                                         {1, kStartOut, w},
                                         {1, kFinishOut, w},
                                         {1, kStartIn, w},
                                         {1, Action::kRematerialise, x}}),
                                kUnit);
  EXPECT_EQ(timing.step_ms, 1 + 4 + 1 + 9);
}

TEST(Timing, MemoryIsFreeWhenACopyInHasEnded) {
  TraceBuilder builder;
  builder.run("a", {}, {}, 1);
  const auto x = builder.result(4);
  builder.run("b", {}, {}, 1);
  builder.dies(x);
  const auto timing = time_plan(
      builder.build(), plan_of({{1, kStartOut, x}, {1, kFinishOut, x}, {1, kStartIn, x}}), kUnit);
  EXPECT_EQ(timing.step_ms, 1 + 4 + 4);
}

TEST(Timing, LineagesWaitForTheirInputs) {
  TraceBuilder builder;
  const auto w = builder.existing(4);
  builder.run("a", {w}, {}, 1);
  const auto x = builder.result(6);
  builder.run("b", {}, {}, 1);
  builder.run("c", {x}, {w}, 1);
  const auto timing = time_plan(builder.build(),
                                plan_of({{1, kStartOut, w},
                                         {1, Action::kDrop, x},
                                         {1, kFinishOut, w},
                                         {1, kStartIn, w},
                                         {2, Action::kRematerialise, x}}),
                                kUnit);
  EXPECT_EQ(timing.step_ms, 1 + 4 + 4 + 1 + 1);
}

TEST(Timing, Timeline) {
  const auto timing =
      time_plan(four_operators(),
                plan_of({{1, kStartOut, 0}, {2, kFinishOut, 0}, {3, kStartIn, 0}}), kUnit, true);
  ASSERT_EQ(timing.operators.size(), 4U);
  EXPECT_EQ(timing.operators[2].begin_ms, 7);
  EXPECT_EQ(timing.operators[2].end_ms, 12);
  EXPECT_EQ(timing.operators[2].device, 3);
  EXPECT_EQ(timing.operators[3].begin_ms, 16);
  EXPECT_EQ(timing.operators[3].waited_ms, 4);
  EXPECT_EQ(timing.operators[3].device, 4);
  ASSERT_EQ(timing.copies.size(), 2U);
  EXPECT_TRUE(timing.copies[0].out);
  EXPECT_EQ(timing.copies[0].begin_ms, 2);
  EXPECT_EQ(timing.copies[0].end_ms, 6);
  EXPECT_EQ(timing.copies[1].begin_ms, 12);
  EXPECT_EQ(timing.copies[1].end_ms, 16);
}

TEST(Timing, TimersKeepNothingOfEarlierPlans) {
  const Trace trace = four_operators();
  PlanTimer timer(trace, kUnit);
  const Plan plan = plan_of({{1, kStartOut, 0}, {1, kFinishOut, 0}, {2, kStartIn, 0}});
  EXPECT_EQ(timer.time(plan).step_ms, 17);
  EXPECT_EQ(timer.time({}).step_ms, 13);
  EXPECT_EQ(timer.time(plan, true).operators.size(), 4U);
  EXPECT_EQ(timer.time(plan).step_ms, 17);
}

}  // namespace
}  // namespace lms
