// One step in several sizes: batches of other lengths.

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "core/pilot_loop.h"

namespace lms::testing {
namespace {

constexpr int kSizedLayers = 8;

/// The loop's activations in units of its blocks, each step.
void run(Loop& loop, std::initializer_list<int> sizes) {
  for (const int size : sizes) {
    loop.activation = size * Loop::kBytes;
    loop.step(kSizedLayers);
  }
}

/// Blocks of less than the loop's unit count as too small to be managed.
void manage_from_one_unit(Loop& loop, Bytes limit) {
  loop.pilot.start({.min_block = Loop::kBytes,
                    .limit = limit,
                    .in_foreground = true,
                    .search = {.rounds = 200}});
  loop.pilot.wake();
}

/// What `of` does in the next steps.
std::int64_t planned_steps(Loop& loop, const std::function<void()>& of) {
  const auto before = loop.pilot.stats();
  of();
  return loop.pilot.stats().steps - before.steps;
}

TEST(PilotSizes, ASmallerBatchGoesAlongWithThePlan) {
  Loop loop(26 * Loop::kBytes, kSizedLayers);
  run(loop, {4, 4, 4, 4, 4, 4});
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  EXPECT_EQ(planned_steps(loop, [&] { run(loop, {3, 4, 3, 4}); }), 4);
  EXPECT_EQ(loop.pilot.stats().divergences, 0);
}

TEST(PilotSizes, ALargerOneIsPlannedWhenItComesAgain) {
  Loop loop(26 * Loop::kBytes, kSizedLayers);
  run(loop, {4, 4, 4, 4, 4, 4});
  run(loop, {6, 4, 6, 4, 6});
  EXPECT_EQ(loop.pilot.stats().planned, 2);
  EXPECT_EQ(planned_steps(loop, [&] { run(loop, {6, 4, 6, 4}); }), 4);
  EXPECT_EQ(loop.device.first_rooms, 1) << "what has a place may stay";
}

TEST(PilotSizes, AfterANewStartThereIsNoPlan) {
  Loop loop(26 * Loop::kBytes, kSizedLayers);
  run(loop, {4, 4, 4, 4, 4, 4});
  manage_from_one_unit(loop, 26 * Loop::kBytes);
  run(loop, {4, 4, 4, 4, 4, 4});
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  EXPECT_EQ(loop.device.first_rooms, 2);
}

TEST(PilotSizes, WhatFitsStaysWhereItIs) {
  Loop loop(26 * Loop::kBytes, kSizedLayers);
  run(loop, {4, 4, 4, 4, 4, 4});
  run(loop, {1, 1});
  const auto before = loop.stats();
  EXPECT_EQ(planned_steps(loop, [&] { run(loop, {1, 1, 1}); }), 3);
  EXPECT_EQ(loop.stats().evictions, before.evictions);
}

TEST(PilotSizes, EightLengthsAtRandom) {
  Loop loop(26 * Loop::kBytes, kSizedLayers);
  std::mt19937 random(3);
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) run(loop, {1 + static_cast<int>(random() % 8)});
  };
  steps(40);
  EXPECT_GE(planned_steps(loop, [&] { steps(100); }), 95) << loop.pilot.stats().why;
}

TEST(PilotSizes, NeverTheSameTwice) {
  Loop loop(300 * Loop::kBytes, kSizedLayers);
  std::vector<int> sizes;
  for (int size = 20; size < 100; ++size) sizes.push_back(size);
  std::mt19937 random(5);
  std::ranges::shuffle(sizes, random);
  const auto steps = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) run(loop, {sizes[i]});
  };
  steps(0, 30);
  EXPECT_GE(planned_steps(loop, [&] { steps(30, 80); }), 45) << loop.pilot.stats().why;
  EXPECT_LE(loop.pilot.stats().shapes, 12);
}

