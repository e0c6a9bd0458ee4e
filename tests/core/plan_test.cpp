#include "plan/plan.h"

#include <gtest/gtest.h>

#include "core/plan_words.h"

namespace lms {
namespace {

using testing::kDrop;
using testing::kFinishOut;
using testing::kKeep;
using testing::kRematerialise;
using testing::kStartIn;
using testing::kStartOut;

// w (10) from before the step.   live
//   0 a  reads w, makes x (4)     14
//   1 b  makes y (8); y dies      22
//   2 c  reads x, writes w        14, workspace 2: 16
Trace three_operators() {
  TraceBuilder builder;
  const auto w = builder.existing(10);
  builder.run("a", {w}, {}, 1);
  const auto x = builder.result(4);
  builder.run("b", {}, {}, 1);
  const auto y = builder.result(8);
  builder.dies(y);
  builder.run("c", {x}, {w}, 1, 2);
  return builder.build();
}

// w leaves beside b: 4 + 8 = 12 there, and 16 is the most.
Plan good_plan() {
  Plan plan;
  plan.directives = {{0, kStartOut, 0}, {1, kFinishOut, 0}, {2, kStartIn, 0}};
  return plan;
}

void expect_first(const Plan& plan, Bytes budget, const std::string& text) {
  const auto notes = verify_plan(three_operators(), plan, budget);
  ASSERT_FALSE(notes.empty()) << text;
  EXPECT_EQ(notes.front(), text);
}

TEST(VerifyPlan, PlanThatFitsIsProven) {
  EXPECT_EQ(verify_plan(three_operators(), good_plan(), 16), std::vector<std::string>{});
}

TEST(VerifyPlan, EmptyPlanNeedsTheWholeStepInMemory) {
  EXPECT_TRUE(verify_plan(three_operators(), {}, 22).empty());
  expect_first({}, 21, "during operator 1: 22 bytes on the device, the budget is 21");
}

TEST(VerifyPlan, BudgetHoldsDuringOperatorsWithTheirWorkspace) {
  expect_first(good_plan(), 15, "during operator 2: 16 bytes on the device, the budget is 15");
}

TEST(VerifyPlan, BudgetHoldsBetweenOperators) {
  // w comes in before x leaves: 14 + 8 for a moment, though 18 would do during every operator.
  TraceBuilder builder;
  const auto w = builder.existing(10);
  const auto x = builder.existing(8);
  builder.run("a", {x}, {}, 1);
  builder.run("b", {w}, {}, 1);
  const Trace trace = builder.build();
  Plan plan;
  plan.absent_at_start = {w};
  plan.directives = {{0, kStartOut, x}, {1, kStartIn, w},   {1, kFinishOut, x},
                     {2, kStartOut, w}, {2, kFinishOut, w}, {2, kStartIn, x}};
  EXPECT_TRUE(verify_plan(trace, plan, 18).empty());
  EXPECT_FALSE(verify_plan(trace, plan, 10).empty());
  std::swap(plan.directives[1], plan.directives[2]);
  EXPECT_TRUE(verify_plan(trace, plan, 10).empty());
}

TEST(VerifyPlan, AbsentBlockIsRead) {
  Plan plan = good_plan();
  plan.directives[2].before = 3;
  expect_first(plan, 100, "operator 2 (c): block 0 is written, but absent");
}

TEST(VerifyPlan, HalfCopiedBlockIsWritten) {
  Plan plan;
  plan.directives = {{1, kStartOut, 0}, {3, kFinishOut, 0}, {3, kStartIn, 0}};
  expect_first(plan, 100, "operator 2 (c): block 0 is written while it is copied out");
}

TEST(VerifyPlan, HalfCopiedBlockMayBeRead) {
  Plan plan;
  plan.directives = {{0, kStartOut, 0}, {2, kFinishOut, 0}, {2, kStartIn, 0}};
  EXPECT_TRUE(verify_plan(three_operators(), plan, 22).empty());
}

TEST(VerifyPlan, BlockDiesHalfCopied) {
  TraceBuilder builder;
  builder.run("a", {}, {}, 1);
  const auto x = builder.result(1);
  builder.run("b", {x}, {}, 1);
  builder.dies(x);
  Plan plan;
  plan.directives = {{1, kStartOut, x}};
  EXPECT_FALSE(verify_plan(builder.build(), plan, 100).empty());
}

TEST(VerifyPlan, BlocksFromBeforeTheStepHaveNoLineage) {
  Plan plan;
  plan.directives = {{1, kDrop, 0}};
  expect_first(plan, 100, "operator 1 (b): block 0 is dropped, but has no lineage");
  plan.directives = {{1, kRematerialise, 0}};
  expect_first(plan, 100, "operator 1 (b): block 0 is rematerialised, but was not dropped");
}

// w (10) from before the step.   live
//   0 a  reads w, makes x (4)     16, workspace 2
//   1 b  writes x                 14
//   2 c  makes y (8); y dies      22
//   3 d  reads x                  14
struct Recomputed {
  Recomputed() {
    TraceBuilder builder;
    w = builder.existing(10);
    builder.run("a", {w}, {}, 1, 2);
    x = builder.result(4);
    builder.run("b", {}, {x}, 1);
    builder.run("c", {}, {}, 1);
    y = builder.result(8);
    builder.dies(y);
    builder.run("d", {x}, {}, 1);
    trace = builder.build();
    for (TraceOperator& op : trace.operators) op.repeatable = true;
    plan.directives = {{2, kDrop, x}, {3, kRematerialise, x}};
  }
  void expect_first(Bytes budget, const std::string& text) const {
    const auto notes = verify_plan(trace, plan, budget);
    ASSERT_FALSE(notes.empty()) << text;
    EXPECT_EQ(notes.front(), text);
  }

