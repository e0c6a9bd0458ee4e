// A block may die in any state. It must be erased exactly once, by whoever uses it last, and take
// its device and host bytes with it.

#include "engine_fixture.h"

namespace lms::testing {
namespace {

/// One block has lived and is gone without a trace.
void expect_gone(World& world) {
  const EngineStats stats = world.stats();
  EXPECT_EQ(stats.blocks.allocated, 1);
  EXPECT_EQ(stats.blocks.freed, 1);
  EXPECT_EQ(stats.device.current, 0);
  EXPECT_EQ(stats.below.current, 0);
  EXPECT_EQ(stats.pinned.current, 0);
  EXPECT_EQ(world.sim.device_used(), 0);
  EXPECT_EQ(world.sim.host_used(), 0);
  EXPECT_TRUE(world.make_room(10));
  check_consistent(world);
}

TEST(EngineDeath, Fresh) {
  World world(10);
  world.remove(world.fresh(10));
  expect_gone(world);
}

TEST(EngineDeath, Resident) {
  World world(10);
  world.remove(world.used(10));
  expect_gone(world);
}

TEST(EngineDeath, ResidentWithACleanCopy) {
  World world(10);
  SimBlock& a = world.used(10);
  ASSERT_TRUE(world.evict(a));
  world.use(a);
  world.remove(a);
  expect_gone(world);
}

TEST(EngineDeath, PinnedWaitsForTheLastUnpin) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  world.pin(a);
  world.pin(a);
  world.remove(a);
  EXPECT_TRUE(a.holds(1));
  world.unpin(a);
  EXPECT_TRUE(a.holds(1));
  EXPECT_FALSE(world.make_room(1));
  world.unpin(a);
  expect_gone(world);
}

TEST(EngineDeath, PinnedTwiceByOneOperator) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  const std::vector<Use> twice = {{&a, false}, {&a, true}};
  world.pin(twice);
  world.remove(a);
  world.unpin(twice);
  expect_gone(world);
}

TEST(EngineDeath, PinnedFresh) {
  World world(10);
  SimBlock& a = world.fresh(10);
  world.pin(a);
  world.remove(a);
  world.unpin(a);
  expect_gone(world);
}

TEST(EngineDeath, Kept) {
  World world(10);
  SimBlock& a = world.used(10);
  world.pin(a);
  world.keep(a);
  world.remove(a);
  world.unpin(a);
  EXPECT_EQ(world.stats().kept.current, 0);
  expect_gone(world);
}

TEST(EngineDeath, Absent) {
  World world(10);
  SimBlock& a = world.used(10);
  ASSERT_TRUE(world.evict(a));
  world.remove(a);
  expect_gone(world);
}

TEST(EngineDeath, Leaving) {
  World world(10);
  SimBlock& a = world.used(10);
  world.sim.set_hooks({.mid_move = [&](SimBlock& block, Direction direction) {
    EXPECT_EQ(direction, Direction::kOut);
    EXPECT_EQ(world.state(block), BlockState::kLeaving);
    world.remove(block);
    EXPECT_EQ(world.stats().blocks.current, 1) << "its bytes are still being read";
  }});
  EXPECT_TRUE(world.evict(a));
  expect_gone(world);
}

TEST(EngineDeath, LeavingWhenTheMoveFails) {
  World world(10, {.host_bytes = 5});
  SimBlock& a = world.used(10);
  world.sim.set_hooks({.before_page_out = [&](SimBlock& block) { world.remove(block); }});
  EXPECT_THROW(world.evict(a), TierFull);
  expect_gone(world);
}

TEST(EngineDeath, Arriving) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  world.sim.set_hooks({.mid_move = [&](SimBlock& block, Direction) {
    EXPECT_EQ(world.state(block), BlockState::kArriving);
    world.remove(block);
  }});
  world.pin(a);
  EXPECT_TRUE(a.holds(1)) << "its user pinned it before it died";
  world.unpin(a);
  expect_gone(world);
}

TEST(EngineDeath, ArrivingWhenTheMoveFails) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  world.sim.set_hooks({.before_take = [&](Bytes) {
    world.remove(a);
    throw OutOfMemory("the device has none");
  }});
  EXPECT_THROW(world.pin(a), OutOfMemory);
  expect_gone(world);
}