/// Each activation has a size of its own, as of experts that get more or fewer tokens.
TEST(PilotSizes, EachBlockHasAnotherSize) {
  Loop loop(300 * Loop::kBytes, kSizedLayers);
  std::mt19937 random(5);
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      loop.each = [&](int) { return (50 + static_cast<Bytes>(random() % 21)) * Loop::kBytes; };
      loop.step(kSizedLayers);
    }
  };
  steps(30);
  EXPECT_GE(planned_steps(loop, [&] { steps(50); }), 48) << loop.pilot.stats().why;
  EXPECT_LE(loop.pilot.stats().shapes, 4);
}

/// Experts with few tokens: what they make is much smaller than in the script, or so small that
/// nobody hears of it.
TEST(PilotSizes, WhatIsMuchSmallerIsFoundAgain) {
  for (const Bytes least : {Bytes{0}, Bytes{Loop::kBytes}}) {
    Loop loop(60 * Loop::kBytes, kSizedLayers);
    manage_from_one_unit(loop, 60 * Loop::kBytes);
    loop.least = least;
    const auto steps = [&](int count, const std::set<int>& small) {
      for (int i = 0; i < count; ++i) {
        loop.each = [&](int layer) {
          return small.contains(layer) ? Loop::kBytes / (least > 0 ? 2 : 1) : 20 * Loop::kBytes;
        };
        loop.step(kSizedLayers);
      }
    };
    steps(8, {});
    ASSERT_EQ(loop.pilot.stats().why, "planned") << least;
    EXPECT_EQ(planned_steps(loop,
                            [&] {
                              steps(1, {2});
                              steps(1, {3, 4});
                              steps(1, {});
                              steps(1, {0, 7});
                            }),
              4)
        << least << ": " << loop.pilot.stats().why;
    EXPECT_EQ(loop.pilot.stats().divergences, 0) << least;
    EXPECT_EQ(loop.pilot.stats().detours, 0) << least;
  }
}

/// Batches of many lengths, each of whose layers makes a mask beside its result: of short ones
/// nobody hears, and is not to take the result for the mask.
TEST(PilotSizes, MasksThatAreTooSmallNowAndThen) {
  Loop loop(100 * Loop::kBytes, kSizedLayers);
  manage_from_one_unit(loop, 100 * Loop::kBytes);
  loop.least = Loop::kBytes;
  loop.masked = true;
  std::mt19937 random(3);
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      constexpr std::array<Bytes, 8> kLengths = {2, 3, 4, 8, 12, 16, 20, 24};
      loop.activation = kLengths.at(random() % kLengths.size()) * Loop::kBytes;
      loop.step(kSizedLayers);
    }
  };
  steps(40);
  EXPECT_GE(planned_steps(loop, [&] { steps(40); }), 38) << loop.pilot.stats().why;
}

/// A mask is marginal in the script, and not in a larger step: it is still the mask.
TEST(PilotSizes, MasksThatAreMarginalNowAndThen) {
  Loop loop(140 * Loop::kBytes, kSizedLayers);
  manage_from_one_unit(loop, 140 * Loop::kBytes);
  loop.least = Loop::kBytes;
  loop.masked = true;
  run(loop, {12, 12, 12, 12, 12, 12});
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  EXPECT_EQ(planned_steps(loop, [&] { run(loop, {40, 12, 40, 40}); }), 4) << loop.pilot.stats().why;
  EXPECT_EQ(loop.pilot.stats().divergences, 0) << loop.pilot.stats().why;
}

/// A script that seems to hold a larger step until its first result, which is not marginal as the
/// script's is, comes.
TEST(PilotSizes, WhatSeemedToHoldAStep) {
  constexpr int kLayers = 160;
  Loop loop(500 * Loop::kBytes, kLayers);
  manage_from_one_unit(loop, 500 * Loop::kBytes);
  loop.least = Loop::kBytes;
  const auto steps = [&](std::initializer_list<int> sizes) {
    for (const int size : sizes) {
      loop.activation = size * Loop::kBytes;
      loop.step(kLayers);
    }
  };
  steps({3, 3, 3, 3, 3, 3});
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  for (const int size : {10, 11, 12, 13, 14}) {
    EXPECT_EQ(planned_steps(loop, [&] { steps({3, size, 3, size, size}); }), 5) << size;
    EXPECT_EQ(loop.pilot.stats().divergences, 0) << size << loop.pilot.stats().why;
    EXPECT_EQ(loop.pilot.stats().detours, 0) << size << loop.pilot.stats().detour;
  }
}

