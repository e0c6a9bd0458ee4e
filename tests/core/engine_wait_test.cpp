// Threads whose operators fit alone, but not side by side: each waits for the other's end, or
// begins anew, and none runs out of memory. Gates say who comes when; nothing here sleeps.

#include "engine_wait.h"

#include <atomic>
#include <barrier>
#include <random>
#include <thread>

namespace lms::testing {
namespace {

TEST_F(EngineWait, AnAllocationWaitsForTheEndOfAnothersOperator) {
  SimBlock& a = world.used(60, 1);
  first.pin(a);
  std::atomic<bool> done{false};
  std::jthread other([&] {
    SimBlock* made = second.make(60);
    EXPECT_NE(made, nullptr) << "there is room as soon as the other has ended";
    done.store(true);
    second.end();
  });
  wait_for_waiting(world, 1);
  EXPECT_FALSE(done.load());
  first.end();
  other.join();
  check_consistent(world);
}

TEST_F(EngineWait, APageInWaitsToo) {
  SimBlock& b = world.used(60, 2);
  ASSERT_TRUE(world.evict(b));
  SimBlock& a = world.used(60, 1);
  first.pin(a);
  std::jthread other([&] {
    EXPECT_NO_THROW(second.pin(b));
    EXPECT_TRUE(b.holds(2));
    second.end();
  });
  wait_for_waiting(world, 1);
  first.end();
}

TEST_F(EngineWait, AnAllocationWaitsWhereTheTierBelowIsFull) {
  World tight(100, {.host_bytes = 10});
  Worker holds(tight);
  Worker wants(tight);
  SimBlock& stays = tight.used(20, 1);
  SimBlock* const made = holds.make(60);
  ASSERT_NE(made, nullptr);
  std::jthread other([&] {
    EXPECT_NO_THROW(EXPECT_NE(wants.make(60), nullptr));
    wants.end();
  });
  wait_for_waiting(tight, 1);
  tight.remove(*made);
  holds.end();
  other.join();
  EXPECT_TRUE(tight.reads(stays, 1));
  check_consistent(tight);
}

TEST_F(EngineWait, WhatCannotLeaveKeepsNobodyWaiting) {
  World tight(100, {.host_bytes = 10});
  SimBlock& stays = tight.used(20, 1);
  Worker one(tight);
  Worker two(tight);
  SimBlock* const of_one = one.make(35);
  SimBlock* const of_two = two.make(35);
  ASSERT_TRUE(of_one != nullptr && of_two != nullptr);
  std::atomic<int> made{0};
  const auto try_to = [&](Worker& worker, SimBlock& own) {
    worker.holder.repeatable = true;
    // Both try to send out the block that has no room below.
    try {
      if (worker.make(30) != nullptr) ++made;
    } catch (const TierFull&) {
      EXPECT_TRUE(worker.holder.contended());
    }
    tight.remove(own);
    worker.end();
  };
  std::jthread other([&] { try_to(two, *of_two); });
  wait_for_waiting(tight, 1);
  try_to(one, *of_one);
  other.join();
  EXPECT_EQ(made.load(), 1) << "one is refused, and the other has its room";
  EXPECT_TRUE(tight.reads(stays, 1));
}

TEST_F(EngineWait, WhatNeverFitsFailsAtOnceOrWhenAlone) {
  SimBlock& a = world.used(60, 1);
  EXPECT_EQ(second.make(101), nullptr);
  second.end();
  first.pin(a);
  std::jthread other([&] {
    EXPECT_EQ(second.make(101), nullptr);
    second.end();
  });
  wait_for_waiting(world, 1);
  first.end();
}

TEST_F(EngineWait, NobodyWaitsForWhoMayNeverEnd) {
  SimBlock& a = world.used(60, 1);
  first.holder.ends = false;  // a collective, say, that waits for the second thread
  first.pin(a);
  EXPECT_EQ(second.make(60), nullptr);
  second.end();
  first.end();
}

TEST_F(EngineWait, NorForWhatIsKeptOrHeldOutsideOperators) {
  SimBlock& a = world.used(60, 1);
  world.pin(a);
  EXPECT_EQ(second.make(60), nullptr);
  second.end();
  world.unpin(a);
}

TEST_F(EngineWait, OfTwoWhoWaitForEachOtherOneIsRefusedAndLaterAlone) {
  SimBlock& a = world.used(40, 1);
  SimBlock& b = world.used(40, 2);
  first.holder.repeatable = true;
  first.pin(a);
  second.pin(b);
  std::jthread other([&] {
    // The second could not begin anew: the first has to.
    EXPECT_NE(second.make(50), nullptr);
    second.end();
  });
  wait_for_waiting(world, 1);
  EXPECT_EQ(first.make(50), nullptr);
  EXPECT_TRUE(first.holder.contended());
  first.end(/*to_try_again=*/true);
  first.pin(a);  // waits for the second, and keeps others out
  EXPECT_NE(first.make(50), nullptr);
  Worker third(world);
  std::atomic<bool> begun{false};
  std::jthread late([&] {
    third.pin(b);
    begun.store(true);
    third.end();
  });
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_FALSE(begun.load()) << "the first is alone";
  first.end();
  EXPECT_FALSE(first.holder.contended());
  late.join();
  other.join();
  check_consistent(world);
}

TEST_F(EngineWait, TheOtherIsRefusedWhereOnlyItCanBeginAnew) {
  SimBlock& a = world.used(40, 1);
  SimBlock& b = world.used(40, 2);
  first.holder.repeatable = true;
  first.pin(a);
  second.pin(b);
  std::jthread other([&] {
    EXPECT_EQ(first.make(50), nullptr);
    EXPECT_TRUE(first.holder.contended());
    first.end(/*to_try_again=*/true);
    first.pin(a);
    EXPECT_NE(first.make(50), nullptr);
    first.end();
  });
  wait_for_waiting(world, 1);
  EXPECT_NE(second.make(50), nullptr);
  second.end();
}

TEST_F(EngineWait, AnArrivalThatWaitsForWhoWaitsForIt) {
  // The first brings c in, and waits for room that the second holds; the second wants c.
  SimBlock& c = world.used(60, 3);
  ASSERT_TRUE(world.evict(c));
  SimBlock& b = world.used(50, 2);
  second.pin(b);
  std::jthread other([&] {
    EXPECT_THROW(first.pin(c), OutOfMemory);
    EXPECT_TRUE(first.holder.contended());
    first.end(/*to_try_again=*/true);
    first.pin(c);
    EXPECT_TRUE(c.holds(3));
    first.end();
  });
  wait_for_waiting(world, 1);
  EXPECT_THROW(second.pin(c), OutOfMemory) << "50 and 60 bytes at once";
  second.end();
  other.join();
  check_consistent(world);
}

TEST_F(EngineWait, ALargerLimitEndsTheWait) {
  SimBlock& a = world.used(60, 1);
  first.pin(a);
  std::jthread other([&] { EXPECT_NE(second.make(60), nullptr); });
  wait_for_waiting(world, 1);
  {
    auto lock = world.engine.lock();
    world.engine.set_options(lock, {.limit = 120});
  }
  other.join();
  second.end();
  first.end();
}

TEST_F(EngineWait, APauseEndsTheWait) {
  SimBlock& a = world.used(60, 1);
  first.pin(a);
  std::jthread other([&] { EXPECT_EQ(second.make(60), nullptr); });
  wait_for_waiting(world, 1);
  {
    auto lock = world.engine.lock();
    world.engine.pause(lock);
  }
  other.join();
  second.end();
  first.end();
  auto lock = world.engine.lock();
  world.engine.resume(lock);
}

TEST_F(EngineWait, WhoHoldsLocksThatOthersNeedIsRefusedAtOnce) {
  SimBlock& a = world.used(60, 1);
  first.pin(a);
  second.pin(world.used(10, 2));
  second.holder.holds_locks = true;  // a generator's, say, that the first waits for in its kernel
  EXPECT_EQ(second.make(60), nullptr);
  EXPECT_TRUE(second.holder.contended()) << "alone it would fit";
  second.holder.holds_locks = false;
  second.end();
  first.end();
}

TEST_F(EngineWait, WhoWillHoldThemEntersAloneWhereRoomIsShort) {
  SimBlock& a = world.used(60, 1);
  SimBlock& b = world.used(10, 2);
  first.pin(a);
  std::atomic<bool> entered{false};
  std::jthread other([&] {
    second.holder.wants_alone = true;
    second.pin(b);
    entered.store(true);
    second.holder.holds_locks = true;
    EXPECT_NE(second.make(60), nullptr);
    second.holder.holds_locks = false;
    second.end();
  });
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_FALSE(entered.load()) << "the first is inside";
  first.end();
  other.join();
  second.holder.wants_alone = false;
  check_consistent(world);
}

TEST_F(EngineWait, WhoHoldsThemEntersThoughAnotherQueues) {
  SimBlock& a = world.used(60, 1);
  Worker third(world);
  third.pin(a);
  std::jthread other([&] {
    EXPECT_NE(first.make(60), nullptr);
    first.end();
  });
  wait_for_waiting(world, 1);
  // In its kernel already, and the third cannot end before it has ended.
  second.holder.holds_locks = true;
  EXPECT_NE(second.make(5), nullptr);
  second.holder.holds_locks = false;
  second.end();
  third.end();
}

/// As the next, and half of the operators allocate under one lock, and cannot be done again.
TEST_F(EngineWait, NobodyIsRefusedForALockThatAllTake) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 400;
  std::vector<SimBlock*> shared;
  for (std::uint64_t i = 0; i < 5; ++i) shared.push_back(&world.used(20, 50 + i));
  ASSERT_TRUE(world.evict(*shared[0]));
  world.sim.set_hooks({.mid_move = [](SimBlock&, Direction) { std::this_thread::yield(); }});
  std::mutex generator;
  std::barrier start(kThreads);
  std::vector<std::jthread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(static_cast<unsigned>(id) + 11);
      const auto below = [&](unsigned n) { return static_cast<unsigned>(random()) % n; };
      Worker worker(world);
      start.arrive_and_wait();
      for (int round = 0; round < kRounds; ++round) {
        const bool locks = below(2) == 0;
        SimBlock& input = *shared[below(5)];
        const auto size = static_cast<Bytes>(20 + below(50));
        for (int tries = 0; tries < 2; ++tries) {
          worker.holder.repeatable = !locks && tries == 0;
          worker.holder.wants_alone = locks;
          SimBlock* made = nullptr;
          try {
            worker.pin(input);
            std::unique_lock<std::mutex> held(generator, std::defer_lock);
            if (locks) held.lock();
            worker.holder.holds_locks = locks;
            for (unsigned i = below(20); i > 0; --i) std::this_thread::yield();
            made = worker.make(size);
          } catch (const OutOfMemory&) {
            made = nullptr;
          }
          worker.holder.holds_locks = false;
          const bool again = made == nullptr && worker.holder.contended();
          if (made != nullptr) world.remove(*made);
          worker.end(/*to_try_again=*/again);
          EXPECT_TRUE(made != nullptr || (again && !locks && tries == 0)) << "alone it fits";
          if (made != nullptr) break;
        }
      }
    });
  }
  threads.clear();
  check_consistent(world);
}

