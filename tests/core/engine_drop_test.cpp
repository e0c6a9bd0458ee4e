// Blocks whose bytes are let go of and computed again.

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "engine_drop_fixture.h"

namespace lms::testing {
namespace {

TEST_F(EngineDrop, WhatIsDroppedIsNowhereAndComesBackForAPin) {
  SimBlock& a = made(10, 1);
  ASSERT_TRUE(world.drop(a));
  EXPECT_EQ(world.state(a), BlockState::kDropped);
  EXPECT_EQ(world.sim.device_used(), 0);
  EXPECT_EQ(world.sim.host_used(), 0);
  check_consistent(world);
  EXPECT_TRUE(world.reads(a, 1));
  check_consistent(world);
  const EngineStats stats = world.stats();
  EXPECT_EQ(stats.drops, 1);
  EXPECT_EQ(stats.remakes, 1);
  EXPECT_EQ(stats.bytes_remade, 10);
  EXPECT_EQ(stats.bytes_out + stats.bytes_in, 0);
  EXPECT_EQ(stats.page_ins, 0);
}

TEST_F(EngineDrop, ItsPlaceIsTakenWhenTheMoverSaysSoAndNotBefore) {
  SimBlock& a = made(30, 1);
  ASSERT_TRUE(world.drop(a));
  SimBlock& b = world.used(30, 2);
  Bytes before = -1;
  BlockState other = BlockState::kDropped;
  before_taking = [&] {
    before = world.stats().device.current;
    other = world.state(b);
  };
  EXPECT_TRUE(world.reads(a, 1));
  EXPECT_EQ(before, 30);
  EXPECT_EQ(other, BlockState::kResident) << "nothing has had to leave for it yet";
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  check_consistent(world);
}

TEST_F(EngineDrop, ItsCopyBelowGoesToo) {
  SimBlock& a = made(10, 1);
  ASSERT_TRUE(world.evict(a));
  ASSERT_TRUE(world.reads(a, 1));
  ASSERT_TRUE(a.copy_valid);
  ASSERT_TRUE(world.drop(a));
  EXPECT_FALSE(a.has_copy || a.copy_valid);
  EXPECT_EQ(world.sim.host_used(), 0);
  EXPECT_TRUE(world.reads(a, 1));
  ASSERT_TRUE(world.evict(a));
  EXPECT_EQ(world.stats().clean_evictions, 0) << "what was computed again was never copied";
  EXPECT_TRUE(world.reads(a, 1));
}

TEST_F(EngineDrop, OnlyWhatMayLeaveIsDropped) {
  SimBlock& pinned = made(5, 1);
  world.pin(pinned);
  EXPECT_FALSE(world.drop(pinned));
  world.unpin(pinned);
  SimBlock& kept = made(5, 2);
  world.keep(kept);
  EXPECT_FALSE(world.drop(kept));
  SimBlock& fresh = world.fresh(5, 3);
  values[&fresh] = 3;
  EXPECT_FALSE(world.drop(fresh)) << "its maker may still hold pointers";
  SimBlock& absent = made(5, 4);
  ASSERT_TRUE(world.evict(absent));
  EXPECT_FALSE(world.drop(absent));
  SimBlock& unknown = world.used(5, 5);
  EXPECT_FALSE(world.drop(unknown)) << "nobody knows how it came about";
  EXPECT_EQ(world.state(unknown), BlockState::kResident);
  EXPECT_TRUE(world.evict(unknown)) << "it may still leave";
  {
    auto lock = world.engine.lock();
    world.engine.pause(lock);
    EXPECT_FALSE(world.engine.drop(lock, pinned));
    world.engine.resume(lock);
  }
  EXPECT_EQ(world.stats().drops, 0);
  EXPECT_EQ(computed, 0);
  check_consistent(world);
}

TEST_F(EngineDrop, ADeadBlockIsErasedAndNotDropped) {
  SimBlock& a = made(10, 1);
  a.die();
  EXPECT_FALSE(world.drop(a));
  EXPECT_EQ(world.stats().blocks.current, 0);
  check_consistent(world);
}

TEST_F(EngineDrop, DroppedTwiceIsDroppedOnce) {
  SimBlock& a = made(10, 1);
  ASSERT_TRUE(world.drop(a));
  EXPECT_FALSE(world.drop(a));
  EXPECT_FALSE(world.evict(a)) << "there is nothing to copy";
  EXPECT_EQ(world.stats().drops, 1);
}

TEST_F(EngineDrop, AskingForItAheadComputesIt) {
  SimBlock& a = made(10, 1);
  EXPECT_FALSE(world.rematerialise(a)) << "it is there";
  ASSERT_TRUE(world.drop(a));
  {
    auto lock = world.engine.lock();
    EXPECT_FALSE(world.engine.fetch(lock, a)) << "there is no copy to fetch";
  }
  EXPECT_TRUE(world.rematerialise(a));
  EXPECT_EQ(world.state(a), BlockState::kResident);
  EXPECT_TRUE(world.drop(a)) << "nobody holds it";
}

TEST_F(EngineDrop, APinComputesBeforeItHoldsTheOthers) {
  SimBlock& a = made(30, 1);
  SimBlock& b = world.used(10, 2);
  ASSERT_TRUE(world.drop(a));
  during = [&](SimBlock&) {
    EXPECT_EQ(b.pins, 0) << "what is computed may need its room";
    EXPECT_TRUE(world.evict(b));
  };
  world.pin({{&b, false}, {&a, false}, {&a, false}});
  EXPECT_TRUE(a.holds(1));
  EXPECT_TRUE(b.holds(2));
  world.unpin({{&b, false}, {&a, false}, {&a, false}});
  EXPECT_EQ(computed, 1);
  check_consistent(world);
}

TEST_F(EngineDrop, AFailureLeavesItDroppedAndNothingPinned) {
  SimBlock& a = made(10, 1);
  SimBlock& b = made(10, 2);
  SimBlock& c = world.used(10, 3);
  ASSERT_TRUE(world.drop(a));
  ASSERT_TRUE(world.drop(b));
  fails = 1;
  EXPECT_THROW(world.pin({{&c, true}, {&a, false}, {&b, false}}), std::runtime_error);
  EXPECT_EQ(world.state(a), BlockState::kDropped);
  for (SimBlock* block : {&a, &b, &c}) EXPECT_EQ(block->pins, 0);
  check_consistent(world);
  fails = 1;
  EXPECT_THROW(world.rematerialise(b), std::runtime_error);
  check_consistent(world);
  world.pin({{&c, true}, {&a, false}, {&b, false}});
  EXPECT_TRUE(a.holds(1) && b.holds(2) && c.holds(3));
  world.unpin({{&c, true}, {&a, false}, {&b, false}});
  EXPECT_EQ(world.stats().remakes, 2);
  check_consistent(world);
}

TEST_F(EngineDrop, NoRoomIsOutOfMemoryAndLosesNothing) {
  SimBlock& a = made(20, 1);
  ASSERT_TRUE(world.drop(a));
  SimBlock& big = world.used(30, 2);
  world.pin(big);
  EXPECT_THROW(world.pin(a), OutOfMemory);
  EXPECT_EQ(world.state(a), BlockState::kDropped);
  EXPECT_EQ(computed, 0);
  check_consistent(world);
  world.unpin(big);
  EXPECT_TRUE(world.reads(a, 1));
  EXPECT_TRUE(world.reads(big, 2));
}

TEST_F(EngineDrop, MakesRoomForWhatItComputes) {
  SimBlock& a = made(30, 1);
  ASSERT_TRUE(world.drop(a));
  SimBlock& b = world.used(30, 2);
  EXPECT_TRUE(world.reads(a, 1));
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_TRUE(world.reads(b, 2));
  check_consistent(world);
}

TEST_F(EngineDrop, AWriteAfterADropIsNotLost) {
  SimBlock& a = made(10, 1);
  ASSERT_TRUE(world.drop(a));
  world.pin(a, /*writes=*/true);
  EXPECT_TRUE(a.holds(1)) << "what is written in part must be there";
  a.fill(7);
  world.unpin(a);
  ASSERT_TRUE(world.evict(a));
  EXPECT_TRUE(world.reads(a, 7));
}

TEST_F(EngineDrop, WhileItIsComputedItIsImmovableOnceItHasRoom) {
  SimBlock& a = made(30, 1);
  ASSERT_TRUE(world.drop(a));
  const auto immovable = [&] {
    auto lock = world.engine.lock();
    return world.engine.immovable(lock);
  };
  Bytes before = -1;
  Bytes after = -1;
  before_taking = [&] { before = immovable(); };
  during = [&](SimBlock& /*block*/) { after = immovable(); };
  EXPECT_TRUE(world.rematerialise(a));
  EXPECT_EQ(before, 0);
  EXPECT_EQ(after, 30);
  EXPECT_EQ(immovable(), 0);
  fails = 1;
  ASSERT_TRUE(world.drop(a));
  EXPECT_THROW(world.rematerialise(a), std::runtime_error);
  EXPECT_EQ(immovable(), 0);
}

TEST_F(EngineDrop, ItMayDieWhileItIsDropped) {
  SimBlock& a = made(10, 1);
  ASSERT_TRUE(world.drop(a));
  world.remove(a);
  EXPECT_EQ(world.stats().blocks.current, 0);
  EXPECT_EQ(world.stats().dropped.current, 0);
  check_consistent(world);
}

TEST_F(EngineDrop, ItMayDieWhileItIsComputed) {
  SimBlock& a = made(10, 1);
  ASSERT_TRUE(world.drop(a));
  during = [&](SimBlock& block) { world.remove(block); };
  EXPECT_TRUE(world.rematerialise(a));
  EXPECT_EQ(world.stats().blocks.current, 0);
  check_consistent(world);
}

TEST_F(EngineDrop, AStorageThatIsNoLongerOursIsForgotten) {
  SimBlock& a = made(10, 1);
  ASSERT_TRUE(world.drop(a));
  a.die();
  EXPECT_TRUE(world.rematerialise(a));
  EXPECT_EQ(world.stats().blocks.current, 0);
  EXPECT_EQ(world.stats().remakes, 0);
}

TEST_F(EngineDrop, EverythingReturns) {
  SimBlock& a = made(10, 1);
  SimBlock& b = made(10, 2);
  SimBlock& c = world.used(10, 3);
  ASSERT_TRUE(world.drop(a) && world.drop(b) && world.evict(c));
  auto lock = world.engine.lock();
  EXPECT_EQ(world.engine.return_all(lock), 0);
  lock.unlock();
  for (SimBlock* block : {&a, &b, &c}) EXPECT_EQ(world.state(*block), BlockState::kResident);
  check_consistent(world);
}

TEST_F(EngineDrop, WhatCannotReturnIsCounted) {
  SimBlock& a = made(10, 1);
  SimBlock& b = made(15, 2);
  ASSERT_TRUE(world.drop(a) && world.drop(b));
  fails = 1;
  auto lock = world.engine.lock();
  const Bytes left = world.engine.return_all(lock);
  lock.unlock();
  EXPECT_TRUE(left == 10 || left == 15);
  EXPECT_EQ(world.stats().dropped.current, left) << "the other one has returned";
  lock.lock();
  fails = 1;
  EXPECT_EQ(world.engine.rematerialise_all(lock), left);
  EXPECT_EQ(world.engine.rematerialise_all(lock), 0);
  lock.unlock();
  EXPECT_TRUE(world.reads(a, 1) && world.reads(b, 2));
  check_consistent(world);
}

TEST_F(EngineDrop, ComputingAllMayDriveOthersOut) {
  SimBlock& a = made(30, 1);
  ASSERT_TRUE(world.drop(a));
  SimBlock& b = world.used(30, 2);
  auto lock = world.engine.lock();
  EXPECT_EQ(world.engine.rematerialise_all(lock), 0);
  lock.unlock();
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_TRUE(world.reads(b, 2));
}

TEST_F(EngineDrop, TwoThreadsThatNeedItComputeItOnce) {
  SimBlock& a = made(10, 1);
  ASSERT_TRUE(world.drop(a));
  Gate reached;
  Gate go_on;
  during = [&](SimBlock&) {
    reached.open();
    go_on.wait();
  };
  std::jthread first([&] { EXPECT_TRUE(world.reads(a, 1)); });
  reached.wait();
  EXPECT_EQ(world.state(a), BlockState::kArriving);
  EXPECT_FALSE(world.drop(a));
  std::jthread second([&] { EXPECT_TRUE(world.reads(a, 1)); });
  for (int pins = 0; pins < 2; std::this_thread::yield()) {
    auto lock = world.engine.lock();
    pins = a.pins;
  }
  go_on.open();
  first.join();
  second.join();
  EXPECT_EQ(computed, 1);
  check_consistent(world);
}

TEST_F(EngineDrop, ThePolicyThatDropsEverythingEvictsTheRest) {
  SimBlock& a = made(10, 1);
  SimBlock& b = world.used(10, 2);
  {
    auto lock = world.engine.lock();
    world.engine.set_policy(lock, std::make_unique<EvictEverythingPolicy>(/*drops=*/true));
  }
  world.operator_ended();
  EXPECT_EQ(world.state(a), BlockState::kDropped);
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_EQ(world.stats().evictions, 1);
  {
    auto lock = world.engine.lock();
    world.engine.set_policy(lock, std::make_unique<EvictEverythingPolicy>());
  }
  world.use(a);
  world.operator_ended();
  EXPECT_EQ(world.state(a), BlockState::kAbsent) << "without that, nothing is dropped";
}

}  // namespace
}  // namespace lms::testing
