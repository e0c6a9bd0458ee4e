#include "plan/beyond_room.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "plan/placed_plan.h"
#include "plan/search.h"
#include "plan_random.h"

namespace lms {
namespace {

using testing::random_trace;
using Bytes1 = std::vector<Bytes>;
constexpr Bytes kKi = 1024;

Bytes most(const Trace& trace) {
  const std::vector<Bytes> least = trace.least_bytes();
  return least.empty() ? 0 : std::ranges::max(least);
}

TEST(BesideResults, TemporariesThatGoBeforeAResultTakeNoRoomBesideIt) {
  EXPECT_EQ(beside_results(Bytes1{30, 20}, std::vector<TraceTemporary>{{30, 0, 1}}), 10);
  EXPECT_EQ(beside_results(Bytes1{30, 20}, std::vector<TraceTemporary>{{30, 0, 2}}), 30);
  EXPECT_EQ(beside_results(Bytes1{10, 20}, std::vector<TraceTemporary>{{10, 0, 1}}), 0);
  EXPECT_EQ(beside_results(Bytes1{20, 5}, std::vector<TraceTemporary>{{5, 1, 2}}), 5);
  EXPECT_EQ(beside_results(Bytes1{}, {}), 0);
}

// In KiB: 0 makes a (100) of w (50), with 30 beside; 1 reads a, makes b (100); both die.
Trace two_operators() {
  TraceBuilder builder;
  const auto w = builder.existing(50 * kKi);
  builder.run("first", {w}, {}, 1, 30 * kKi);
  const auto a = builder.result(100 * kKi);
  builder.temporary(30 * kKi, 1, 2);
  builder.repeatable();
  builder.run("second", {a}, {}, 1);
  const auto b = builder.result(100 * kKi);
  builder.dies(a);
  builder.dies(b);
  return builder.build();
}

TEST(BeyondRoom, LeastBytesAreThoseOfEachOperatorAlone) {
  EXPECT_EQ(two_operators().least_bytes(), (Bytes1{180 * kKi, 200 * kKi}));
}

TEST(BeyondRoom, NothingChangesWhereAllFit) {
  Trace trace = two_operators();
  EXPECT_TRUE(use_below(trace, 200 * kKi).empty());
  EXPECT_EQ(trace.least_bytes(), (Bytes1{180 * kKi, 200 * kKi}));
  EXPECT_TRUE(trace.operators[0].repeatable);
}

TEST(BeyondRoom, WhatIsOnlyReadIsLeftOutFirst) {
  Trace trace = two_operators();
  EXPECT_TRUE(use_below(trace, 150 * kKi).empty());
  EXPECT_EQ(trace.operators[0].reads, std::vector<TraceBlockId>{});
  EXPECT_EQ(trace.operators[1].reads, std::vector<TraceBlockId>{});
  EXPECT_EQ(trace.least_bytes(), (Bytes1{130 * kKi, 100 * kKi}));
  EXPECT_FALSE(trace.operators[0].repeatable);
  EXPECT_TRUE(trace.validate().empty());
}

TEST(BeyondRoom, AResultThatDoesNotFitIsTheNextOperators) {
  Trace trace = two_operators();
  const std::vector<Unplaced> unplaced = use_below(trace, 110 * kKi);
  EXPECT_TRUE(trace.validate().empty());
  EXPECT_LE(most(trace), 110 * kKi);
  ASSERT_FALSE(unplaced.empty());
  EXPECT_EQ(unplaced[0].op, 0U);
  EXPECT_EQ(unplaced[0].number, 0U);
  EXPECT_TRUE(unplaced[0].passed_on);
  EXPECT_EQ(trace.operators[1].allocs.front(), 1U);

  Placement placement;
  placement.allocations = {{7}, {8, 9}};
  leave_unplaced(placement, {unplaced.front()});
  EXPECT_EQ(placement.allocations, (std::vector<Bytes1>{{kNoAddress, 7}, {9}}));
}

TEST(BeyondRoom, WhatNobodyUsesCountsAsHardlyAnything) {
  TraceBuilder builder;
  const auto w = builder.existing(1000);
  builder.existing(9000);
  builder.run("op", {w}, {}, 1);
  Trace trace = builder.build();
  EXPECT_TRUE(leave_out_unused(trace));
  EXPECT_EQ(trace.blocks[0].bytes, 1000);
  EXPECT_EQ(trace.blocks[1].bytes, kPlacedUnit);
  EXPECT_FALSE(leave_out_unused(trace));
}

/// Sizes are those of real blocks: nothing is smaller than the unit that stands for nothing.
Trace with_large_blocks(Trace trace) {
  constexpr Bytes kScale = 4096;
  for (TraceBlock& block : trace.blocks) block.bytes *= kScale;
  for (TraceOperator& op : trace.operators) {
    op.workspace *= kScale;
    for (TraceTemporary& one : op.temporaries) one.bytes *= kScale;
  }
  return trace;
}

RC_GTEST_PROP(BeyondRoom, EveryOperatorFitsThen, ()) {
  Trace trace = with_large_blocks(random_trace());
  for (TraceBlock& block : trace.blocks) block.movable = true;
  RC_ASSERT(trace.validate().empty());
  const Trace before = trace;
  const Bytes room = std::max<Bytes>(most(trace) * (20 + testing::upto(80)) / 100, 1);
  const std::vector<Unplaced> unplaced = use_below(trace, room);
  RC_ASSERT(trace.validate().empty());
  if (most(before) <= room) RC_ASSERT(unplaced.empty());
  // The last operator has nobody to pass a result on to.
  std::vector<Bytes> least = trace.least_bytes();
  if (!least.empty()) least.pop_back();
  Bytes units = 0;
  for (const TraceOperator& op : trace.operators) {
    units = std::max(units, static_cast<Bytes>(op.allocs.size() + op.temporaries.size()));
  }
  for (const Bytes bytes : least) RC_ASSERT(bytes <= room + units * kPlacedUnit);

  // A placement of what is left has its places where the step, as it runs, allocates.
  Placement placement;
  Bytes place = 0;
  for (const TraceOperator& op : trace.operators) {
    auto& places = placement.allocations.emplace_back();
    for (std::size_t i = 0; i < op.allocs.size() + op.temporaries.size(); ++i) {
      places.push_back(place++);
    }
  }
  leave_unplaced(placement, unplaced);
  for (std::size_t i = 0; i < before.operators.size(); ++i) {
    const TraceOperator& op = before.operators[i];
    RC_ASSERT(placement.allocations[i].size() == op.allocs.size() + op.temporaries.size());
  }
}

RC_GTEST_PROP(BeyondRoom, APlanCanBeMadeThen, ()) {
  Trace trace = with_large_blocks(random_trace());
  for (TraceBlock& block : trace.blocks) block.movable = true;
  const Bytes room = most(trace) * (40 + testing::upto(60)) / 100;
  RC_PRE(room > 0);
  (void)use_below(trace, room);
  (void)leave_out_unused(trace);
  RC_PRE(most(trace) <= room);
  try {
    const PlannedStep made = make_plan(
        trace, room, {.out_bytes_per_ms = 1000, .in_bytes_per_ms = 1000, .both_bytes_per_ms = 1000},
        {.seconds = 1e-4});
    RC_ASSERT(made.predicted.peak <= room);
  } catch (const OutOfMemory&) {
    // What is carried over the end of the step, or dies unused, can ask for more at that moment.
    RC_DISCARD("more is needed where the step begins");
  }
}

}  // namespace
}  // namespace lms