/// Operators that need up to 95 of 100 bytes, from several threads at once, in several steps each:
/// whatever they hold meanwhile, each comes to its end.
TEST_F(EngineWait, EverybodyComesToHisEnd) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 400;
  std::vector<SimBlock*> shared;
  for (std::uint64_t i = 0; i < 5; ++i) shared.push_back(&world.used(20, 50 + i));
  world.sim.set_hooks({.mid_move = [](SimBlock&, Direction) { std::this_thread::yield(); }});
  std::barrier start(kThreads);
  std::atomic<int> again{0};
  std::vector<std::jthread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(static_cast<unsigned>(id) + 3);
      const auto below = [&](unsigned n) { return static_cast<unsigned>(random()) % n; };
      Worker worker(world);
      start.arrive_and_wait();
      for (int round = 0; round < kRounds; ++round) {
        const unsigned reads = below(5);
        std::vector<std::size_t> inputs;
        for (unsigned i = 0; i < 2; ++i) inputs.push_back((reads + i) % shared.size());
        const auto first = static_cast<Bytes>(5 + below(25));
        const auto second = static_cast<Bytes>(5 + below(20));
        for (int tries = 0;; ++tries) {
          std::vector<SimBlock*> made;
          bool whole = true;
          worker.holder.repeatable = tries == 0;
          try {
            worker.pin({{shared[inputs[0]], false}, {shared[inputs[1]], false}});
            for (const std::size_t i : inputs) EXPECT_TRUE(shared[i]->holds(50 + i));
            for (const Bytes size : {first, second}) {
              SimBlock* block = whole ? worker.make(size) : nullptr;
              whole = whole && block != nullptr;
              if (block != nullptr) made.push_back(block);
            }
          } catch (const OutOfMemory&) {
            whole = false;
          }
          for (SimBlock* block : made) EXPECT_TRUE(block->holds(9));
          const bool contended = worker.holder.contended();
          for (SimBlock* block : made) world.remove(*block);
          worker.end(/*to_try_again=*/!whole);
          if (whole) break;
          EXPECT_TRUE(contended) << "all of it fits alone";
          EXPECT_EQ(tries, 0) << "alone it fits";
          if (!contended || tries > 0) break;
          ++again;
        }
      }
    });
  }
  threads.clear();
  check_consistent(world);
  EXPECT_GT(world.stats().evictions, 0);
}

}  // namespace
}  // namespace lms::testing