  TraceBlockId w = 0;
  TraceBlockId x = 0;
  TraceBlockId y = 0;
  Trace trace;
  Plan plan;
};

TEST(VerifyPlan, DroppedBlocksComeBackByTheirLineages) {
  Recomputed lineages;
  EXPECT_EQ(verify_plan(lineages.trace, lineages.plan, 18), std::vector<std::string>{});
  lineages.expect_first(17, "during operator 2: 18 bytes on the device, the budget is 17");
  lineages.plan.directives.pop_back();
  lineages.expect_first(18, "operator 3 (d): block 1 is read, but absent");
}

TEST(VerifyPlan, LineagesNeedTheirWorkspaceAndOtherResults) {
  Recomputed lineages;
  lineages.trace.operators[0].workspace = 6;
  EXPECT_TRUE(verify_plan(lineages.trace, lineages.plan, 20).empty());
  lineages.plan.directives[1].before = 4;
  lineages.trace.operators[3].reads.clear();
  lineages.trace.blocks.push_back({3, true});
  lineages.trace.operators[3].allocs.push_back(3);
  // At the end: w, x, z; and the workspace while x is made again.
  EXPECT_TRUE(verify_plan(lineages.trace, lineages.plan, 23).empty());
  lineages.expect_first(22, "before operator 4: 23 bytes on the device, the budget is 22");
}

TEST(VerifyPlan, LineagesMustBeRepeatable) {
  Recomputed lineages;
  lineages.trace.operators[1].repeatable = false;
  lineages.expect_first(100,
                        "operator 3 (d): block 1 cannot be rematerialised: operator 1 (b) is not "
                        "repeatable");
}

TEST(VerifyPlan, LineagesNeedTheirInputs) {
  Recomputed lineages;
  lineages.plan.directives = {
      {2, kDrop, 1}, {2, kStartOut, 0}, {2, kFinishOut, 0}, {3, kRematerialise, 1}};
  lineages.expect_first(100,
                        "operator 3 (d): block 1 cannot be rematerialised: operator 0 (a) reads "
                        "block 0, which is absent");
  lineages.plan.directives = {{2, kDrop, 1},
                              {2, kStartOut, 0},
                              {2, kFinishOut, 0},
                              {3, kStartIn, 0},
                              {3, kRematerialise, 1}};
  EXPECT_TRUE(verify_plan(lineages.trace, lineages.plan, 100).empty());
}

TEST(VerifyPlan, LineagesNeedTheContentsOfThen) {
  Recomputed lineages;
  lineages.trace.operators[2].writes = {lineages.w};
  lineages.expect_first(100,
                        "operator 3 (d): block 1 cannot be rematerialised: operator 0 (a) reads "
                        "block 0, which has changed since");
}

TEST(VerifyPlan, LineagesWriteNothingElse) {
  Recomputed lineages;
  lineages.trace.operators[1].writes = {lineages.x, lineages.w};
  const auto notes = verify_plan(lineages.trace, lineages.plan, 100);
  ASSERT_EQ(notes.size(), 3U) << "and a's w has changed since, and so d reads an absent block";
  EXPECT_EQ(notes[1],
            "operator 3 (d): block 1 cannot be rematerialised: operator 1 (b) would write block 0 "
            "again");
}

TEST(VerifyPlan, SparedBlocksAreLeftAloneByLineages) {
  Recomputed lineages;  // b writes x and w, and d writes w again: no matter, if b spares w
  TraceOperator& b = lineages.trace.operators[1];
  b.writes = {lineages.x, lineages.w};
  b.reads = {lineages.w};
  lineages.trace.operators[0].reads.clear();
  EXPECT_FALSE(verify_plan(lineages.trace, lineages.plan, 100).empty());
  b.spared = {lineages.w};
  EXPECT_TRUE(verify_plan(lineages.trace, lineages.plan, 100).empty());
  lineages.plan.directives = {
      {2, kDrop, 1}, {2, kStartOut, 0}, {2, kFinishOut, 0}, {3, kRematerialise, 1}};
  lineages.trace.operators.resize(3);
  lineages.plan.directives.push_back({3, kStartIn, 0});
  EXPECT_TRUE(verify_plan(lineages.trace, lineages.plan, 100).empty()) << "nor where it is";
}

TEST(VerifyPlan, SparedWritesCannotBeRepeated) {
  Recomputed lineages;
  lineages.trace.operators[1].spared = {lineages.x};
  lineages.expect_first(
      100,
      "operator 3 (d): block 1 cannot be rematerialised: operator 1 (b) spares it "
      "when it runs again");
  Recomputed
      others;  // what has read w before it was written, though spared, has read something else
  others.trace.operators[2].writes = {others.w};
  others.trace.operators[2].spared = {others.w};
  others.expect_first(100,
                      "operator 3 (d): block 1 cannot be rematerialised: operator 0 (a) reads "
                      "block 0, which has changed since");
}

// w (10) from before the step.
//   0 a  reads w, makes x (4)
//   1 b  reads x, makes y (8); x dies
//   2 c  makes z (16); z dies
//   3 d  reads y
struct Ghosts : Recomputed {
  Ghosts() {
    TraceBuilder builder;
    w = builder.existing(10);
    builder.run("a", {w}, {}, 1);
    x = builder.result(4);
    builder.run("b", {x}, {}, 1);
    y = builder.result(8);
    builder.dies(x);
    builder.run("c", {}, {}, 1);
    builder.dies(builder.result(16));
    builder.run("d", {y}, {}, 1);
    trace = builder.build();
    for (TraceOperator& op : trace.operators) op.repeatable = true;
    plan.directives = {
        {2, kDrop, y}, {3, kRematerialise, x}, {3, kRematerialise, y}, {3, kDrop, x}};
  }
};

TEST(VerifyPlan, GhostsServeAsInputs) {
  Ghosts ghosts;
  EXPECT_EQ(verify_plan(ghosts.trace, ghosts.plan, 26), std::vector<std::string>{});
  ghosts.expect_first(25, "during operator 2: 26 bytes on the device, the budget is 25");
  auto& list = ghosts.plan.directives;
  // Twice, the second time until the end.
  list.insert(list.end(), {{3, kDrop, ghosts.y},
                           {3, kRematerialise, ghosts.x},
                           {3, kRematerialise, ghosts.y},
                           {4, kDrop, ghosts.x}});
  EXPECT_EQ(verify_plan(ghosts.trace, ghosts.plan, 26), std::vector<std::string>{});
  std::erase_if(list, [&](const Directive& d) { return d.before == 3 && d.block == ghosts.x; });
  ghosts.expect_first(100,
                      "operator 3 (d): block 2 cannot be rematerialised: operator 1 (b) reads "
                      "block 1, which is absent");
}

TEST(VerifyPlan, GhostsCountAndGo) {
  Ghosts ghosts;
  ghosts.plan.directives[1].before = 2;
  ghosts.expect_first(29, "during operator 2: 30 bytes on the device, the budget is 29");
  ghosts.plan.directives.pop_back();
  ghosts.expect_first(30, "after the last operator: block 1 is still there as a ghost");
}

TEST(VerifyPlan, GhostsCanOnlyBeDropped) {
  Ghosts ghosts;
  for (const Action action : {kKeep, kStartOut, kFinishOut, kStartIn, kRematerialise}) {
    ghosts.plan.directives[2] = {3, action, ghosts.x};
    ghosts.expect_first(100, "operator 3 (d): block 1 is a ghost, which can only be dropped");
  }
  ghosts.plan.directives = {{3, kDrop, ghosts.x}};
  ghosts.expect_first(100, "operator 3 (d): block 1 is not alive at a directive for it");
}

TEST(VerifyPlan, GhostsNeedARightLineage) {
  Ghosts ghosts;
  ghosts.trace.operators[0].repeatable = false;
  ghosts.expect_first(100,
                      "operator 3 (d): block 1 cannot be rematerialised: operator 0 (a) is not "
                      "repeatable");
  ghosts = {};
  ghosts.trace.operators[2].writes = {ghosts.w};
  ghosts.expect_first(100,
                      "operator 3 (d): block 1 cannot be rematerialised: operator 0 (a) reads "
                      "block 0, which has changed since");
  ghosts = {};
  ghosts.trace.blocks[ghosts.x].movable = false;
  ghosts.expect_first(
      100, "operator 3 (d): block 1 is rematerialised after its end, but is not movable");
  ghosts = {};
  ghosts.trace.operators[3].frees = {ghosts.w};
  ghosts.plan.directives = {{4, kRematerialise, ghosts.w}};
  ghosts.expect_first(
      100, "after the last operator: block 0 is rematerialised after its end, but has no lineage");
}

TEST(VerifyPlan, DroppedBlocksAreNotBelow) {
  Recomputed lineages;
  lineages.plan.directives = {{2, kDrop, 1}, {3, kStartIn, 1}};
  lineages.expect_first(100, "operator 3 (d): block 1 starts in, but is not absent");
  lineages.plan.directives = {{2, kStartOut, 1}, {2, kDrop, 1}};
  lineages.expect_first(100, "operator 2 (c): block 1 is dropped while it is copied out");
  lineages.plan.directives = {{2, kDrop, 1}, {2, kDrop, 1}};
  lineages.expect_first(100, "operator 2 (c): block 1 is dropped, but is not on the device");
  lineages.plan.directives = {{2, kKeep, 1}, {2, kDrop, 1}};
  lineages.expect_first(100, "operator 2 (c): block 1 is dropped, but is kept");
  lineages.plan.directives = {{2, kRematerialise, 1}};
  lineages.expect_first(100, "operator 2 (c): block 1 is rematerialised, but was not dropped");
}

TEST(VerifyPlan, UnmovableBlocksStay) {
  Recomputed lineages;
  lineages.trace.blocks[lineages.x].movable = false;
  lineages.expect_first(100, "operator 2 (c): block 1 is dropped, but is not movable");
  lineages.plan.directives = {{2, kStartOut, 1}};
  lineages.expect_first(100, "operator 2 (c): block 1 starts out, but is not movable");
  lineages.trace.blocks[lineages.w].movable = false;
  lineages.plan = {.absent_at_start = {lineages.w}};
  lineages.expect_first(100, "block 0 cannot be absent when the step begins");
}

// old (4) dies in a; b makes g (4), which is the next step's old.
struct CarriedOver {
  CarriedOver() {
    TraceBuilder builder;
    const auto old = builder.existing(4);
    builder.run("a", {old}, {}, 1);
    builder.dies(old);
    builder.run("b", {}, {}, 1);
    trace = builder.result(4) == 1 ? builder.build() : Trace{};
    trace.blocks[old].carried_from = 1;
  }
  Trace trace;
};

TEST(VerifyPlan, CarriedBlocksAreAsTheNextStepFindsThem) {
  const Trace trace = CarriedOver().trace;
  EXPECT_TRUE(verify_plan(trace, {}, 4).empty());
  Plan plan{.directives = {{2, kStartOut, 1}, {2, kFinishOut, 1}}};
  auto notes = verify_plan(trace, plan, 4);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0],
            "after the last operator: block 1 was on the device when the step began, and is "
            "absent");
  plan.absent_at_start = {0};
  plan.directives.insert(plan.directives.begin(), {0, kStartIn, 0});
  EXPECT_TRUE(verify_plan(trace, plan, 4).empty());
  plan.directives = {{0, kStartIn, 0}, {2, kDrop, 1}};
  notes = verify_plan(trace, plan, 4);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0], "after the last operator: block 1 is dropped, and the next step needs it");
}

