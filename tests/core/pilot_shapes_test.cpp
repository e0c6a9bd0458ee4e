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
