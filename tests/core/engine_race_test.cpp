// Threads that meet in the middle of a move. A hook in the simulated device stops the move there,
// so that each meeting happens for certain; nothing here sleeps.

#include <atomic>
#include <barrier>
#include <random>
#include <thread>

#include "engine_fixture.h"

namespace lms::testing {
namespace {

/// Stops the next move in one direction until it is told to go on.
class Turnstile {
 public:
  Turnstile(World& world, Direction direction) {
    world.sim.set_hooks({.mid_move = [this, direction](SimBlock&, Direction moving) {
      if (moving != direction || passed_.exchange(true)) return;
      reached.open();
      go_on.wait();
    }});
  }
  Gate reached;
  Gate go_on;

 private:
  std::atomic<bool> passed_{false};
};

/// Waits until `count` pins are on the block: those threads wait for it, or are about to.
void wait_for_pins(World& world, const SimBlock& block, int count) {
  for (;;) {
    {
      auto lock = world.engine.lock();
      if (block.pins >= count) return;
    }
    std::this_thread::yield();
  }
}

TEST(EngineRace, PinOfALeavingBlockWaitsAndBringsItBack) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  Turnstile turnstile(world, Direction::kOut);
  std::jthread evictor([&] { EXPECT_TRUE(world.evict(a)); });
  turnstile.reached.wait();
  std::jthread user([&] { EXPECT_TRUE(world.reads(a, 1)); });
  wait_for_pins(world, a, 1);
  EXPECT_EQ(world.state(a), BlockState::kLeaving);
  turnstile.go_on.open();
  user.join();
  evictor.join();
  EXPECT_EQ(world.stats().page_ins, 1);
  check_consistent(world);
}

TEST(EngineRace, WriteOfALeavingBlockIsNotLost) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  Turnstile turnstile(world, Direction::kOut);
  std::jthread evictor([&] { EXPECT_TRUE(world.evict(a)); });
  turnstile.reached.wait();
  std::jthread user([&] { world.write(a, 2); });
  wait_for_pins(world, a, 1);
  turnstile.go_on.open();
  user.join();
  evictor.join();
  EXPECT_TRUE(world.evict(a));
  EXPECT_TRUE(world.reads(a, 2));
}

TEST(EngineRace, PinOfABlockWhoseLeavingFailsFindsItHere) {
  World world(10, {.host_bytes = 5});
  SimBlock& a = world.used(10, 1);
  Gate reached;
  Gate go_on;
  std::atomic<bool> passed{false};
  world.sim.set_hooks({.before_page_out = [&](SimBlock&) {
    if (passed.exchange(true)) return;
    reached.open();
    go_on.wait();
  }});
  std::jthread evictor([&] { EXPECT_THROW(world.evict(a), TierFull); });
  reached.wait();
  std::jthread user([&] { EXPECT_TRUE(world.reads(a, 1)); });
  wait_for_pins(world, a, 1);
  go_on.open();
  user.join();
  evictor.join();
  EXPECT_EQ(world.stats().page_ins, 0);
  check_consistent(world);
}

TEST(EngineRace, OneArrivalServesAllWhoWaitForIt) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  Turnstile turnstile(world, Direction::kIn);
  std::vector<std::jthread> users;
  for (int i = 0; i < 4; ++i) {
    users.emplace_back([&] { EXPECT_TRUE(world.reads(a, 1)); });
  }
  turnstile.reached.wait();
  wait_for_pins(world, a, 4);
  turnstile.go_on.open();
  users.clear();
  EXPECT_EQ(world.stats().page_ins, 1);
  check_consistent(world);
}

TEST(EngineRace, MakeRoomWaitsForAnotherThreadsLeavingBlock) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  Turnstile turnstile(world, Direction::kOut);
  std::jthread evictor([&] { EXPECT_TRUE(world.evict(a)); });
  turnstile.reached.wait();
  std::atomic<bool> made{false};
  std::jthread allocator([&] {
    EXPECT_TRUE(world.make_room(10)) << "the room is on its way";
    made.store(true);
  });
  // Were it not to wait, it would have failed by the time that this thread has had the lock often.
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(world.state(a), BlockState::kLeaving);
    std::this_thread::yield();
  }
  EXPECT_FALSE(made.load());
  turnstile.go_on.open();
  allocator.join();
  evictor.join();
}

TEST(EngineRace, MakeRoomDoesNotWaitForAnArrival) {
  World world(10);
  SimBlock& a = world.used(10, 1);
  ASSERT_TRUE(world.evict(a));
  Turnstile turnstile(world, Direction::kIn);
  std::jthread user([&] { EXPECT_TRUE(world.reads(a, 1)); });
  turnstile.reached.wait();
  EXPECT_FALSE(world.make_room(1)) << "an arriving block is about to be used";
  turnstile.go_on.open();
}

TEST(EngineRace, ALeavingBlockIsNotImmovable) {
  World world(30);
  SimBlock& a = world.used(10, 1);
  world.fresh(20);
  Turnstile turnstile(world, Direction::kOut);
  std::jthread evictor([&] { EXPECT_TRUE(world.evict(a)); });
  turnstile.reached.wait();
  {
    auto lock = world.engine.lock();
    EXPECT_EQ(world.engine.immovable(lock), 20);
  }
  std::jthread user([&] { EXPECT_TRUE(world.reads(a, 1)); });
  wait_for_pins(world, a, 1);
  {
    auto lock = world.engine.lock();
    EXPECT_EQ(world.engine.immovable(lock), 30) << "its user wants it back";
  }
  turnstile.go_on.open();
}