/// What is larger in sum is known to be so by the first operators, not once it is too large for the
/// smaller script in all.
TEST(PilotSizes, TheFirstOperatorsTellWhoseSizeItIs) {
  constexpr int kLayers = 160;
  Loop loop(800 * Loop::kBytes, kLayers);
  std::vector<const Script*> along;
  loop.each = [&](int layer) {
    if (layer == 3 || layer == kLayers - 1) along.push_back(loop.pilot.current().get());
    return loop.activation;
  };
  std::mt19937 random(1);
  const auto step = [&] {
    constexpr std::array<Bytes, 3> kSizes = {10, 14, 20};
    loop.activation = kSizes.at(random() % kSizes.size()) * Loop::kBytes;
    loop.step(kLayers);
  };
  for (int i = 0; i < 40; ++i) step();
  along.clear();
  for (int i = 0; i < 20; ++i) step();
  ASSERT_EQ(along.size(), 40U);
  for (std::size_t i = 0; i < along.size(); i += 2) EXPECT_EQ(along[i], along[i + 1]) << i / 2;
  EXPECT_GE(std::set(along.begin(), along.end()).size(), 3U) << "each has its own";
}

/// Kernels for larger sizes take other temporaries, more of them or fewer.
TEST(PilotSizes, OtherKernelsForOtherSizes) {
  for (const bool more : {true, false}) {
    Loop loop(40 * Loop::kBytes, kSizedLayers);
    loop.temporaries = [more](Bytes bytes) -> std::vector<Bytes> {
      if ((bytes > 4 * Loop::kBytes) != more) return {};
      return {bytes, Loop::kBytes, bytes / 2};
    };
    std::mt19937 random(3);
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) run(loop, {1 + static_cast<int>(random() % 8)});
    };
    steps(40);
    EXPECT_GE(planned_steps(loop, [&] { steps(100); }), 95) << more << loop.pilot.stats().why;
    EXPECT_EQ(loop.pilot.stats().detours, 0) << more;
    // And with plans that know of it.
    const auto before = loop.stats();
    run(loop, {8, 8, 8, 8, 8, 8});
    const auto clean = loop.stats().evictions;
    run(loop, {8, 8});
    EXPECT_LE(loop.stats().evictions - clean, (clean - before.evictions) / 3 + 1) << more;
  }
}

/// While a plan is being made, sizes that come again are not learnt again.
TEST(PilotSizes, NoSizeIsLearntTwice) {
  Loop loop(300 * Loop::kBytes, kSizedLayers);
  loop.pilot.start({.limit = 300 * Loop::kBytes, .in_foreground = false});
  loop.pilot.wake();
  for (int i = 0; i < 200; ++i) run(loop, {80, 40, 20, 60});
  loop.pilot.wait_for_plan();
  EXPECT_LE(loop.pilot.stats().shapes, 6);
}

/// What is wrong in bytes, Loop finds.
TEST(PilotSizes, RandomSizesFindTheirBytes) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int layers = 4 + static_cast<int>(random() % 8);
    Loop loop((8 * layers + static_cast<int>(random() % 40)) * Loop::kBytes, layers + 2);
    loop.device.beside = seed % 2 == 0;
    loop.fails_at_first = seed % 5 == 0;
    const int most = 2 + static_cast<int>(random() % 11);
    for (int i = 0; i < 60; ++i) {
      if (random() % 5 == 0) loop.optimizer();
      loop.activation =
          (1 + static_cast<Bytes>(random() % static_cast<unsigned>(most))) * Loop::kBytes;
      loop.each = nullptr;
      if (random() % 4 == 0) {
        loop.each = [&](int) {
          return (1 + static_cast<Bytes>(random() % static_cast<unsigned>(most))) * Loop::kBytes;
        };
      }
      loop.step(layers + static_cast<int>(random() % (1 + seed % 3)));
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
  }
}

}  // namespace
}  // namespace lms::testing
