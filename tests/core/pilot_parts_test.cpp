// Steps of which a part repeats: micro-batches, and then an update of all weights.

#include <random>

#include "core/pilot_loop.h"

namespace lms::testing {
namespace {

constexpr int kPartLayers = 12;

class PartsLoop : public Loop {
 public:
  PartsLoop() : Loop(18 * kBytes, kPartLayers) {}

  /// So many micro-batches, and an update. How many of them ended under a plan.
  int whole(int micro_batches) {
    int followed = 0;
    for (int i = 0; i < micro_batches; ++i) {
      step(kPartLayers);
      if (pilot.stats().why == "planned") ++followed;
    }
    update();
    return followed;
  }
  void adding_step() {
    adds = 500;
    step(kPartLayers);
    adds = 0;
  }
  void update() {
    for (int i = 0; i < kPartLayers; ++i) {
      begin(300 + static_cast<OperatorKey>(i));
      use(*weights_[static_cast<std::size_t>(i)], true);
      end();
    }
  }
  /// All rounds of so many steps; how many of those ended under a plan.
  double share(int wholes, const std::function<int()>& micro_batches) {
    double followed = 0;
    double all = 0;
    for (int i = 0; i < wholes; ++i) {
      const int rounds = micro_batches();
      followed += whole(rounds);
      all += rounds;
    }
    return followed / all;
  }
};

TEST(PilotParts, ThePartIsFollowedUntilTheWholeIsKnown) {
  for (const int micro_batches : {3, 4, 8, 16}) {
    PartsLoop loop;
    for (int i = 0; i < 3; ++i) loop.whole(micro_batches);
    EXPECT_GE(loop.share(10, [&] { return micro_batches; }), 0.9) << micro_batches;
  }
}

TEST(PilotParts, TheWholeIsKnownSoon) {
  for (const int micro_batches : {3, 4, 8}) {
    PartsLoop loop;
    for (int i = 0; i < 7; ++i) loop.whole(micro_batches);
    const auto before = loop.pilot.stats();
    for (int i = 0; i < 4; ++i) loop.whole(micro_batches);
    const auto after = loop.pilot.stats();
    EXPECT_EQ(after.divergences, before.divergences) << micro_batches;
    EXPECT_EQ(after.steps - before.steps, 4) << micro_batches;
  }
}

/// A loss that is read from some step on: the step was the beginning of what it is now.
TEST(PilotParts, OneOperatorMoreFromNowOn) {
  PartsLoop loop;
  for (int i = 0; i < 10; ++i) loop.step(kPartLayers);
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  const auto read = [&](int count) {
    for (int i = 0; i < count; ++i) {
      loop.step(kPartLayers);
      loop.optimizer();
    }
    return loop.pilot.stats();
  };
  const auto before = read(12);
  const auto after = read(8);
  EXPECT_EQ(after.divergences, before.divergences);
  EXPECT_EQ(after.steps - before.steps, 8);
}

TEST(PilotParts, AsManyAsTheLoopLikes) {
  std::mt19937 random(7);
  PartsLoop loop;
  const auto some = [&] { return std::uniform_int_distribution(2, 5)(random); };
  for (int i = 0; i < 4; ++i) loop.whole(some());
  EXPECT_GE(loop.share(40, some), 0.8);
}

/// Gradients are there from the second one on: each of its operators adds to them. The step that is
/// known first has no place for that.
TEST(PilotParts, TheFirstIsAnother) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    PartsLoop loop;
    const auto whole = [&](int micro_batches) {
      loop.step(kPartLayers);
      for (int i = 1; i < micro_batches; ++i) loop.adding_step();
      loop.update();
    };
    for (int i = 0; i < 8; ++i) whole(1);
    for (int i = 0; i < 60; ++i) whole(std::uniform_int_distribution(1, 4)(random));
    const auto before = loop.pilot.stats();
    for (int i = 0; i < 20; ++i) whole(std::uniform_int_distribution(1, 4)(random));
    const auto after = loop.pilot.stats();
    EXPECT_GE(after.steps - before.steps, 18) << seed;
    EXPECT_LE(after.detours - before.detours, 40) << seed;
  }
}

/// Now and then a step has an operator more. The next one is as most are again, and is expected to
/// be.
TEST(PilotParts, TheUsualStepComesAfterARareOne) {
  PartsLoop loop;
  const auto steps = [&](OperatorKey extra, int count) {
    for (int i = 0; i < count; ++i) {
      loop.step(kPartLayers, extra);
      loop.update();
    }
  };
  const auto cycles = [&](int count) {
    for (int i = 0; i < count; ++i) {
      steps(0, 3);
      steps(777, 1);
    }
  };
  steps(0, 8);
  steps(777, 4);
  cycles(8);
  const auto before = loop.pilot.stats();
  cycles(8);
  const auto after = loop.pilot.stats();
  EXPECT_EQ(after.steps - before.steps, 4 * 8);
  EXPECT_LE(after.divergences - before.divergences, 8) << "the rare ones alone";
}

TEST(PilotParts, MoreAndMore) {
  PartsLoop loop;
  for (int i = 0; i < 8; ++i) loop.whole(1);
  int at = 0;
  EXPECT_GE(loop.share(24, [&] { return 2 + at++ / 4; }), 0.7);
}

}  // namespace
}  // namespace lms::testing
