// Steps that read another of several kept blocks each time: planned, and never a wrong byte.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "pilot/turns.h"
#include "pilot_loop.h"

namespace lms {
namespace {

using testing::Loop;

constexpr Bytes kTightLoop = 12 * Loop::kBytes;  // of the 16 that eight layers take
constexpr int kPlannedBy = 10;

TEST(PilotTurns, BatchesThatAreKeptArePlannedWhateverTheirNumber) {
  for (int count = 2; count <= 16; ++count) {
    Loop loop(kTightLoop, 8);
    for (int i = 0; i < count; ++i) (void)loop.keep();
    for (int i = 0; i < 60; ++i) {
      loop.feed(static_cast<std::size_t>(i % count));
      loop.step(8);
      if (i < kPlannedBy) continue;
      EXPECT_GE(loop.pilot.stats().steps, i - kPlannedBy) << count;
    }
    EXPECT_EQ(loop.pilot.stats().divergences, 0) << count;
    EXPECT_EQ(loop.pilot.stats().shapes, 1) << count;
  }
}

TEST(PilotTurns, OneBatchAStepComesAndNoneIsInTheWay) {
  constexpr int kBatches = 4;
  Loop loop(kTightLoop, 8);
  for (int i = 0; i < kBatches; ++i) (void)loop.keep();
  int fed = 0;
  const auto step = [&] {
    loop.feed(static_cast<std::size_t>(fed++ % kBatches));
    loop.step(8);
  };
  while (loop.pilot.stats().refined == 0 || fed < 5 * kBatches) step();
  const auto script = loop.pilot.current();
  ASSERT_TRUE(script && script->planned);
  const auto before = loop.stats();
  for (int i = 0; i < 2 * kBatches; ++i) step();
  const auto after = loop.stats();
  EXPECT_LE(after.bytes_in - before.bytes_in,
            2 * kBatches * (script->predicted.bytes_in + Loop::kBytes));
  // Nobody has written the batches: they leave without a copy.
  EXPECT_LE(after.bytes_out - before.bytes_out, 2 * kBatches * script->predicted.bytes_out);
}

TEST(PilotTurns, SlotsThatAreFilledInTurn) {
  constexpr int kSlots = 3;
  Loop loop(kTightLoop, 8);
  for (int i = 0; i < kSlots; ++i) (void)loop.keep();
  for (int i = 0; i < 40; ++i) {
    loop.refill(static_cast<std::size_t>(i % kSlots));
    loop.feed(static_cast<std::size_t>(i % kSlots));
    loop.step(8);
  }
  EXPECT_GE(loop.pilot.stats().steps, 25);
}

RC_GTEST_PROP(PilotTurns, NeverAWrongByteWhicheverIsRead, ()) {
  const auto layers = *rc::gen::inRange(6, 10);
  const auto count = *rc::gen::inRange<std::size_t>(1, 7);
  const auto order =
      *rc::gen::container<std::vector<std::size_t>>(60, rc::gen::inRange<std::size_t>(0, count));
  // What happens beside: nothing mostly, a slot is filled, one more operator, fewer layers.
  const auto beside = *rc::gen::container<std::vector<int>>(60, rc::gen::inRange(0, 40));
  Loop loop((2 * layers - 4) * Loop::kBytes, layers);
  for (std::size_t i = 0; i < count; ++i) (void)loop.keep();
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (beside[i] == 1) loop.refill(order[i]);
    loop.feed(order[i]);
    loop.step(beside[i] == 2 ? layers - 1 : layers, beside[i] == 3 ? 777 : 0);
  }
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(PilotTurns, AnyOrderIsPlannedAndFollowed, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(2, 7);
  const auto order =
      *rc::gen::container<std::vector<std::size_t>>(40, rc::gen::inRange<std::size_t>(0, count));
  Loop loop(kTightLoop, 8);
  for (std::size_t i = 0; i < count; ++i) (void)loop.keep();
  for (const std::size_t kept : order) {
    loop.feed(kept);
    loop.step(8);
  }
  RC_ASSERT(!::testing::Test::HasFailure());
  RC_ASSERT(loop.pilot.stats().steps >= 40 - kPlannedBy);
  RC_ASSERT(loop.pilot.stats().divergences == 0);
}

/// A step of three operators: the first and the second read block 0, the third writes block 1.
StepShape shape() {
  StepShape made;
  TraceBuilder builder;
  const TraceBlockId input = builder.existing(512);
  const TraceBlockId weight = builder.existing(512);
  builder.run("a", {input}, {}, 1);
  builder.run("b", {input}, {}, 1);
  builder.run("c", {weight}, {weight}, 1);
  made.trace = builder.build();
  made.operators.resize(3);
  made.operators[0].touches = {{input, false}};
  made.operators[1].touches = {{input, false}};
  made.operators[2].touches = {{weight, true}};
  made.uids = {1, 2};
  return made;
}

TEST(Turns, WhatIsReadMayTurnAndDoesWhenAnotherHasServed) {
  Turns turns(shape());
  EXPECT_TRUE(turns.may_turn(0));
  EXPECT_FALSE(turns.may_turn(1)) << "who is written is one and the same";
  turns.serves(0, 11);
  turns.serves(0, 11);
  EXPECT_FALSE(turns.turns(0));
  EXPECT_TRUE(turns.done(2).empty());
  turns.serves(0, 12);
  EXPECT_TRUE(turns.turns(0));
  ASSERT_EQ(turns.done(2).size(), 1U);
  EXPECT_EQ(turns.done(2)[0], 0U);
  EXPECT_EQ(turns.last(0), 12U);
  EXPECT_EQ(turns.last_but_one(0), 11U);
  EXPECT_TRUE(turns.between(0, 2));
  EXPECT_TRUE(turns.between(0, 0));
  EXPECT_FALSE(turns.between(0, 1));
}

TEST(Turns, GuessesWhoFollowsUntilItIsWrong) {
  Turns turns(shape());
  for (int round = 0; round < 2; ++round) {
    for (const BlockUid uid : {11, 12, 13}) turns.serves(0, uid);
  }
  EXPECT_EQ(turns.next(0, 13), 11U);
  EXPECT_EQ(turns.next(0, 14), 0U);
  turns.serves(0, 12);  // and not 11
  EXPECT_EQ(turns.next(0, 12), 0U) << "who was wrong is not believed";
  turns.serves(0, 13);
  turns.serves(0, 12);
  EXPECT_EQ(turns.next(0, 12), 13U);
}

}  // namespace
}  // namespace lms
