// What leaves, when, and at what cost, in unit costs: 1 byte takes 1 ms either way.

#include "engine_fixture.h"

namespace lms::testing {
namespace {

TEST(EngineLru, LeastRecentlyUnpinnedLeavesFirst) {
  // limit 30      A10 B10 C10, then A used again: order of leaving is B, C, A
  //   make room 10: B leaves            [A C .]
  //   make room 20: C leaves as well    [A . .]
  World world(30);
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  SimBlock& c = world.used(10, 3);
  world.use(a);

  EXPECT_TRUE(world.make_room(10));
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_EQ(world.state(c), BlockState::kResident);
  EXPECT_DOUBLE_EQ(world.sim.now_ms(), 10);

  EXPECT_TRUE(world.make_room(20));
  EXPECT_EQ(world.state(c), BlockState::kAbsent);
  EXPECT_EQ(world.state(a), BlockState::kResident);
  EXPECT_DOUBLE_EQ(world.sim.now_ms(), 20);
  check_consistent(world);
}

TEST(EngineLru, OrderIsThatOfTheLastUnpinNotOfTheFirst) {
  World world(20);
  SimBlock& a = world.used(10);
  SimBlock& b = world.used(10);
  world.pin(a);  // twice: only the second unpin counts
  world.pin(a);
  world.unpin(a);
  world.use(b);
  world.unpin(a);
  EXPECT_TRUE(world.make_room(10));
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_EQ(world.state(a), BlockState::kResident);
}

TEST(EngineLru, WhatHasOnlyBeenCopiedIsNoLaterInTheOrder) {
  World world(30);
  world.sim.set_hooks({.relocate = [](SimBlock&) { return true; }});
  SimBlock& a = world.used(10, 1);
  world.operator_ended();
  SimBlock& b = world.used(10, 2);
  world.operator_ended();
  SimBlock& c = world.used(10, 3);
  for (SimBlock* block : {&a, &b, &a}) {
    auto lock = world.engine.lock();
    ASSERT_TRUE(world.engine.relocate(lock, *block));
  }
  EXPECT_TRUE(world.make_room(10));
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  EXPECT_TRUE(world.make_room(20));
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_EQ(world.state(c), BlockState::kResident);
  check_consistent(world);
}

TEST(EngineLru, CleanBlockLeavesForNothing) {
  //  0        10        20
  //  |-A out--|--A in---|A out again: no copy, no time
  World world(10);
  SimBlock& a = world.used(10, 7);
  ASSERT_TRUE(world.evict(a));
  EXPECT_DOUBLE_EQ(world.sim.now_ms(), 10);
  EXPECT_TRUE(world.reads(a, 7));
  EXPECT_DOUBLE_EQ(world.sim.now_ms(), 20);
  ASSERT_TRUE(world.evict(a));
  EXPECT_DOUBLE_EQ(world.sim.now_ms(), 20);
  EXPECT_TRUE(world.reads(a, 7));

  const EngineStats stats = world.stats();
  EXPECT_EQ(stats.evictions, 2);
  EXPECT_EQ(stats.clean_evictions, 1);
  EXPECT_EQ(stats.page_ins, 2);
  EXPECT_EQ(stats.bytes_out, 10);
  EXPECT_EQ(stats.bytes_in, 20);
}

TEST(EngineLru, WrittenBlockIsCopiedAgain) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  world.write(a, 2);
  EXPECT_EQ(world.sim.host_used(), 0) << "the stale copy holds host memory";
  ASSERT_TRUE(world.evict(a));
  EXPECT_TRUE(world.reads(a, 2));
  EXPECT_EQ(world.stats().clean_evictions, 0);
  EXPECT_EQ(world.stats().bytes_out, 20);
}

TEST(EngineLru, BlockReadAndWrittenByOneOperatorIsDirty) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  const std::vector<Use> both = {{&a, false}, {&a, true}, {&a, false}};
  world.pin(both);
  a.fill(2);
  EXPECT_FALSE(world.evict(a)) << "it is pinned";
  world.unpin(both);
  ASSERT_TRUE(world.evict(a));
  EXPECT_TRUE(world.reads(a, 2));
  check_consistent(world);
}

TEST(EngineLru, FreshBlockStaysUntilItsFirstUnpin) {
  World world(10);
  SimBlock& a = world.fresh(10, 1);
  EXPECT_EQ(world.state(a), BlockState::kFresh);
  EXPECT_FALSE(world.make_room(1));
  EXPECT_FALSE(world.evict(a));
  world.pin(a);
  EXPECT_FALSE(world.make_room(1));
  world.unpin(a);
  EXPECT_TRUE(world.make_room(1));
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
}

TEST(EngineLru, KeptBlockStaysUntilItDies) {
  World world(20);
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  ASSERT_TRUE(world.evict(a));
  world.pin(a);
  world.keep(a);
  world.keep(a);
  EXPECT_EQ(world.stats().kept.current, 10);
  EXPECT_EQ(world.sim.host_used(), 0) << "a copy that nobody will need";
  world.unpin(a);
  EXPECT_FALSE(world.evict(a));
  EXPECT_TRUE(world.make_room(10));
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_FALSE(world.make_room(11));
  EXPECT_TRUE(a.holds(1));
  world.remove(a);
  EXPECT_EQ(world.stats().kept.current, 0);
  EXPECT_TRUE(world.make_room(20));
  check_consistent(world);
}