TEST(EngineRace, TwoThreadsThatPinTheSamePairDoNotDeadlock) {
  World world(20);
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  constexpr int kRounds = 200;
  std::barrier round(2);
  const auto user = [&](SimBlock& first, SimBlock& second) {
    for (int i = 0; i < kRounds; ++i) {
      round.arrive_and_wait();
      world.pin({{&first, false}, {&second, false}});
      EXPECT_TRUE(a.holds(1));
      EXPECT_TRUE(b.holds(2));
      world.unpin({{&first, false}, {&second, false}});
      world.evict(first);
    }
  };
  std::jthread one([&] { user(a, b); });
  std::jthread two([&] { user(b, a); });
  one.join();
  two.join();
  check_consistent(world);
}

TEST(EngineRace, SettingsChangeWhileBlocksMove) {
  World world(20);
  SimBlock& a = world.used(10, 1);
  std::atomic<bool> done{false};
  std::atomic<int> changes{0};
  std::jthread setter([&] {
    for (bool verify = false; !done.load(); verify = !verify) {
      auto lock = world.engine.lock();
      world.engine.set_options(lock, {.limit = 20, .verify = verify});
      ++changes;
    }
  });
  // Every move out meets at least one change.
  world.sim.set_hooks({.before_page_out = [&](SimBlock&) {
    const int seen = changes.load();
    while (changes.load() == seen) std::this_thread::yield();
  }});
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(world.evict(a));
    EXPECT_TRUE(world.reads(a, 1));
  }
  done.store(true);
}

// Everything at once. Each thread owns a few blocks, which it alone writes and ends; all threads
// read the shared ones. Every pinned block's bytes are compared with what they must be.

struct Owned {
  SimBlock* block;
  std::uint64_t value;
};

class Crowd {
 public:
  static constexpr Bytes kLimit = 600;
  static constexpr int kThreads = 4;
  static constexpr int kRounds = 1500;

  explicit Crowd(std::unique_ptr<Policy> policy) : world_(kLimit, {}, std::move(policy)) {
    for (std::uint64_t i = 0; i < 6; ++i) shared_.push_back({&world_.used(40, 1000 + i), 1000 + i});
    world_.sim.set_hooks({.mid_move = [](SimBlock&, Direction) { std::this_thread::yield(); }});
  }

  void run() {
    std::barrier start(kThreads);
    std::vector<std::jthread> threads;
    for (int id = 0; id < kThreads; ++id) {
      threads.emplace_back([this, id, &start] {
        start.arrive_and_wait();
        live(id);
      });
    }
    threads.clear();
    check_at_rest();
  }

 private:
  void live(int id) {
    std::mt19937 random(static_cast<unsigned>(id) + 17);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
    std::vector<Owned> mine;
    std::uint64_t next_value = static_cast<std::uint64_t>(id) << 32U;
    for (int round = 0; round < kRounds; ++round) {
      switch (below(8)) {
        case 0:
          if (mine.size() < 8) {
            const auto size = static_cast<Bytes>(10 + below(30));
            // At most 4 x (2 pinned x 40 + 1 fresh x 40) bytes cannot leave: there is always room.
            SimBlock& block = world_.used(size, ++next_value);
            mine.push_back({&block, next_value});
          }
          break;
        case 1:
          if (!mine.empty()) {
            const std::size_t victim = below(mine.size());
            world_.remove(*mine[victim].block);
            mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(victim));
          }
          break;
        case 2:
          if (!mine.empty()) {
            Owned& owned = mine[below(mine.size())];
            owned.value = ++next_value;
            world_.write(*owned.block, owned.value);
          }
          break;
        case 3:
          if (!mine.empty()) world_.evict(*mine[below(mine.size())].block);
          break;
        case 4:
          world_.make_room(static_cast<Bytes>(below(60)));
          break;
        default: {
          const Owned& owned = mine.empty() ? shared_[0] : mine[below(mine.size())];
          const Owned& other = shared_[below(shared_.size())];
          world_.pin({{owned.block, false}, {other.block, false}});
          EXPECT_TRUE(owned.block->holds(owned.value));
          EXPECT_TRUE(other.block->holds(other.value));
          world_.unpin({{owned.block, false}, {other.block, false}});
          world_.operator_ended();
        }
      }
    }
    for (const Owned& owned : mine) world_.remove(*owned.block);
  }

  void check_at_rest() {
    check_consistent(world_);
    EXPECT_EQ(world_.stats().blocks.current, static_cast<std::int64_t>(shared_.size()));
    for (const Owned& owned : shared_) EXPECT_TRUE(world_.reads(*owned.block, owned.value));
    EXPECT_GT(world_.stats().evictions, 0);
  }

  World world_;
  std::vector<Owned> shared_;
};

TEST(EngineRace, CrowdUnderLru) { Crowd(std::make_unique<LruPolicy>()).run(); }

TEST(EngineRace, CrowdUnderEvictEverything) {
  Crowd(std::make_unique<EvictEverythingPolicy>()).run();
}

}  // namespace
}  // namespace lms::testing