TEST(VerifyPlan, BlocksThatDieLeaveNothingForTheNextStep) {
  Trace trace = CarriedOver().trace;
  trace.blocks[0].carried_from = kNoBlock;
  const Plan plan{.directives = {{0, kStartIn, 0}}, .absent_at_start = {0}};
  const auto notes = verify_plan(trace, plan, 4);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0],
            "after the last operator: block 0 was absent when the step began, and is not alive at "
            "its end");
}

TEST(VerifyPlan, KeptBlockDoesNotLeave) {
  Plan plan = good_plan();
  plan.directives.insert(plan.directives.begin(), {0, kKeep, 0});
  expect_first(plan, 100, "operator 0 (a): block 0 starts out, but is kept");
}

TEST(VerifyPlan, DirectivesForBlocksThatAreNotAlive) {
  Plan plan;
  plan.directives = {{1, kStartOut, 2}};
  expect_first(plan, 100, "operator 1 (b): block 2 is not alive at a directive for it");
  plan.directives = {{2, kStartOut, 2}};
  expect_first(plan, 100, "operator 2 (c): block 2 is not alive at a directive for it");
  plan.directives = {{0, kKeep, 77}};
  expect_first(plan, 100, "operator 0 (a): block 77 is not alive at a directive for it");
}

TEST(VerifyPlan, DirectivesOutOfOrder) {
  Plan plan = good_plan();
  std::swap(plan.directives[0], plan.directives[1]);
  expect_first(plan, 100, "operator 1 (b): block 0 finishes a copy that was not started");
  plan.directives = {{4, kKeep, 0}};
  expect_first(plan, 100, "directives lie beyond the end of the step");
}

