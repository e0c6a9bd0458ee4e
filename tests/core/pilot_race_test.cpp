// Settings that change while a step is planned, by other threads than the one that runs it. Gates
// and counters say when; nothing here sleeps.

#include <sys/resource.h>

#include <array>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "engine_fixture.h"
#include "pilot/pilot.h"

namespace lms::testing {
namespace {

/// Places nothing, and stops wherever a test wants it to.
class SlowDevice final : public PilotDevice {
 public:
  void start_laps() override { laps_ = 0; }
  void lap() override { ++laps_; }
  Laps finish_laps() override {
    planning();
    Laps laps;
    for (int i = 0; i < laps_; ++i) {
      laps.operators.push_back(
          {.begin_ms = static_cast<double>(i), .end_ms = i + 1.0, .waited_ms = 0});
    }
    return laps;
  }
  Room room(bool /*first*/) override {
    looking_for_room();
    return {.arena = 2048, .addresses = false};
  }
  LinkModel link() override { return {.out_bytes_per_ms = 512, .in_bytes_per_ms = 512}; }
  void say(const std::string& /*line*/) override {}

  std::function<void()> looking_for_room = [] {};
  std::function<void()> planning = [] {};

 private:
  int laps_ = 0;
};

/// A loop that does not fit, and is therefore planned.
class PlannedLoop {
 public:
  static constexpr Bytes kBytes = 512;
  static constexpr Bytes kLimit = 4 * kBytes;

  explicit PlannedLoop(bool in_foreground) : in_foreground_(in_foreground) {
    restart();
    for (SimBlock*& block : blocks_) {
      block = &world.used(kBytes, 7);
      block->uid = Pilot::new_uid();
    }
  }
  ~PlannedLoop() { pilot.stop(); }

  /// As enable() does where LMS is on. With the same settings the pilot would go on.
  void restart() {
    const int rounds = 20 + ++restarts_ % 2;
    pilot.start({.limit = kLimit, .in_foreground = in_foreground_, .search = {.rounds = rounds}});
    pilot.wake();
  }
  void step() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      (void)pilot.begin_operator(100 + i, "op", true);
      const std::array uses{Use{blocks_[i], false}};
      {
        auto lock = world.engine.lock();
        world.engine.pin(lock, uses);
        pilot.touch(lock, uses);
      }
      EXPECT_TRUE(blocks_[i]->holds(7));
      {
        auto lock = world.engine.lock();
        world.engine.unpin(lock, uses);
        world.engine.operator_ended(lock);
      }
      pilot.end_operator();
    }
  }

  World world{kLimit};
  SlowDevice device;
  Pilot pilot{world.engine, device};

 private:
  bool in_foreground_;
  std::atomic<int> restarts_{0};
  std::array<SimBlock*, 8> blocks_{};
};

/// Whatever happened before, one thread alone gets a plan.
void expect_planned(PlannedLoop& loop) {
  for (int i = 0; i < 12; ++i) loop.step();
  loop.pilot.wait_for_plan();
  for (int i = 0; i < 3; ++i) loop.step();
  EXPECT_GT(loop.pilot.stats().steps, 0) << "planned anew";
}

class PilotRace : public ::testing::TestWithParam<bool> {};

TEST_P(PilotRace, AStartWaitsForThePlanThatIsBeingMade) {
  PlannedLoop loop(GetParam());
  for (auto* const moment : {&loop.device.looking_for_room, &loop.device.planning}) {
    Gate reached;
    Gate go_on;
    std::atomic<bool> begun{false};
    *moment = [&] {
      if (begun.exchange(true)) return;
      reached.open();
      go_on.wait();
    };
    std::jthread steps([&] {
      while (!begun.load()) loop.step();
      loop.step();
    });
    reached.wait();
    std::atomic<bool> restarted{false};
    std::jthread setter([&] {
      loop.restart();
      restarted.store(true);
    });
    while (loop.pilot.awake() && !restarted.load()) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    EXPECT_FALSE(restarted.load()) << "what the planner uses has been taken from it";
    go_on.open();
    setter.join();
    steps.join();
    *moment = [] {};
  }
  expect_planned(loop);
}

TEST_P(PilotRace, EverybodyAtOnce) {
  constexpr int kSteps = 400;
  PlannedLoop loop(GetParam());
  std::atomic<bool> done{false};
  std::atomic<int> plans{0};
  loop.device.planning = [&] { ++plans; };
  loop.device.looking_for_room = [] { std::this_thread::yield(); };
  const auto until_done = [&](const std::function<void()>& work) {
    return std::jthread([&done, work] {
      while (!done.load()) work();
    });
  };
  std::jthread setter = until_done([&] {
    const int before = plans.load();
    loop.restart();
    while (plans.load() == before && !done.load()) std::this_thread::yield();
  });
  std::jthread waiter = until_done([&] { loop.pilot.wait_for_plan(); });
  std::jthread other_waiter = until_done([&] { loop.pilot.wait_for_plan(); });
  std::jthread reader = until_done([&] {
    (void)loop.pilot.stats();
    (void)loop.pilot.measured();
    const auto script = loop.pilot.current();
    EXPECT_TRUE(!script || script->size() == 8U);
  });
  for (int i = 0; i < kSteps || plans.load() < 10; ++i) loop.step();
  done.store(true);
  for (std::jthread* thread : {&setter, &waiter, &other_waiter, &reader}) thread->join();
  loop.restart();
  expect_planned(loop);
}

TEST_P(PilotRace, TwoStreamsOfOperators) {
  // They interleave, and never repeat for long: no plan, no harm.
  PlannedLoop loop(GetParam());
  for (int i = 0; i < 12; ++i) loop.step();
  std::atomic<bool> done{false};
  std::jthread other([&] {
    while (!done.load()) loop.step();
  });
  for (int i = 0; i < 200; ++i) loop.step();
  for (int i = 0; i < 20; ++i) {
    loop.restart();
    for (int k = 0; k < 10; ++k) loop.step();
  }
  done.store(true);
  other.join();
  loop.restart();
  expect_planned(loop);
}

/// A first plan is waited for, by steps that are slow without it; on a busy machine whoever gives
/// way may not run for seconds. A better one is not.
TEST(PilotBackground, OnlyABetterPlanGivesWay) {
  PlannedLoop loop(false);
  std::mutex mutex;
  std::vector<int> priorities;
  loop.device.planning = [&] {
    const std::lock_guard guard(mutex);
    priorities.push_back(getpriority(PRIO_PROCESS, 0));
  };
  for (int plan = 0; plan < 2; ++plan) {
    for (int i = 0; i < 12; ++i) loop.step();
    loop.pilot.wait_for_plan();
  }
  const std::lock_guard guard(mutex);
  const int own = getpriority(PRIO_PROCESS, 0);
  ASSERT_GE(priorities.size(), 2U);
  EXPECT_EQ(priorities[0], own);
  EXPECT_GT(priorities[1], own);
}

INSTANTIATE_TEST_SUITE_P(Pilot, PilotRace, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Foreground" : "Background"; });

}  // namespace
}  // namespace lms::testing
