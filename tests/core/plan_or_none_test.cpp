// Where steps differ, plans are followed if they make steps quicker, by the clock.

#include "pilot/plan_or_none.h"

#include <gtest/gtest.h>

#include <random>

#include "pilot/pilot.h"
#include "pilot_loop.h"

namespace lms {
namespace {

using testing::Loop;

constexpr std::size_t kStep = 1000;  // operators

/// A loop whose steps take so long with plans, and so long without.
struct Machine {
  double with_ms;
  double without_ms;
  double predicted_ms = 0;  ///< 0: steps leave their plans
  bool planned = true;
  double now_ms = 0;
  int without = 0;  ///< steps so far that might have been with
  PlanOrNone choice;

  Machine(double with, double without) : with_ms(with), without_ms(without) { choice.start(true); }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const bool follows = planned && !choice.rests();
      const double ms = follows ? with_ms : without_ms;
      if (planned && !follows) ++without;
      for (std::size_t op = 0; op < kStep; ++op) {
        now_ms += ms / kStep;
        if (choice.count(follows)) choice.note(now_ms, kStep);
      }
      if (follows && predicted_ms > 0) choice.note_step(kStep, ms, predicted_ms);
    }
  }
};

TEST(PlanOrNone, StepsThatAreQuickerWithoutPlansGoWithout) {
  Machine machine(100, 70);
  machine.run(100);
  EXPECT_GT(machine.without, 50);
  machine.run(400);
  EXPECT_TRUE(machine.choice.settled_on_none());
  EXPECT_GT(machine.without, 400);
}

TEST(PlanOrNone, PlansThatHaveMadeStepsClearlyQuickerAreFollowed) {
  Machine machine(70, 100);
  machine.planned = false;
  machine.run(40);
  machine.planned = true;
  machine.without_ms = 60;
  machine.run(400);
  EXPECT_EQ(machine.without, 0);
  machine.with_ms = 92;
  machine.run(100);
  EXPECT_GT(machine.without, 50);
}

TEST(PlanOrNone, PlansThatHaveMadeStepsMuchSlowerAreLeftSoon) {
  Machine machine(200, 100);
  machine.planned = false;
  machine.run(10);
  machine.planned = true;
  machine.run(20);
  EXPECT_GE(machine.without, 8);
}

TEST(PlanOrNone, StepsThatAreSlowerWithoutGoOnWith) {
  Machine machine(70, 80);
  machine.run(1000);
  EXPECT_FALSE(machine.choice.rests());
  EXPECT_GT(machine.without, 0) << "it was tried";
  EXPECT_LT(machine.without, 120);
}

TEST(PlanOrNone, MuchSlowerOnesAreNotSeenForLong) {
  Machine machine(50, 200);
  machine.run(1000);
  EXPECT_LT(machine.without, 60);
}

TEST(PlanOrNone, StepsThatAreAsPlannedAreLeftAlone) {
  Machine machine(70, 60);
  machine.predicted_ms = 65;
  machine.run(1000);
  EXPECT_EQ(machine.without, 0);
}

TEST(PlanOrNone, ThoseThatTakeLongerThanPlannedAreNot) {
  Machine machine(100, 60);
  machine.predicted_ms = 65;
  machine.run(100);
  EXPECT_GT(machine.without, 50);
}

TEST(PlanOrNone, NothingIsComparedWithoutPlansNorUnasked) {
  Machine machine(100, 70);
  machine.choice.start(false);
  machine.run(200);
  EXPECT_EQ(machine.without, 0);
  PlanOrNone choice;
  choice.start(true);
  for (int stretch = 0; stretch < 100; ++stretch) {
    for (std::size_t op = 0; op < 10 * kStep; ++op) {
      if (choice.count(false)) choice.note(stretch, kStep);
    }
    ASSERT_FALSE(choice.rests());
  }
}

TEST(PlanOrNone, PlansThatAreMadeMeanwhileDisturb) {
  Machine machine(100, 70);
  for (int i = 0; i < 300; ++i) {
    machine.choice.disturb();
    machine.run(1);
  }
  EXPECT_EQ(machine.without, 0);
}

TEST(PlanOrNone, ANewPlanIsTriedSoon) {
  Machine machine(100, 70);
  machine.run(1000);
  ASSERT_TRUE(machine.choice.settled_on_none());
  machine.with_ms = 50;
  const int without = machine.without;
  machine.choice.plan_came();
  machine.run(200);
  EXPECT_FALSE(machine.choice.rests());
  EXPECT_LT(machine.without - without, 40);
}

TEST(PlanOrNone, APlanThatComesInATryIsComparedToo) {
  Machine machine(100, 70);
  while (!machine.choice.rests()) machine.run(1);
  machine.choice.plan_came();
  EXPECT_FALSE(machine.choice.rests());
  const int without = machine.without;
  machine.run(100);
  EXPECT_GT(machine.without - without, 50);
}

TEST(PlanOrNone, WherePlansKeepComingNotEachIsTried) {
  Machine machine(100, 105);
  for (int plan = 0; plan < 40; ++plan) {
    machine.run(40);
    machine.choice.plan_came();
  }
  EXPECT_GT(machine.without, 0);
  EXPECT_LT(machine.without, 160);
}

TEST(PlanOrNone, WhatFollowsNoPlanLaterSaysNothing) {
  Machine machine(70, 100);
  machine.run(200);
  const int without = machine.without;
  machine.planned = false;
  machine.without_ms = 10;  // an evaluation
  machine.run(50);
  machine.planned = true;
  machine.without_ms = 100;
  machine.run(400);
  EXPECT_LT(machine.without - without, 40);
}

TEST(PlanOrNone, TriesBecomeRare) {
  Machine machine(50, 200);
  machine.run(20000);
  EXPECT_LT(machine.without, 60);
}

/// Steps of two sizes in any order; those under a plan take `with_ms` longer, others `without_ms`.
/// Returns how many were planned: a step of the plan may be several of these.
std::int64_t planned_of_800(double with_ms, double without_ms, bool compares) {
  constexpr Bytes kLimit = 20 * Loop::kBytes;
  constexpr int kSteps = 800;
  Loop loop(kLimit, 16);
  loop.device.beside = true;
  loop.parts = 10;
  loop.pilot.stop();
  loop.pilot.start(
      {.limit = kLimit, .in_foreground = true, .compares = compares, .search = {.rounds = 200}});
  loop.pilot.wake();
  std::mt19937 draw(7);
  std::int64_t before = 0;
  for (int i = 0; i < kSteps; ++i) {
    loop.step(draw() % 2 == 0 ? 14 : 16);
    const std::int64_t now = loop.pilot.stats().steps;
    loop.wait(now > before ? with_ms : without_ms);
    before = now;
  }
  return before;
}

TEST(PlanOrNone, APilotGoesWithoutPlansThatCostMore) {
  EXPECT_GT(planned_of_800(0, 1000, true), 350);
  EXPECT_LT(planned_of_800(1000, 0, true), 250);
  EXPECT_GT(planned_of_800(1000, 0, false), 350);
}

}  // namespace
}  // namespace lms