TEST(EngineLru, ReclaimTakesAsManyAsItNeeds) {
  World world(100);
  std::vector<SimBlock*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(&world.used(10));
  auto lock = world.engine.lock();
  EXPECT_EQ(world.engine.reclaim(lock, 15), 20);
  EXPECT_EQ(blocks[1]->state, BlockState::kAbsent);
  EXPECT_EQ(blocks[2]->state, BlockState::kResident);
  EXPECT_EQ(world.engine.reclaim(lock, 1000), 30);
  EXPECT_EQ(world.engine.reclaim(lock, 1), 0);
}

TEST(EngineLru, ReclaimOneTakesTheOldestThatFitsTheHole) {
  World world(100);
  SimBlock& small = world.used(4);
  SimBlock& older = world.used(12);
  SimBlock& newer = world.used(12);
  SimBlock& large = world.used(40);
  auto lock = world.engine.lock();
  EXPECT_EQ(world.engine.reclaim_one(lock, 10, 20), 12);
  EXPECT_EQ(older.state, BlockState::kAbsent);
  EXPECT_EQ(newer.state, BlockState::kResident);
  EXPECT_EQ(world.engine.reclaim_one(lock, 13, 39), 0);
  EXPECT_EQ(world.engine.reclaim_one(lock, 40, 40), 40);
  EXPECT_EQ(large.state, BlockState::kAbsent);
  EXPECT_EQ(world.engine.reclaim_one(lock, 1, 11), 4);
  EXPECT_EQ(small.state, BlockState::kAbsent);
}

TEST(EngineLru, ReclaimOnePassesOverTheDead) {
  World world(100);
  SimBlock& dead = world.used(10);
  SimBlock& live = world.used(10);
  dead.die();
  auto lock = world.engine.lock();
  EXPECT_EQ(world.engine.reclaim_one(lock, 10, 10), 10);
  EXPECT_EQ(live.state, BlockState::kAbsent);
  EXPECT_EQ(world.engine.stats(lock).blocks.current, 1);
}

TEST(EngineLru, NothingLeavesWhilePaused) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  auto lock = world.engine.lock();
  world.engine.pause(lock);
  world.engine.pause(lock);
  EXPECT_FALSE(world.engine.make_room(lock, 1));
  EXPECT_EQ(world.engine.reclaim(lock, 1), 0);
  EXPECT_EQ(world.engine.reclaim_one(lock, 0, 100), 0);
  EXPECT_FALSE(world.engine.evict(lock, a));
  world.engine.resume(lock);
  EXPECT_TRUE(world.engine.paused(lock));
  EXPECT_FALSE(world.engine.make_room(lock, 1));
  world.engine.resume(lock);
  EXPECT_FALSE(world.engine.paused(lock));
  EXPECT_TRUE(world.engine.make_room(lock, 1));
}

TEST(EngineLru, ReturnAllBringsBackWhatFits) {
  World world(30);
  std::vector<SimBlock*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(&world.used(10, i));
  {
    auto lock = world.engine.lock();
    EXPECT_EQ(world.engine.reclaim(lock, 30), 30);
    // 50 bytes, of which 30 fit: it must end, and must not evict one to return another.
    EXPECT_EQ(world.engine.return_all(lock), 20);
    EXPECT_EQ(world.engine.stats(lock).evictions, 5);
    world.engine.set_options(lock, {.limit = 50});
    EXPECT_EQ(world.engine.return_all(lock), 0);
  }
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(blocks[i]->holds(i));
  check_consistent(world);
}

TEST(EngineLru, ReturnAllGoesOnPastABlockThatDoesNotFit) {
  World world(20);
  SimBlock& large = world.used(20, 1);
  SimBlock& small = world.used(5, 2);
  ASSERT_TRUE(world.evict(small));
  world.fresh(10);
  auto lock = world.engine.lock();
  EXPECT_EQ(world.engine.return_all(lock), 20);
  EXPECT_EQ(large.state, BlockState::kAbsent);
  EXPECT_TRUE(small.holds(2));
}

TEST(EngineLru, ResetPeakForgetsTheHighest) {
  World world(30);
  world.used(10);
  SimBlock& b = world.used(20);
  world.remove(b);
  EXPECT_EQ(world.stats().device.peak, 30);
  auto lock = world.engine.lock();
  world.engine.reset_peak(lock);
  const EngineStats stats = world.engine.stats(lock);
  EXPECT_EQ(stats.device.peak, 10);
  EXPECT_EQ(stats.blocks.peak, 1);
  EXPECT_EQ(stats.pinned.peak, 0);
  EXPECT_EQ(stats.device.allocated, 30);
  EXPECT_EQ(stats.device.freed, 20);
}

