// Of two plans of a step the quicker stays, by the clock.

#include "pilot/plan_trial.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "pilot/pilot.h"
#include "pilot_loop.h"

namespace lms {
namespace {

using testing::Loop;
using Next = PlanTrial::Next;

constexpr std::size_t kMany = 1000;  // operators

/// Steps in a row that take so long, until the trial says something; `*steps` of them, if asked.
Next run(PlanTrial& trial, double ms, int* steps = nullptr) {
  Next next = Next::kGoOn;
  int noted = 0;
  for (; next == Next::kGoOn && noted < 100; ++noted) next = trial.note(ms);
  if (steps != nullptr) *steps = noted;
  return next;
}

PlanTrial trial_of(double before_ms, std::size_t operators = kMany) {
  return {std::make_shared<Script>(), before_ms, operators};
}

TEST(PlanTrial, TheNewerPlanStaysIfItsStepsAreNoSlower) {
  PlanTrial trial = trial_of(100);
  EXPECT_EQ(run(trial, 101), Next::kSettle);
  EXPECT_FALSE(trial.looks_back());
  EXPECT_EQ(trial.note(500), Next::kGoOn) << "that was all";
}

TEST(PlanTrial, TheOlderOneIsTakenBackIfItIsQuicker) {
  PlanTrial trial = trial_of(100);
  EXPECT_EQ(run(trial, 120), Next::kChange);
  EXPECT_TRUE(trial.looks_back());
  EXPECT_FALSE(trial.over());
  EXPECT_EQ(run(trial, 102), Next::kSettle);
  EXPECT_TRUE(trial.looks_back());
}

TEST(PlanTrial, TheNewerOneComesBackIfTheMachineHasBecomeSlower) {
  PlanTrial trial = trial_of(100);
  EXPECT_EQ(run(trial, 120), Next::kChange);
  EXPECT_EQ(run(trial, 125), Next::kChange);
  EXPECT_TRUE(trial.over());
}

TEST(PlanTrial, OneSlowStepSaysNothing) {
  PlanTrial trial = trial_of(100);
  Next next = Next::kGoOn;
  for (int i = 0; next == Next::kGoOn; ++i) next = trial.note(i % 3 == 0 ? 900 : 100);
  EXPECT_EQ(next, Next::kSettle);
}

TEST(PlanTrial, StepsThatAreQueuedAheadDoNotCount) {
  int few = 0;
  int many = 0;
  PlanTrial of_many = trial_of(100);
  (void)run(of_many, 120, &many);
  PlanTrial of_few = trial_of(100, 40);
  (void)run(of_few, 120, &few);
  EXPECT_EQ(many, 6);
  EXPECT_GT(few, many + 8) << "400 operators are ten steps";
}

// In a pilot

constexpr Bytes kTight = 12 * Loop::kBytes;  // of the 16 that eight layers take

/// A loop whose second plan promises more than the first, since copies have become quicker.
class TwoPlans : public ::testing::Test {
 protected:
  static constexpr int kLayers = 8;

  TwoPlans() { loop.device.link_rate = 16; }

  /// Until the second plan is followed.
  void plan_twice() {
    for (int i = 0; i < 30 && loop.pilot.stats().refined == 0; ++i) {
      if (loop.pilot.stats().planned == 1) {
        first = loop.pilot.current();
        loop.device.link_rate = 4096;
      }
      step();
    }
    second = loop.pilot.current();
    ASSERT_EQ(loop.pilot.stats().refined, 1);
    ASSERT_NE(first, nullptr);
    ASSERT_NE(first, second);
    ASSERT_FALSE(first->plan.directives == second->plan.directives);
  }
  void step() {
    const auto followed = loop.pilot.current();
    if (lag) loop.wait(lag(*followed));
    loop.step(kLayers);
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  [[nodiscard]] bool follows(const std::shared_ptr<const Script>& one) {
    return loop.pilot.current() == one;
  }

  Loop loop{kTight, kLayers};
  std::function<double(const Script&)> lag;  ///< steps take so much longer
  std::shared_ptr<const Script> first;
  std::shared_ptr<const Script> second;
};

TEST_F(TwoPlans, TheSecondStaysWhereItIsAsQuickAsTheFirst) {
  plan_twice();
  steps(60);
  EXPECT_TRUE(follows(second));
  EXPECT_EQ(loop.pilot.stats().taken_back, 0);
}

TEST_F(TwoPlans, TheFirstIsTakenBackWhereTheSecondIsSlower) {
  plan_twice();
  lag = [&](const Script& script) { return &script == second.get() ? 100 : 0; };
  steps(120);
  EXPECT_TRUE(follows(first));
  const auto stats = loop.pilot.stats();
  EXPECT_EQ(stats.taken_back, 1);
  EXPECT_EQ(stats.predicted_ms, first->predicted.step_ms);
  EXPECT_EQ(stats.divergences, 0);
  EXPECT_EQ(stats.shapes, 1);
  const auto followed = stats.steps;
  steps(10);
  EXPECT_EQ(loop.pilot.stats().steps, followed + 10);
  EXPECT_EQ(loop.pilot.stats().refined, 1) << "nor is it planned again";
}

TEST_F(TwoPlans, TheSecondComesBackWhereBothAreSlower) {
  plan_twice();
  lag = [&](const Script&) { return 100; };
  bool looked_back = false;
  for (int i = 0; i < 120; ++i) {
    step();
    looked_back = looked_back || follows(first);
  }
  EXPECT_TRUE(looked_back);
  EXPECT_TRUE(follows(second));
  EXPECT_EQ(loop.pilot.stats().taken_back, 0);
}

TEST_F(TwoPlans, AStepThatLeavesThePlanMeanwhileChangesNothing) {
  plan_twice();
  lag = [&](const Script& script) { return &script == second.get() ? 100 : 0; };
  for (int i = 0; i < 120; ++i) {
    step();
    if (i % 25 == 7) loop.step(kLayers, /*extra=*/777);
  }
  EXPECT_TRUE(follows(first));
  EXPECT_EQ(loop.pilot.stats().taken_back, 1);
}

TEST_F(TwoPlans, ThePlanThatStaysIsKeptForTheNextStart) {
  const std::string folder = ::testing::TempDir() + "plan_trial." + std::to_string(::getpid());
  const Pilot::Options options = {
      .limit = kTight, .in_foreground = true, .search = {.rounds = 200}, .plan_cache = folder};
  loop.pilot.start(options);
  loop.pilot.wake();
  plan_twice();
  lag = [&](const Script& script) { return &script == second.get() ? 100 : 0; };
  steps(120);
  ASSERT_EQ(loop.pilot.stats().taken_back, 1);
  loop.pilot.wait_for_plan();
  Loop next(kTight, kLayers);
  next.device.link_rate = 64;
  next.pilot.start(options);
  next.pilot.wake();
  for (int i = 0; i < 12 && next.pilot.stats().kept == 0; ++i) next.step(kLayers);
  ASSERT_EQ(next.pilot.stats().kept, 1);
  EXPECT_EQ(next.pilot.current()->plan.directives, first->plan.directives);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lms
