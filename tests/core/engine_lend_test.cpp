// Blocks that are worked on below, in pieces.

#include <atomic>
#include <thread>

#include "core/engine_fixture.h"

namespace lms::testing {
namespace {

bool lend(World& world, std::vector<Use> uses) {
  auto lock = world.engine.lock();
  return world.engine.lend(lock, uses);
}

void give_back(World& world, std::vector<Use> uses) {
  auto lock = world.engine.lock();
  world.engine.give_back(lock, uses);
}

TEST(EngineLend, SendsAllOfThemBelow) {
  World world(10);
  SimBlock& a = world.used(4, 1);
  SimBlock& b = world.fresh(4, 2);
  EXPECT_TRUE(lend(world, {{&a, true}, {&b, false}}));
  EXPECT_EQ(world.state(a), BlockState::kLent);
  EXPECT_EQ(world.state(b), BlockState::kLent);
  EXPECT_EQ(world.stats().device.current, 0);
  EXPECT_EQ(world.stats().below.current, 8);
  EXPECT_TRUE(world.make_room(10)) << "what is lent takes no room";
  {
    auto lock = world.engine.lock();
    EXPECT_EQ(world.engine.immovable(lock), 0);
  }
  give_back(world, {{&a, true}, {&b, false}});
  EXPECT_EQ(world.state(a), BlockState::kAbsent);
  EXPECT_TRUE(world.reads(a, 1));
  EXPECT_TRUE(world.reads(b, 2));
  check_consistent(world);
}

TEST(EngineLend, AllOrNone) {
  World world(10);
  SimBlock& a = world.used(4, 1);
  SimBlock& kept = world.used(4, 2);
  world.pin(kept);
  world.keep(kept);
  EXPECT_FALSE(lend(world, {{&a, false}, {&kept, false}}));
  EXPECT_NE(world.state(a), BlockState::kLent);
  world.unpin(kept);
  EXPECT_FALSE(lend(world, {{&kept, false}}));
  EXPECT_TRUE(world.reads(a, 1));
  check_consistent(world);
}

TEST(EngineLend, WhoPinsWaitsForTheEnd) {
  World world(10);
  SimBlock& a = world.used(4, 1);
  ASSERT_TRUE(lend(world, {{&a, true}}));
  std::atomic<bool> given{false};
  std::jthread user([&] {
    EXPECT_TRUE(world.reads(a, 1));
    EXPECT_TRUE(given.load());
  });
  for (;;) {
    auto lock = world.engine.lock();
    if (a.pins > 0) break;
  }
  EXPECT_FALSE(world.evict(a));
  given = true;
  give_back(world, {{&a, true}});
  user.join();
  EXPECT_EQ(world.state(a), BlockState::kResident);
  check_consistent(world);
}

TEST(EngineLend, WhatDiesMeanwhileIsGoneAtTheEnd) {
  World world(10);
  SimBlock& a = world.used(4, 1);
  ASSERT_TRUE(lend(world, {{&a, false}}));
  world.remove(a);
  EXPECT_EQ(world.stats().blocks.current, 1);
  give_back(world, {{&a, false}});
  EXPECT_EQ(world.stats().blocks.current, 0);
  EXPECT_EQ(world.stats().below.current, 0);
  check_consistent(world);
}

TEST(EngineLend, TwoWhoWantTheSameTakeTurns) {
  World world(10);
  SimBlock& a = world.used(3, 1);
  SimBlock& b = world.used(3, 2);
  std::atomic<int> inside{0};
  const auto work = [&](std::vector<Use> uses) {
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(lend(world, uses));
      EXPECT_EQ(++inside, 1);
      --inside;
      give_back(world, uses);
    }
  };
  std::jthread one([&] { work({{&a, true}, {&b, false}}); });
  std::jthread other([&] { work({{&b, true}, {&a, false}}); });
  one.join();
  other.join();
  EXPECT_TRUE(world.reads(a, 1));
  check_consistent(world);
}

TEST(EngineLend, AFullTierBelowLeavesAllAsItWas) {
  World world(10, {.host_bytes = 5});
  SimBlock& a = world.used(4, 1);
  SimBlock& b = world.used(4, 2);
  EXPECT_THROW(lend(world, {{&a, false}, {&b, false}}), TierFull);
  EXPECT_NE(world.state(a), BlockState::kLent);
  EXPECT_TRUE(world.reads(a, 1));
  EXPECT_TRUE(world.reads(b, 2));
  check_consistent(world);
}

TEST(EngineLend, WhatFindsNoRoomBelowIsNotComputedAgainAndAgain) {
  World world(10, {.host_bytes = 5});
  int computed = 0;
  world.sim.set_hooks({.drop = [](SimBlock&) { return true; },
                       .rematerialise =
                           [&](SimBlock& block) {
                             ++computed;
                             block.fill(2);
                             return true;
                           }});
  SimBlock& a = world.used(4, 1);
  SimBlock& b = world.used(4, 2);
  EXPECT_THROW(lend(world, {{&a, false}, {&b, false}}), TierFull);
  EXPECT_LE(computed, 1);
  EXPECT_NE(world.state(a), BlockState::kLent);
  EXPECT_TRUE(world.reads(a, 1));
  EXPECT_TRUE(world.reads(b, 2));
  check_consistent(world);
}

/// As on CUDA, where blocks below are moved together so that there is room in one piece.
TEST(EngineLend, WhoMovesBlocksBelowInVainDoesNotTryForEver) {
  World world(10, {.host_bytes = 5});
  SimBlock& below = world.used(4, 1);
  ASSERT_TRUE(world.evict(below));
  SimBlock& a = world.used(4, 2);
  int tries = 0;
  world.sim.set_hooks({.before_page_out = [&](SimBlock&) {
    ASSERT_LT(++tries, 10);
    ASSERT_TRUE(lend(world, {{&below, false}}));
    auto lock = world.engine.lock();
    world.engine.give_back_as_it_was(lock, std::vector<Use>{{&below, false}});
  }});
  EXPECT_THROW(world.make_room(8), TierFull);
  EXPECT_LT(tries, 10);
  world.sim.set_hooks({});
  EXPECT_EQ(world.state(below), BlockState::kAbsent);
  world.remove(below);
  EXPECT_TRUE(world.make_room(8));
  EXPECT_TRUE(world.reads(a, 2));
  check_consistent(world);
}

TEST(EngineLend, WhatDiesWhileItIsMovedBelowIsGoneAtTheEnd) {
  World world(10);
  SimBlock& a = world.used(4, 1);
  ASSERT_TRUE(lend(world, {{&a, false}}));
  world.remove(a);
  {
    auto lock = world.engine.lock();
    world.engine.give_back_as_it_was(lock, std::vector<Use>{{&a, false}});
  }
  EXPECT_EQ(world.stats().blocks.current, 0);
  check_consistent(world);
}

TEST(EngineLend, ABlockIsBornBelow) {
  World world(10);
  auto made = world.sim.make_block(4);
  made->fill(7);
  // As the simulated device has it: on the device, then below.
  SimBlock* block = nullptr;
  {
    (void)world.sim.page_out(*made, /*clean=*/false);
    auto lock = world.engine.lock();
    block = static_cast<SimBlock*>(&world.engine.add_lent(lock, std::move(made)));
  }
  EXPECT_EQ(world.stats().device.current, 0);
  EXPECT_EQ(world.stats().below.current, 4);
  give_back(world, {{block, true}});
  EXPECT_TRUE(world.reads(*block, 7));
  check_consistent(world);
}

}  // namespace
}  // namespace lms::testing