TEST(EngineDeath, UnnoticedUntilItShouldLeave) {
  World world(10);
  world.used(10).die();
  EXPECT_TRUE(world.make_room(10));
  EXPECT_DOUBLE_EQ(world.sim.now_ms(), 0) << "the dead are not copied";
  EXPECT_EQ(world.stats().evictions, 0);
  expect_gone(world);
}

TEST(EngineDeath, UnnoticedUntilItIsCollected) {
  World world(10);
  world.used(10).die();
  {
    auto lock = world.engine.lock();
    world.engine.collect_dead(lock);
  }
  expect_gone(world);
}

TEST(EngineDeath, CollectingLeavesThePinnedToTheirUser) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  world.pin(a);
  a.die();
  {
    auto lock = world.engine.lock();
    world.engine.collect_dead(lock);
  }
  EXPECT_TRUE(a.holds(1));
  world.unpin(a);
  {
    auto lock = world.engine.lock();
    world.engine.collect_dead(lock);
  }
  expect_gone(world);
}

TEST(EngineDeath, UnnoticedUntilItIsPagedIn) {
  World world(10);
  SimBlock& a = world.used(10);
  ASSERT_TRUE(world.evict(a));
  a.die();
  world.pin(a);
  world.unpin(a);
  EXPECT_EQ(world.stats().page_ins, 0);
  expect_gone(world);
}

TEST(EngineDeath, FoundOutByTheMoverWhileLeaving) {
  // The storage dies between the engine's look and the mover's: only the mover notices.
  World world(20);
  SimBlock& a = world.used(10, 1);
  world.sim.set_hooks({.before_page_out = [&](SimBlock& block) { block.die(); }});
  EXPECT_FALSE(world.evict(a));
  expect_gone(world);
}

// Whoever ends the storage has a pointer to the block, and comes when the move is over.

TEST(EngineDeath, WhoEndsItComesAfterTheMoveOut) {
  World world(20);
  SimBlock& a = world.used(10, 1);
  world.sim.set_hooks({.before_page_out = [&](SimBlock& block) { block.begin_to_die(); }});
  EXPECT_FALSE(world.evict(a));
  ASSERT_EQ(world.stats().blocks.current, 1) << "it has been destroyed under somebody's hands";
  EXPECT_EQ(world.state(a), BlockState::kResident);
  EXPECT_FALSE(world.make_room(20)) << "it is still there, and nobody sends it out";
  world.remove(a);
  expect_gone(world);
}

TEST(EngineDeath, WhoEndsItComesAfterTheMoveIn) {
  World world(20);
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  a.begin_to_die();
  world.use(a);
  ASSERT_EQ(world.stats().blocks.current, 1) << "it has been destroyed under somebody's hands";
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  EXPECT_EQ(world.stats().device.current, 0);
  EXPECT_EQ(world.stats().below.current, 10);
  world.remove(a);
  expect_gone(world);
}

TEST(EngineDeath, WhoEndsItComesAfterItShouldHaveBeenComputed) {
  World world(20);
  SimBlock& a = world.used(10, 1);
  world.sim.set_hooks({.drop = [](SimBlock&) { return true; }});
  ASSERT_TRUE(world.drop(a));
  a.begin_to_die();
  (void)world.rematerialise(a);
  ASSERT_EQ(world.stats().blocks.current, 1) << "it has been destroyed under somebody's hands";
  EXPECT_EQ(world.state(a), BlockState::kDropped);
  world.remove(a);
  EXPECT_EQ(world.stats().dropped.current, 0);
  expect_gone(world);
}

TEST(EngineDeath, DestructorRunsWithoutTheEnginesLock) {
  // The destructor of a framework's block may call back.
  class Caller final : public Block {
   public:
    Caller(Engine& owner, bool& called) : Block(1), owner_(owner), called_(called) {}
    ~Caller() override {
      auto lock = owner_.lock();
      called_ = owner_.stats(lock).blocks.current == 0;
    }

   private:
    Engine& owner_;
    bool& called_;
  };
  World world(10);
  bool called = false;
  {
    auto lock = world.engine.lock();
    ASSERT_TRUE(world.engine.reserve(lock, 1));
    Block& block = world.engine.add(lock, std::make_unique<Caller>(world.engine, called));
    world.engine.remove(lock, block);
    EXPECT_FALSE(called);
  }
  EXPECT_TRUE(called);
}

}  // namespace
}  // namespace lms::testing