TEST(VerifyPlan, StepEndsAsItBegan) {
  Plan plan;
  plan.directives = {{3, kStartOut, 0}, {3, kFinishOut, 0}};
  expect_first(plan, 100,
               "after the last operator: block 0 was on the device when the step began, and is "
               "absent");
  plan = {};
  plan.absent_at_start = {0};
  plan.directives = {{0, kStartIn, 0}};
  expect_first(plan, 100,
               "after the last operator: block 0 was absent when the step began, and is on the "
               "device");
  plan.directives = {{0, kStartIn, 0}, {3, kStartOut, 0}, {3, kFinishOut, 0}};
  EXPECT_TRUE(verify_plan(three_operators(), plan, 22).empty());
  plan.directives.pop_back();
  expect_first(plan, 100, "after the last operator: block 0 is still being copied out");
}

TEST(VerifyPlan, AbsentAtStartMustBeFromBeforeTheStep) {
  Plan plan;
  plan.absent_at_start = {1};
  expect_first(plan, 100, "block 1 cannot be absent when the step begins");
  plan.absent_at_start = {0, 0};
  expect_first(plan, 100, "block 0 cannot be absent when the step begins");
}

TEST(VerifyPlan, WhatItDoesNotUnderstand) {
  Plan plan;
  plan.version = kPlanVersion + 1;
  expect_first(plan, 100, "the plan's version is not understood");
  Trace trace = three_operators();
  trace.operators[0].reads = {9};
  EXPECT_FALSE(verify_plan(trace, {}, 100).empty());
}

}  // namespace
}  // namespace lms
