// What fails must fail whole: nothing lost, nothing half done, and an error that says what works.

#include <string>

#include "engine_fixture.h"

namespace lms::testing {
namespace {

std::string out_of_memory_text(World& world, std::vector<Use> uses) {
  try {
    world.pin(std::move(uses));
  } catch (const OutOfMemory& error) {
    return error.what();
  }
  return "";
}

TEST(EngineFailures, PinIsAllOrNothing) {
  World world(30);
  SimBlock& a = world.used(20, 1);
  SimBlock& b = world.used(20, 2);  // a leaves
  SimBlock& c = world.used(5, 3);
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  EXPECT_THROW(world.pin({{&c, true}, {&b, false}, {&a, false}}), OutOfMemory);
  for (SimBlock* block : {&a, &b, &c}) {
    EXPECT_EQ(block->pins, 0);
  }
  check_consistent(world);
  EXPECT_TRUE(world.reads(a, 1));
  EXPECT_TRUE(world.reads(b, 2));
  EXPECT_TRUE(world.reads(c, 3));
}

TEST(EngineFailures, FailedPinDoesNotMakeAFreshBlockEvictable) {
  World world(30);
  SimBlock& a = world.used(20, 1);
  SimBlock& fresh = world.fresh(20, 2);  // a leaves
  EXPECT_THROW(world.pin({{&fresh, false}, {&a, false}}), OutOfMemory);
  EXPECT_EQ(world.state(fresh), BlockState::kFresh);
  EXPECT_FALSE(world.make_room(20)) << "its maker may still hold pointers";
  world.use(fresh);
  EXPECT_TRUE(world.make_room(20));
}

TEST(EngineFailures, FailedPinLeavesAFreshBlockToItsOtherUser) {
  World world(30);
  SimBlock& a = world.used(20, 1);
  SimBlock& fresh = world.fresh(20, 2);
  world.pin(fresh);
  EXPECT_THROW(world.pin({{&fresh, false}, {&a, false}}), OutOfMemory);
  world.unpin(fresh);
  EXPECT_EQ(world.state(fresh), BlockState::kResident);
}

TEST(EngineFailures, FreshBlockThatDiesInAFailingPinIsErased) {
  World world(40);
  SimBlock& a = world.used(20, 1);
  SimBlock& fresh = world.fresh(20, 2);
  ASSERT_TRUE(world.evict(a));
  world.sim.set_hooks({.before_take = [&](Bytes) {
    world.remove(fresh);
    throw OutOfMemory("the device has none");
  }});
  EXPECT_THROW(world.pin({{&fresh, false}, {&a, false}}), OutOfMemory);
  EXPECT_EQ(world.stats().blocks.current, 1);
  check_consistent(world);
}

TEST(EngineFailures, FailedPinOfAWriteLeavesTheCopyValid) {
  World world(30);
  SimBlock& a = world.used(20, 1);
  SimBlock& b = world.used(20, 2);
  world.use(a);  // back, and clean
  EXPECT_THROW(world.pin({{&a, true}, {&b, false}}), OutOfMemory);
  const auto before = world.stats().bytes_out;
  EXPECT_TRUE(world.evict(a));
  EXPECT_EQ(world.stats().bytes_out, before);
  EXPECT_TRUE(world.reads(a, 1));
}

TEST(EngineFailures, OutOfMemoryNamesSizesAndALimitThatWorks) {
  World world(30 * kKiB);
  SimBlock& a = world.used(20 * kKiB, 1);
  SimBlock& b = world.used(20 * kKiB, 2);
  world.pin(b);
  const std::string text = out_of_memory_text(world, {{&a, false}});
  EXPECT_NE(text.find("a block of 20.0 KiB"), std::string::npos) << text;
  EXPECT_NE(text.find("limit of 30.0 KiB"), std::string::npos) << text;
  EXPECT_NE(text.find("the 20.0 KiB that cannot leave"), std::string::npos) << text;
  EXPECT_NE(text.find("at least 40.0 KiB would work"), std::string::npos) << text;
  {
    auto lock = world.engine.lock();
    world.engine.set_options(lock, {.limit = 40 * kKiB});
  }
  EXPECT_EQ(out_of_memory_text(world, {{&a, false}}), "");
  EXPECT_TRUE(a.holds(1));
}

TEST(EngineFailures, FailedPageInLeavesTheBlockBelow) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  world.sim.fail_next(Direction::kIn, 1);
  EXPECT_THROW(world.pin(a), OutOfMemory);
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  check_consistent(world);
  EXPECT_TRUE(world.reads(a, 1));
}

TEST(EngineFailures, TierFullLeavesEverythingIntact) {
  World world(20, {.host_bytes = 5});
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  EXPECT_THROW(world.make_room(1), TierFull);
  EXPECT_THROW(world.evict(a), TierFull);
  {
    auto lock = world.engine.lock();
    EXPECT_THROW(world.engine.reclaim(lock, 1), TierFull);
    EXPECT_THROW(world.engine.reclaim_one(lock, 1, 100), TierFull);
    EXPECT_TRUE(lock.owns());
  }
  EXPECT_EQ(world.state(a), BlockState::kResident);
  EXPECT_TRUE(a.holds(1));
  EXPECT_TRUE(b.holds(2));
  EXPECT_EQ(world.stats().evictions, 0);
  EXPECT_EQ(world.sim.host_used(), 0);
  check_consistent(world);
}

TEST(EngineFailures, TierFullInAPinUnpinsEverything) {
  World world(20, {.host_bytes = 10});
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(20, 2);  // a leaves; host memory is full
  EXPECT_THROW(world.pin(a), TierFull);
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  EXPECT_EQ(world.state(b), BlockState::kResident);
  check_consistent(world);
  world.remove(b);
  EXPECT_TRUE(world.reads(a, 1));
}

TEST(EngineFailures, CleanCopiesMakeRoomBelowBeforeTierFull) {
  // host 10: A's copy fills it. B must leave: A's copy goes, B's comes.
  World world(20, {.host_bytes = 10});
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  ASSERT_TRUE(world.evict(a));
  world.use(a);
  EXPECT_EQ(world.sim.host_used(), 10);
  EXPECT_TRUE(world.evict(b));
  EXPECT_EQ(world.sim.host_used(), 10);
  EXPECT_TRUE(a.holds(1));
  EXPECT_THROW(world.evict(a), TierFull) << "its copy was given up";
  EXPECT_TRUE(world.reads(b, 2));
}

TEST(EngineFailures, CopiesGoUntilWhatIsFreeBelowIsInOnePiece) {
  World world(30);
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  SimBlock& c = world.used(10, 3);
  for (SimBlock* block : {&a, &b}) {
    ASSERT_TRUE(world.evict(*block));
    world.use(*block);
  }
  world.sim.fail_next(Direction::kOut, 3);  // as if each copy were in the way
  EXPECT_TRUE(world.evict(c));
  EXPECT_EQ(world.sim.host_used(), 10);
  check_consistent(world);
}

TEST(EngineFailures, WhereOneDoesNotFitBelowASmallerOneLeaves) {
  World world(40, {.host_bytes = 15});
  SimBlock& a = world.used(20, 1);
  SimBlock& b = world.used(10, 2);
  SimBlock& c = world.used(10, 3);
  world.sim.set_hooks({.drop = [](SimBlock&) { return true; }});
  EXPECT_TRUE(world.make_room(10));
  EXPECT_EQ(world.state(a), BlockState::kResident);
  EXPECT_EQ(world.state(b), BlockState::kAbsent);
  EXPECT_EQ(world.stats().drops, 0) << "nothing has to be computed again";
  EXPECT_TRUE(world.make_room(20));
  EXPECT_EQ(world.state(a), BlockState::kDropped) << "nothing else helps";
  EXPECT_TRUE(c.holds(3));
  check_consistent(world);
}

TEST(EngineFailures, CopiesOfTheDeadMakeRoomBelowBeforeTierFull) {
  World world(20, {.host_bytes = 10});
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  ASSERT_TRUE(world.evict(a));
  world.use(a);
  a.die();  // unnoticed, with a copy below
  EXPECT_TRUE(world.evict(b));
  EXPECT_TRUE(world.reads(b, 2));
  EXPECT_EQ(world.stats().blocks.current, 1);
}

TEST(EngineFailures, DropCopiesGivesBackAsMuchAsIsAsked) {
  World world(30);
  std::vector<SimBlock*> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(&world.used(10, i));
    ASSERT_TRUE(world.evict(*blocks.back()));
  }
  {
    auto lock = world.engine.lock();
    EXPECT_EQ(world.engine.drop_copies(lock, 30), 0) << "absent blocks have nothing else";
    EXPECT_EQ(world.engine.return_all(lock), 0);
    EXPECT_EQ(world.engine.drop_copies(lock, 15), 20);
  }
  EXPECT_EQ(world.sim.host_used(), 10);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(world.evict(*blocks[i]));
    EXPECT_TRUE(world.reads(*blocks[i], i));
  }
  EXPECT_EQ(world.stats().clean_evictions, 1);
}

