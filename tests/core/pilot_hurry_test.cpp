// A step that has no plan yet does not wait for what only makes another's better.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "core/pilot_loop.h"

namespace lms::testing {
namespace {

constexpr Bytes kLimit = 10 * Loop::kBytes;
constexpr int kLong = 8;
constexpr int kShort = 6;

class PilotHurry : public ::testing::Test {
 protected:
  PilotHurry() {
    // A better plan is looked for as long as a test may take, and longer.
    loop.pilot.start({.limit = kLimit, .in_foreground = false, .search = {.seconds = 600}});
    loop.pilot.wake();
  }
  ~PilotHurry() override { loop.pilot.stop(); }

  /// Steps of so many layers until that is so. False: it takes too long.
  bool run_until(int layers, const std::function<bool()>& is_so) {
    constexpr std::chrono::seconds kMost{60};
    const auto begin = std::chrono::steady_clock::now();
    while (!is_so() && std::chrono::steady_clock::now() - begin < kMost) loop.step(layers);
    return is_so();
  }
  [[nodiscard]] std::int64_t planned() { return loop.pilot.stats().planned; }

  Loop loop{kLimit, kLong};
};

TEST_F(PilotHurry, AFirstPlanDoesNotWaitForABetterOneOfAnotherStep) {
  ASSERT_TRUE(run_until(kLong, [&] { return planned() == 1; }));
  for (int i = 0; i < 40; ++i) loop.step(kLong);
  ASSERT_EQ(loop.pilot.stats().refined, 0) << "it is planned again meanwhile";
  EXPECT_TRUE(run_until(kShort, [&] { return planned() == 2; }));
}

TEST_F(PilotHurry, NobodyWaitsForAPlannerThatIsStopped) {
  ASSERT_TRUE(run_until(kLong, [&] { return planned() == 1; }));
  for (int i = 0; i < 40; ++i) loop.step(kLong);
  const auto begin = std::chrono::steady_clock::now();
  loop.pilot.stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace lms::testing
