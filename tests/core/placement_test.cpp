#include "plan/place/placement.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/plan_maker.h"
#include "core/plan_random.h"
#include "core/plan_words.h"
#include "placement_random.h"

namespace lms {
namespace {

using testing::joined;
using testing::kAmple;

using Addresses = std::vector<std::vector<Bytes>>;
using AtStart = std::vector<std::pair<TraceBlockId, Bytes>>;

/// Places in units (alignment 1) and expects the placement to hold.
Placement placed(const Trace& trace, const Plan& plan, Bytes alignment = 1) {
  EXPECT_EQ(joined(verify_plan(trace, plan, kAmple)), "");
  Placement placement = place(trace, plan, alignment, 0.05);
  EXPECT_EQ(joined(verify_placement(trace, plan, placement, alignment)), "");
  EXPECT_GE(placement.bytes, placement.lower_bound);
  return placement;
}

TEST(Placement, ReusesWhatWasFreed) {
  TraceBuilder builder;
  builder.run("a", {}, {}, 1);
  const auto a = builder.result(10);
  builder.run("b", {a}, {}, 1);
  const auto b = builder.result(5);
  builder.dies(a);
  builder.run("c", {b}, {}, 1);
  builder.result(10);
  const Trace trace = builder.build();
  const Placement placement = placed(trace, {});
  EXPECT_EQ(placement.lower_bound, 15);
  EXPECT_EQ(placement.bytes, 15);
  EXPECT_EQ(placement.allocations[0][0], placement.allocations[2][0]);
  EXPECT_TRUE(placement.at_start.empty());
}

TEST(Placement, TemporariesShareWhatTheyDoNotHoldAtOnce) {
  // Number 0 lives until number 1 and the result (2) are there; 3 comes after it has gone.
  TraceBuilder builder;
  builder.run("a", {}, {}, 1, 12);
  builder.result(4);
  Trace trace = builder.build();
  trace.operators[0].temporaries = {{5, 0, 3}, {2, 1, 4}, {5, 3, 4}};
  const Placement placement = placed(trace, {});
  ASSERT_EQ(placement.allocations[0].size(), 4U);
  EXPECT_EQ(placement.bytes, 11);
  EXPECT_EQ(placement.allocations[0][0], placement.allocations[0][3]);
}

TEST(Placement, KeepsAWorkspaceFreeWhereNoTemporariesAreRecorded) {
  TraceBuilder builder;
  const auto w = builder.existing(10);
  builder.run("a", {w}, {}, 1, 7);
  builder.result(3);
  Trace trace = builder.build();
  Placement placement = placed(trace, {});
  EXPECT_EQ(placement.bytes, 20);
  placement.bytes = 19;
  EXPECT_NE(joined(verify_placement(trace, {}, placement, 1)), "");
}

TEST(Placement, WhatLeavesMakesRoomForWhatComesBeforeTheSameOperator) {
  TraceBuilder builder;
  const auto a = builder.existing(10);
  const auto b = builder.existing(10);
  builder.run("a", {a}, {}, 1);
  builder.run("b", {b}, {}, 1);
  const Trace trace = builder.build();
  const Plan plan{.directives = {{0, Action::kStartOut, a},
                                 {1, Action::kFinishOut, a},
                                 {1, Action::kStartIn, b},
                                 {1, Action::kStartOut, b},
                                 {2, Action::kFinishOut, b},
                                 {2, Action::kStartIn, a}},
                  .absent_at_start = {b}};
  const Placement placement = placed(trace, plan);
  EXPECT_EQ(placement.bytes, 10);
  EXPECT_EQ(placement.arrivals,
            (std::vector<Bytes>{kNoAddress, kNoAddress, 0, kNoAddress, kNoAddress, 0}));
  EXPECT_EQ(placement.at_start, (AtStart{{a, 0}}));
}

TEST(Placement, OfTwoDirectivesTheOneThatGivesMustComeFirst) {
  TraceBuilder builder;
  const auto a = builder.existing(10);
  const auto b = builder.existing(10);
  builder.run("a", {a}, {}, 1);
  builder.run("b", {b}, {}, 1);
  const Trace trace = builder.build();
  const Plan plan{.directives = {{0, Action::kStartOut, a},
                                 {1, Action::kStartIn, b},
                                 {1, Action::kFinishOut, a},
                                 {1, Action::kStartOut, b},
                                 {2, Action::kFinishOut, b},
                                 {2, Action::kStartIn, a}},
                  .absent_at_start = {b}};
  EXPECT_EQ(placed(trace, plan).bytes, 20);
}

TEST(Placement, AStayOverTheEndOfTheStepKeepsItsAddress) {
  // w is away in the middle, where x needs the room; y and z want other addresses before and after.
  TraceBuilder builder;
  const auto w = builder.existing(10);
  builder.run("a", {w}, {}, 1);
  const auto y = builder.result(3);
  builder.dies(y);
  builder.run("b", {}, {}, 1);
  const auto x = builder.result(12);
  builder.dies(x);
  builder.run("c", {w}, {}, 1);
  const auto z = builder.result(2);
  builder.dies(z);
  const Trace trace = builder.build();
  const Plan plan{.directives = {{1, Action::kStartOut, w},
                                 {1, Action::kFinishOut, w},
                                 {2, Action::kStartIn, w}}};
  Placement placement = placed(trace, plan);
  EXPECT_EQ(placement.bytes, 13);
  EXPECT_EQ(placement.at_start, (AtStart{{w, placement.arrivals[2]}}));
  placement.bytes = 40;
  placement.arrivals[2] = 20;
  EXPECT_NE(joined(verify_placement(trace, plan, placement, 1)), "");
}

/// A step that makes the block `carried` is when the next step begins.
Trace carrying(bool overlap) {
  TraceBuilder builder;
  const auto carried = builder.existing(10);
  builder.run("a", {carried}, {}, 1);
  if (!overlap) builder.dies(carried);
  builder.run("b", {}, {}, 1);
  const auto fresh = builder.result(10);
  if (overlap) builder.dies(carried);
  builder.run("c", {fresh}, {}, 1);
  const auto other = builder.result(10);
  builder.dies(other);
  Trace trace = builder.build();
  trace.blocks[carried].carried_from = fresh;
  return trace;
}

TEST(Placement, ACarriedBlockIsWhereTheStepBeforeLeftIt) {
  const Trace trace = carrying(false);
  Placement placement = placed(trace, {});
  EXPECT_EQ(placement.bytes, 20);
  EXPECT_EQ(placement.at_start[0].second, placement.allocations[1][0]);
  EXPECT_TRUE(placement.taking_turns.empty());
  placement.at_start[0].second = placement.allocations[2][0];
  EXPECT_NE(joined(verify_placement(trace, {}, placement, 1)), "");
}

TEST(Placement, ACarriedBlockThatMeetsItsSuccessorTakesTurnsWithIt) {
  const Trace trace = carrying(true);
  Placement placement = placed(trace, {});
  EXPECT_EQ(placement.lower_bound, 20);
  EXPECT_EQ(placement.bytes, 30);
  EXPECT_EQ(placement.taking_turns, (std::vector<TraceBlockId>{0}));
  EXPECT_NE(placement.at_start[0].second, placement.allocations[1][0]);
  // In the first step the place of the old block would be free, in the second it is the new one's.
  Placement wrong = placement;
  wrong.allocations[2][0] = placement.at_start[0].second;
  EXPECT_NE(joined(verify_placement(trace, {}, wrong, 1)), "");
  wrong = placement;
  wrong.taking_turns.clear();
  EXPECT_NE(joined(verify_placement(trace, {}, wrong, 1)), "");
}

TEST(Placement, AlignsSizesAndAddresses) {
  TraceBuilder builder;
  const auto w = builder.existing(100);
  builder.run("a", {w}, {}, 1);
  builder.result(513);
  const Trace trace = builder.build();
  const Placement placement = placed(trace, {}, 512);
  EXPECT_EQ(placement.lower_bound, 1536);
  EXPECT_EQ(placement.bytes, 1536);
}

/// Forward through `layers` layers that keep their result, and backward, with a gradient that dies
/// after the next layer's.
Trace training(int layers) {
  TraceBuilder builder;
  std::vector<TraceBlockId> weights;
  weights.reserve(static_cast<std::size_t>(layers));
  for (int i = 0; i < layers; ++i) weights.push_back(builder.existing(1000 + 37 * i));
  std::vector<TraceBlockId> kept;
  for (int i = 0; i < layers; ++i) {
    std::vector<TraceBlockId> reads{weights[static_cast<std::size_t>(i)]};
    if (i > 0) reads.push_back(kept.back());
    builder.run("forward", reads, {}, 1, 300 + 100 * (i % 7));
    kept.push_back(builder.result(2000 + 500 * (i * i % 5)));
  }
  TraceBlockId gradient = 0;
  for (int i = layers; i-- > 0;) {
    const auto at = static_cast<std::size_t>(i);
    std::vector<TraceBlockId> reads{weights[at], kept[at]};
    if (i + 1 < layers) reads.push_back(gradient);
    builder.run("backward", reads, {weights[at]}, 2, 500 + 100 * (i % 3));
    const auto next = builder.result(2000 + 500 * (i * i % 5));
    builder.dies(kept[at]);
    if (i + 1 < layers) builder.dies(gradient);
    gradient = next;
  }
  builder.dies(gradient);
  return builder.build();
}

TEST(Placement, AStepInMemoryTakesNoMoreThanTheLowerBound) {
  const Trace trace = training(300);
  const Placement placement = placed(trace, {});
  EXPECT_EQ(placement.bytes, placement.lower_bound);
}

TEST(PlacementVerifier, FindsWhatIsWrong) {
  TraceBuilder builder;
  const auto w = builder.existing(10);
  builder.run("a", {w}, {}, 1, 5);
  const auto a = builder.result(10);
  builder.run("b", {a}, {}, 1);
  Trace trace = builder.build();
  trace.operators[0].temporaries = {{5, 1, 2}};
  const Plan plan{.directives = {{1, Action::kStartOut, w},
                                 {1, Action::kFinishOut, w},
                                 {2, Action::kStartIn, w}}};
  const Placement good = placed(trace, plan);
  const auto notes = [&](auto&& spoil) {
    Placement bad = good;
    spoil(bad);
    return joined(verify_placement(trace, plan, bad, 1));
  };
  EXPECT_EQ(notes([](Placement&) {}), "");
  const auto expect = [&](const char* what, auto&& spoil) {
    EXPECT_NE(notes(spoil).find(what), std::string::npos) << what << " in: " << notes(spoil);
  };
  expect("overlaps", [](Placement& p) { p.allocations[0][0] = p.at_start[0].second; });
  expect("overlaps", [](Placement& p) { p.allocations[0][1] = p.allocations[0][0] + 9; });
  expect("overlaps", [](Placement& p) { p.allocations[0][1] = p.at_start[0].second + 4; });
  expect("no address", [](Placement& p) { p.arrivals[2] = kNoAddress; });
  expect("no address", [](Placement& p) { p.allocations[0][1] = kNoAddress; });
  expect("no address", [](Placement& p) { p.at_start.clear(); });
  expect("not there when the step begins", [&](Placement& p) { p.at_start.emplace_back(a, 0); });
  expect("takes no memory", [](Placement& p) { p.arrivals[0] = 0; });
  expect("beyond the end", [](Placement& p) { --p.bytes; });
  expect("lower bound", [](Placement& p) { ++p.lower_bound; });
  expect("lower bound", [](Placement& p) { --p.lower_bound; });
  expect("allocations", [](Placement& p) { p.allocations[1].push_back(0); });
  expect("allocations", [](Placement& p) { p.allocations.pop_back(); });
  expect("arrivals", [](Placement& p) { p.arrivals.pop_back(); });
  expect("turns", [&](Placement& p) { p.taking_turns = {w}; });
  Placement odd = place(trace, plan, 4, 0);
  EXPECT_EQ(joined(verify_placement(trace, plan, odd, 4)), "");
  odd.bytes += 4;
  odd.allocations[0][1] += 2;
  EXPECT_NE(joined(verify_placement(trace, plan, odd, 4)).find("aligned"), std::string::npos);
}

// w (10) is there before the step; a makes p (2) and x (4) with a temporary (3) between them, b
// writes x with a temporary (5), c has a workspace (20), d reads x. x is away beside c.
struct Remade {
  Remade() {
    TraceBuilder builder;
    const auto w = builder.existing(10);
    builder.run("a", {w}, {}, 1, 3);
    builder.repeatable();
    builder.temporary(3, 1, 3);
    builder.dies(builder.result(2));
    x = builder.result(4);
    builder.run("b", {}, {x}, 1, 5);
    builder.repeatable();
    builder.temporary(5, 0, 1);
    builder.run("c", {}, {}, 1, 20);
    builder.run("d", {x}, {}, 1);
    trace = builder.build();
    plan.directives = {{2, Action::kDrop, x}, {3, Action::kRematerialise, x}};
  }
  TraceBlockId x = 0;
  Trace trace;
  Plan plan;
};

TEST(Placement, LineagesHavePlacesForAllThatTheyMake) {
  const Remade step;
  const Placement placement = placed(step.trace, step.plan);
  EXPECT_EQ(placement.bytes, 30);
  EXPECT_EQ(placement.arrivals, (std::vector<Bytes>{kNoAddress, kNoAddress}));
  ASSERT_EQ(placement.remakes.size(), 2U);
  EXPECT_TRUE(placement.remakes[0].empty());
  ASSERT_EQ(placement.remakes[1].size(), 4U) << "p, the temporary, x, and b's temporary";
}

TEST(PlacementVerifier, FindsWhatIsWrongWithLineages) {
  const Remade step;
  const Placement good = placed(step.trace, step.plan);
  const auto expect = [&](const char* what, auto&& spoil) {
    Placement bad = good;
    spoil(bad.remakes);
    const auto notes = joined(verify_placement(step.trace, step.plan, bad, 1));
    EXPECT_NE(notes.find(what), std::string::npos) << what << " in: " << notes;
  };
  const Bytes w = good.at_start[0].second;
  for (std::size_t k = 0; k < 4; ++k) {
    expect("overlaps", [&](auto& remakes) { remakes[1][k] = w; });
    expect("no address", [&](auto& remakes) { remakes[1][k] = kNoAddress; });
  }
  expect("overlaps", [](auto& remakes) { remakes[1][0] = remakes[1][1]; });
  expect("overlaps", [](auto& remakes) { remakes[1][0] = remakes[1][2]; });
  expect("overlaps", [](auto& remakes) { remakes[1][3] = remakes[1][2]; });
  expect("makes 4 allocations", [](auto& remakes) { remakes[1].pop_back(); });
  expect("makes 0 allocations", [](auto& remakes) { remakes[0].push_back(0); });
  expect("rematerialisations", [](auto& remakes) { remakes.pop_back(); });
  Placement bad = good;
  bad.arrivals[1] = 0;
  EXPECT_NE(joined(verify_placement(step.trace, step.plan, bad, 1)).find("takes no memory"),
            std::string::npos);
  const Plan wrong{.directives = {{2, Action::kDrop, step.x}, {3, Action::kRematerialise, 0}}};
  EXPECT_NE(joined(verify_placement(step.trace, wrong, good, 1)).find("no lineage"),
            std::string::npos);
}

TEST(PlacementVerifier, WorkspacesOfLineagesNeedRoom) {
  Remade step;
  step.trace.operators[1].temporaries.clear();
  step.trace.operators[1].workspace = 30;
  Placement placement = placed(step.trace, step.plan);
  EXPECT_EQ(placement.bytes, 44);
  --placement.bytes;
  EXPECT_NE(joined(verify_placement(step.trace, step.plan, placement, 1)).find("workspace"),
            std::string::npos);
}

/// Drops, chains, ghosts, swaps; temporaries and workspaces.
RC_GTEST_PROP(PlacementProperty, EveryPlacementOfRecomputingPlansHolds, (std::uint64_t seed)) {
  using testing::PlanMaker;
  RandomPlan random(seed);
  Trace trace = testing::random_trace({.operators = 8, .repeatable = 95, .writes = 5, .dies = 20});
  random.give_temporaries(trace);
  const Plan plan = PlanMaker(trace).make();
  RC_PRE(verify_plan(trace, plan, kAmple).empty());
  const auto again =
      std::ranges::count(plan.directives, Action::kRematerialise, &Directive::action);
  const Bytes alignment = 1 << random.below(3);
  const Placement placement = place(trace, plan, alignment, 0.001);
  RC_ASSERT(joined(verify_placement(trace, plan, placement, alignment)) == "");
  RC_CLASSIFY(again > 0, "computes again");
  RC_CLASSIFY(again > 0 && !placement.taking_turns.empty(), "blocks take turns");
  RC_ASSERT(placement.bytes >= placement.lower_bound);
}

RC_GTEST_PROP(PlacementProperty, EveryPlacementHolds, (std::uint64_t seed)) {
  RandomPlan random(seed);
  const Trace trace = random.trace();
  RC_ASSERT(joined(trace.validate()).empty());
  const Plan plan = random.plan(trace);
  RC_ASSERT(joined(verify_plan(trace, plan, kAmple)).empty());
  const Bytes alignment = 1 << random.below(4);
  const Placement placement = place(trace, plan, alignment, 0.001);
  RC_ASSERT(joined(verify_placement(trace, plan, placement, alignment)) == "");
  RC_ASSERT(placement.bytes >= placement.lower_bound);
  RC_CLASSIFY(!placement.taking_turns.empty(), "blocks take turns");
  RC_CLASSIFY(placement.bytes == placement.lower_bound, "no waste");
}

RC_GTEST_PROP(PlacementProperty, TheVerifierMissesNoOverlap, (std::uint64_t seed)) {
  // Two results of one operator, or a result and what was there at the start, cannot share a byte.
  RandomPlan random(seed);
  const Trace trace = random.trace();
  const Placement good = place(trace, {}, 1, 0);
  for (std::size_t k = 0; k < trace.operators.size(); ++k) {
    const auto& made = good.allocations[k];
    if (made.size() < 2 || !trace.operators[k].temporaries.empty()) continue;
    Placement bad = good;
    bad.allocations[k][0] = made[1];
    RC_ASSERT(!verify_placement(trace, {}, bad, 1).empty());
  }
}

}  // namespace
}  // namespace lms