TEST(EngineFailures, VerifyCatchesAnUndeclaredWrite) {
  World world(10);
  {
    auto lock = world.engine.lock();
    world.engine.set_options(lock, {.limit = 10, .verify = true});
  }
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  world.use(a);
  EXPECT_TRUE(world.evict(a)) << "the copy is right";
  world.pin(a);
  a.fill(2);
  world.unpin(a);
  EXPECT_THROW(world.evict(a), Error);
  EXPECT_EQ(world.state(a), BlockState::kResident);
  EXPECT_TRUE(a.holds(2)) << "the device has the true bytes";
  check_consistent(world);
  world.write(a, 3);
  EXPECT_TRUE(world.evict(a));
  EXPECT_TRUE(world.reads(a, 3));
}

// A meter counts instead of the engine; the allocator bridge makes room when bytes are taken.

class SimMeter final : public Meter {
 public:
  explicit SimMeter(const SimDevice& sim) : sim_(sim) {}
  [[nodiscard]] Bytes in_use() const override { return sim_.device_used(); }

 private:
  const SimDevice& sim_;
};

TEST(EngineMeter, MakesRoomByWhatTheMeterSays) {
  SimDevice sim({});
  SimMeter meter(sim);
  Engine engine({.limit = 30}, sim, std::make_unique<LruPolicy>(), &meter);
  sim.set_hooks({.before_take = [&](Bytes bytes) {
    auto lock = engine.lock();
    if (!engine.make_room(lock, bytes)) throw OutOfMemory("the bridge finds no room");
  }});
  const auto make = [&](Bytes size) -> SimBlock& {
    {
      auto lock = engine.lock();
      EXPECT_TRUE(engine.make_room(lock, size));
    }
    auto block = sim.make_block(size);
    block->fill(static_cast<std::uint64_t>(size));
    auto lock = engine.lock();
    auto& added = static_cast<SimBlock&>(engine.add(lock, std::move(block)));
    const Use use{&added, false};
    engine.pin(lock, {&use, 1});
    engine.unpin(lock, {&use, 1});
    return added;
  };
  SimBlock& a = make(10);
  const auto unmanaged = sim.make_block(10);
  SimBlock& b = make(11);  // a leaves
  auto lock = engine.lock();
  EXPECT_EQ(a.state, BlockState::kAbsent);
  EXPECT_EQ(engine.stats(lock).device.current, 11);
  EXPECT_FALSE(engine.make_room(lock, 21)) << "what it does not manage cannot leave";
  EXPECT_EQ(engine.stats(lock).below.current, 21);
  const Use use{&a, false};
  engine.pin(lock, {&use, 1});
  EXPECT_TRUE(a.holds(10));
  EXPECT_EQ(engine.stats(lock).device.current, 10);
  const Use other{&b, false};
  EXPECT_THROW(engine.pin(lock, {&other, 1}), OutOfMemory);
  EXPECT_EQ(b.state, BlockState::kAbsent);
  EXPECT_EQ(engine.stats(lock).device.current, 10);
  engine.unpin(lock, {&use, 1});
  engine.pin(lock, {&other, 1});
  EXPECT_TRUE(b.holds(11));
  EXPECT_EQ(a.state, BlockState::kAbsent);
  engine.unpin(lock, {&other, 1});
}

TEST(EngineMeter, ReturnAllEvictsNothing) {
  SimDevice sim({});
  SimMeter meter(sim);
  Engine engine({.limit = 20}, sim, std::make_unique<LruPolicy>(), &meter);
  sim.set_hooks({.before_take = [&](Bytes bytes) {
    auto lock = engine.lock();
    if (!engine.make_room(lock, bytes)) throw OutOfMemory("the bridge finds no room");
  }});
  auto lock = engine.lock();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(engine.make_room(lock, 10));
    const Use use{&engine.add(lock, sim.make_block(10)), false};
    engine.pin(lock, {&use, 1});
    engine.unpin(lock, {&use, 1});
  }
  EXPECT_EQ(engine.reclaim(lock, 20), 20);
  EXPECT_EQ(engine.return_all(lock), 10);
  EXPECT_EQ(engine.stats(lock).evictions, 3);
}

}  // namespace
}  // namespace lms::testing