TEST(EngineLru, ImmovableIsWhatIsPinnedKeptOrFresh) {
  World world(100);
  world.used(1);
  world.pin(world.used(2));
  world.keep(world.used(4));
  world.fresh(8);
  ASSERT_TRUE(world.evict(world.used(16)));
  auto lock = world.engine.lock();
  EXPECT_EQ(world.engine.immovable(lock), 2 + 4 + 8);
}

TEST(EngineLru, UnreserveGivesTheBytesBack) {
  World world(10);
  auto lock = world.engine.lock();
  EXPECT_TRUE(world.engine.reserve(lock, 10));
  EXPECT_FALSE(world.engine.reserve(lock, 1));
  world.engine.unreserve(lock, 4);
  EXPECT_TRUE(world.engine.reserve(lock, 4));
  EXPECT_EQ(world.engine.stats(lock).device.peak, 10);
}

TEST(EngineLru, NewPolicyTakesOverInOrder) {
  World world(30);
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  {
    auto lock = world.engine.lock();
    world.engine.set_policy(lock, std::make_unique<LruPolicy>());
    EXPECT_EQ(world.engine.reclaim(lock, 1), 10);
    EXPECT_EQ(a.state, BlockState::kAbsent);
    world.engine.set_policy(lock, std::make_unique<EvictEverythingPolicy>());
  }
  world.operator_ended();
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
}

TEST(EngineEvictEverything, AllThatMayLeaveDoesSoAfterEveryOperator) {
  World world(100, {}, std::make_unique<EvictEverythingPolicy>());
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  SimBlock& pinned = world.used(10, 3);
  SimBlock& fresh = world.fresh(10, 4);
  SimBlock& kept = world.used(10, 5);
  world.pin(pinned);
  world.keep(kept);
  world.operator_ended();
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_EQ(world.state(pinned), BlockState::kResident);
  EXPECT_EQ(world.state(fresh), BlockState::kFresh);
  EXPECT_EQ(world.state(kept), BlockState::kResident);
  EXPECT_TRUE(world.reads(a, 1));
  world.operator_ended();
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  EXPECT_EQ(world.stats().operators, 2);
  EXPECT_EQ(world.stats().clean_evictions, 1);
  check_consistent(world);
}

TEST(EngineRelocate, MovesOnlyWhatMayLeaveAndKeepsItsCopy) {
  World world(100);
  SimBlock& block = world.used(10, 1);
  SimBlock& pinned = world.used(10, 2);
  SimBlock& absent = world.used(10, 3);
  world.pin(pinned);
  ASSERT_TRUE(world.evict(absent));
  ASSERT_TRUE(world.evict(block));
  ASSERT_TRUE(world.reads(block, 1));  // clean from now on
  bool willing = false;
  std::vector<SimBlock*> asked;
  world.sim.set_hooks({.relocate = [&](SimBlock& it) {
    asked.push_back(&it);
    EXPECT_EQ(world.state(it), BlockState::kLeaving);  // no lock is held: nobody else may come
    return willing;
  }});
  const auto relocate = [&](SimBlock& it) {
    auto lock = world.engine.lock();
    return world.engine.relocate(lock, it);
  };
  EXPECT_FALSE(relocate(block));
  EXPECT_EQ(world.stats().relocations, 0);
  willing = true;
  EXPECT_TRUE(relocate(block));
  EXPECT_FALSE(relocate(pinned));
  EXPECT_FALSE(relocate(absent));
  EXPECT_EQ(asked, (std::vector<SimBlock*>{&block, &block}));
  EXPECT_EQ(world.stats().relocations, 1);
  EXPECT_EQ(world.state(block), BlockState::kResident);
  EXPECT_TRUE(world.evict(block));
  EXPECT_EQ(world.stats().clean_evictions, 1);
  world.unpin(pinned);
  check_consistent(world);
}

TEST(EngineRelocate, AFailureLeavesTheBlockWhereItIs) {
  World world(100);
  SimBlock& block = world.used(10, 1);
  world.sim.set_hooks({.relocate = [](SimBlock&) -> bool { throw Error("no"); }});
  auto lock = world.engine.lock();
  EXPECT_THROW((void)world.engine.relocate(lock, block), Error);
  EXPECT_TRUE(lock.owns());
  EXPECT_EQ(block.state, BlockState::kResident);
}

TEST(EngineEvictEverything, APauseInTheMiddleStopsIt) {
  World world(100, {}, std::make_unique<EvictEverythingPolicy>());
  SimBlock& a = world.used(10);
  SimBlock& b = world.used(10);
  world.sim.set_hooks({.mid_move = [&](SimBlock&, Direction) {
    auto lock = world.engine.lock();
    world.engine.pause(lock);
  }});
  world.operator_ended();
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  EXPECT_EQ(world.state(b), BlockState::kResident);
}

TEST(EngineEvictEverything, AFullTierFailsNoOperatorThatHasEnded) {
  World world(100, {.host_bytes = 15}, std::make_unique<EvictEverythingPolicy>());
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  EXPECT_NO_THROW(world.operator_ended());
  EXPECT_EQ(world.stats().evictions, 1);
  EXPECT_TRUE(world.reads(a, 1));
  EXPECT_TRUE(world.reads(b, 2));
  check_consistent(world);
}

}  // namespace
}  // namespace lms::testing
