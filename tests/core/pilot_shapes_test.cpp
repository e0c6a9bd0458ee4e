// Steps of several shapes that are drawn at random, and why a step is not planned.

#include <random>

#include "core/pilot_loop.h"

namespace lms::testing {
namespace {

constexpr int kLeast = 14;

TEST(PilotShapes, EightDrawnAtRandomAreAllPlanned) {
  Loop loop(26 * Loop::kBytes, kLeast + 8);
  std::mt19937 random(7);
  for (int i = 0; i < 120; ++i) loop.step(kLeast + static_cast<int>(random() % 8));
  const auto before = loop.pilot.stats();
  EXPECT_GE(before.shapes, 7) << before.why;
  EXPECT_GE(before.apart, 3);
  for (int i = 0; i < 100; ++i) loop.step(kLeast + static_cast<int>(random() % 8));
  const auto after = loop.pilot.stats();
  EXPECT_GE(after.planned, 7);
  EXPECT_GE(after.steps - before.steps, 80);
}

TEST(PilotShapes, TwoThatNeverComeTwiceInARow) {
  Loop loop(20 * Loop::kBytes, kLeast + 3);
  for (int i = 0; i < 4; ++i) loop.step(kLeast);
  for (int i = 0; i < 20; ++i) {
    loop.step(kLeast + 1);
    loop.step(kLeast + (i % 2 == 0 ? 0 : 2));
  }
  EXPECT_GE(loop.pilot.stats().planned, 3) << loop.pilot.stats().why;
}

TEST(PilotShapes, StepsAreNotTimedForEverForOneThatNeverComes) {
  Loop loop(20 * Loop::kBytes, kLeast + 1);
  for (int i = 0; i < 12; ++i) loop.step(kLeast);
  ASSERT_EQ(loop.pilot.stats().planned, 1);
  for (int i = 0; i < 2; ++i) loop.step(kLeast + 1);
  loop.step(kLeast);
  ASSERT_EQ(loop.pilot.stats().shapes, 2);
  ASSERT_EQ(loop.pilot.stats().planned, 1);
  const int before = loop.device.timed;
  for (int i = 0; i < 100; ++i) loop.step(kLeast);
  EXPECT_GE(loop.device.timed - before, 8);
  EXPECT_LE(loop.device.timed - before, 24);
  for (int i = 0; i < 10; ++i) {
    loop.step(kLeast + 1);
    loop.step(kLeast);
  }
  EXPECT_EQ(loop.pilot.stats().planned, 2) << "it does come after all";
}

TEST(PilotShapes, WhatComesSeldomIsPlannedAllTheSame) {
  Loop loop(20 * Loop::kBytes, kLeast + 1);
  for (int i = 0; i < 12; ++i) loop.step(kLeast);
  for (int i = 0; i < 2; ++i) loop.step(kLeast + 1);
  loop.step(kLeast);
  ASSERT_EQ(loop.pilot.stats().planned, 1);
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (int i = 0; i < 100; ++i) loop.step(kLeast);
    loop.step(kLeast + 1);
  }
  EXPECT_EQ(loop.pilot.stats().planned, 2);
}

TEST(PilotShapes, SaysThatAStepIsPlannedOrWhyNot) {
  Loop loop(17 * Loop::kBytes, kLeast);
  EXPECT_EQ(loop.pilot.stats().why.find("no step has come twice yet"), 0U)
      << loop.pilot.stats().why;
  for (int i = 0; i < 8; ++i) loop.step(kLeast);
  EXPECT_EQ(loop.pilot.stats().why, "planned");
}

TEST(PilotShapes, NamesTheOperatorThatDiffers) {
  Loop loop(17 * Loop::kBytes, kLeast);
  for (int i = 0; i < 8; ++i) loop.step(kLeast);
  loop.step(kLeast, /*extra=*/777);
  const std::string why = loop.pilot.stats().why;
  EXPECT_NE(why.find("operator " + std::to_string(kLeast) + " of " + std::to_string(2 * kLeast)),
            std::string::npos)
      << why;
}

TEST(PilotShapes, ComplainsOnceAboutStepsThatAreNeverPlanned) {
  Loop loop(17 * Loop::kBytes, kLeast);
  for (int i = 0; i < 4; ++i) loop.step(kLeast);
  OperatorKey next = 1000;
  for (int i = 0; i < 200; ++i) loop.step(kLeast, next++);
  int complaints = 0;
  for (const std::string& line : loop.device.said) {
    if (line.find("are not planned") != std::string::npos) ++complaints;
  }
  EXPECT_EQ(complaints, 1);
}

/// A loop with evaluations in between.
class EvaluatedLoop : public Loop {
 public:
  EvaluatedLoop() : Loop(17 * kBytes, kLeast) {}
  /// A pass forward, of which nothing is kept.
  void evaluate() {
    for (int i = 0; i < kLeast; ++i) {
      begin(100 + static_cast<OperatorKey>(i));
      use(*weights_[static_cast<std::size_t>(i)], false);
      SimBlock& result = make(value_++);
      end();
      drop(result);
    }
  }
  /// How many of so many steps follow a plan.
  std::int64_t planned_of(int steps) {
    const auto before = pilot.stats().steps;
    for (int i = 0; i < steps; ++i) step(kLeast);
    return pilot.stats().steps - before;
  }
};

TEST(PilotShapes, ALoopWithANewPlanIsAsLongAsBefore) {
  EvaluatedLoop loop;
  for (int i = 0; i < 60 && loop.pilot.stats().planned == 0; ++i) loop.step(kLeast);
  loop.evaluate();  // after one step under a plan: another such end, and it may be part of a step
  ASSERT_EQ(loop.pilot.stats().refined, 0);
  EXPECT_EQ(loop.planned_of(10), 10);
  ASSERT_EQ(loop.pilot.stats().refined, 1);
  loop.evaluate();
  EXPECT_GE(loop.planned_of(10), 9) << loop.pilot.stats().why;
}

/// Steps of a random grammar: what is wrong in bytes, Loop finds.
TEST(PilotShapes, RandomStepsFindTheirBytes) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int least = 4 + static_cast<int>(random() % 12);
    Loop loop((least + 9 + static_cast<Bytes>(random() % 8)) * Loop::kBytes, least + 6);
    loop.device.beside = seed % 2 == 0;
    loop.fails_at_first = seed % 5 == 0;
    const std::size_t kept = loop.keep();
    for (int i = 0; i < 60; ++i) {
      if (random() % 7 == 0) loop.refill(kept);
      if (random() % 3 == 0) loop.feed(kept);
      if (random() % 5 == 0) loop.optimizer();
      const bool odd = random() % 6 == 0;
      loop.step(least + static_cast<int>(random() % (1 + seed % 6)), odd ? 900 + random() % 3 : 0);
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
  }
}

}  // namespace
}  // namespace lms::testing
