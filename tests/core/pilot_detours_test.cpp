// Steps that leave operators of a plan out, do more, or do some of it once more.

#include <algorithm>
#include <random>

#include "core/pilot_loop.h"

namespace lms::testing {
namespace {

constexpr int kDetourLayers = 16;

class LayersLoop : public Loop {
 public:
  explicit LayersLoop(Bytes limit = 26 * kBytes, int layers = kDetourLayers) : Loop(limit, layers) {
    parts = 6;
    alike = true;
    pilot.start({.limit = limit,
                 .in_foreground = true,
                 .detours = DetourGate::Rule::kOpen,
                 .search = {.rounds = 200}});
    pilot.wake();
  }
  /// Steps over all layers, until they are planned.
  void learn() {
    for (int i = 0; i < 6; ++i) step(kDetourLayers);
    ASSERT_EQ(pilot.stats().why, "planned");
  }
  /// Steps over all layers but each with this chance.
  void steps(int count, double left_out) {
    for (int i = 0; i < count; ++i) {
      std::vector<int> layers;
      for (int layer = 0; layer < kDetourLayers; ++layer) {
        if (std::uniform_real_distribution<>(0, 1)(random) >= left_out) layers.push_back(layer);
      }
      step_of(layers);
    }
  }
  /// A step, behind which so many operators look at weights. Something lives until then.
  void looked_at(int looks) {
    begin(399);
    SimBlock& result = make(1);
    end();
    step(kDetourLayers);
    for (int i = 0; i < looks; ++i) {
      begin(400);
      use(*weights_[static_cast<std::size_t>(i % kDetourLayers)], false);
      end();
    }
    drop(result);
  }
  /// What has come since the last call.
  Pilot::Stats more() {
    Pilot::Stats now = pilot.stats();
    std::swap(now, last_);
    now.steps = last_.steps - now.steps;
    now.detours = last_.detours - now.detours;
    now.divergences = last_.divergences - now.divergences;
    return now;
  }

  std::mt19937 random{3};

 private:
  Pilot::Stats last_;
};

std::vector<int> all_but(std::initializer_list<int> out) {
  std::vector<int> layers;
  for (int i = 0; i < kDetourLayers; ++i) {
    if (std::ranges::find(out, i) == out.end()) layers.push_back(i);
  }
  return layers;
}

TEST(PilotDetours, ALayerIsLeftOut) {
  LayersLoop loop;
  loop.learn();
  (void)loop.more();
  loop.step_of(all_but({5}));
  loop.step(kDetourLayers);
  const auto more = loop.more();
  EXPECT_EQ(more.steps, 2);
  EXPECT_EQ(more.detours, 2);  // forward, and back
  EXPECT_EQ(more.divergences, 0);
}

TEST(PilotDetours, TheFirstOrTheLastIsLeftOut) {
  LayersLoop loop;
  loop.learn();
  (void)loop.more();
  loop.step_of(all_but({0}));
  loop.step_of(all_but({kDetourLayers - 1}));
  loop.step_of(all_but({0, 1, kDetourLayers - 1}));
  loop.step(kDetourLayers);
  const auto more = loop.more();
  EXPECT_EQ(more.steps, 4);
  EXPECT_EQ(more.divergences, 0);
}

TEST(PilotDetours, MostAreLeftOut) {
  LayersLoop loop;
  loop.learn();
  (void)loop.more();
  loop.step_of({3, 9});
  EXPECT_EQ(loop.more().steps, 0);  // the plan is none of such a step
  loop.step(kDetourLayers);
  loop.step(kDetourLayers);
  EXPECT_GE(loop.more().steps, 1);
}

TEST(PilotDetours, AnOperatorMore) {
  LayersLoop loop;
  loop.learn();
  (void)loop.more();
  loop.step(kDetourLayers, /*extra=*/777);
  loop.step(kDetourLayers, /*extra=*/778);
  const auto more = loop.more();
  EXPECT_EQ(more.steps, 2);
  EXPECT_EQ(more.detours, 2);
  EXPECT_EQ(more.divergences, 0);
}

/// What was learnt from steps that left much out gets a place for it.
TEST(PilotDetours, AScriptGrows) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    LayersLoop loop;
    loop.random.seed(seed);
    for (int i = 0; i < 6; ++i) loop.step_of(all_but({2, 5, 8, 11, 14}));
    ASSERT_EQ(loop.pilot.stats().why, "planned");
    const std::size_t size = loop.pilot.current()->size();
    loop.steps(60, 0.1);
    (void)loop.more();
    loop.steps(20, 0.1);
    EXPECT_GE(loop.more().steps, 19) << seed;
    EXPECT_GE(loop.pilot.current()->size(), size * 15 / 11) << seed;
  }
}

/// Steps that do more are dear, even if they are few.
TEST(PilotDetours, AScriptGrowsForOneStepInFour) {
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    LayersLoop loop;
    loop.random.seed(seed);
    for (int i = 0; i < 6; ++i) loop.step_of(all_but({14}));
    ASSERT_EQ(loop.pilot.stats().why, "planned");
    const std::size_t size = loop.pilot.current()->size();
    for (int i = 0; i < 120; ++i) {
      const int out = static_cast<int>(loop.random() % kDetourLayers);
      loop.step_of(i % 4 == 0 ? all_but({}) : all_but({out, i % kDetourLayers}));
    }
    (void)loop.more();
    for (int i = 0; i < 4; ++i) loop.step(kDetourLayers);
    EXPECT_EQ(loop.pilot.current()->size(), size * 16 / 15) << seed;
    EXPECT_EQ(loop.more().divergences, 0) << seed;
  }
}

/// A step that comes as often as longer ones keeps its own plan.
TEST(PilotDetours, TheShortOneStaysWhereItIsRight) {
  LayersLoop loop;
  for (int i = 0; i < 6; ++i) loop.step_of(all_but({2, 5, 8, 11, 14}));
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  const std::size_t size = loop.pilot.current()->size();
  for (int i = 0; i < 30; ++i) {
    loop.steps(1, 0.05);
    loop.step_of(all_but({2, 5, 8, 11, 14}));
  }
  (void)loop.more();
  loop.step_of(all_but({2, 5, 8, 11, 14}));
  EXPECT_EQ(loop.pilot.current()->size(), size);
  loop.steps(1, 0.05);
  EXPECT_EQ(loop.more().steps, 2);
}

/// Of the longer one no plan can be made: the plan of the short one is better than none.
TEST(PilotDetours, APlanWithDetoursIsBetterThanNone) {
  LayersLoop loop;
  for (int i = 0; i < 6; ++i) loop.step_of(all_but({2, 5, 8, 11, 14}));
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  loop.device.refuses = "no room";
  for (int i = 0; i < 40; ++i) loop.step(kDetourLayers);
  ASSERT_FALSE(loop.device.said.empty());
  ASSERT_NE(loop.device.said.back().find("no room"), std::string::npos);
  (void)loop.more();
  for (int i = 0; i < 10; ++i) loop.step(kDetourLayers);
  EXPECT_GE(loop.more().steps, 9);
}

/// Layers that use a weight's copy, made in the step, as under autocast: their weights do not tell
/// which layer it is that runs backwards.
class CopiesLoop : public LayersLoop {
 public:
  CopiesLoop() : LayersLoop(50 * kBytes) {}
  void copying_step(const std::vector<int>& layers) {
    std::vector<Held> copies;
    std::vector<Held> activations;
    for (const int i : layers) {
      begin(100);
      use(*weights_[static_cast<std::size_t>(i)], false);
      copies.push_back({&make(value_++), value_ - 1});
      end();
      for (OperatorKey part = 101; part < 108; ++part) {
        begin(part);
        use(*copies.back().block, false, copies.back().value);
        if (!activations.empty()) use(*activations.back().block, false, activations.back().value);
        activations.push_back({&make(value_++), value_ - 1});
        end();
      }
    }
    for ([[maybe_unused]] const int i : layers) {
      for (OperatorKey part = 208; part-- > 201;) {
        begin(part);
        use(*copies.back().block, false, copies.back().value);
        use(*activations.back().block, false, activations.back().value);
        end();
        drop(*activations.back().block);
        activations.pop_back();
      }
      drop(*copies.back().block);
      copies.pop_back();
    }
    for (const int i : layers) {
      begin(300);
      use(*weights_[static_cast<std::size_t>(i)], true);
      end();
    }
  }
};

TEST(PilotDetours, CopiesOfWeightsTellTheLayerToo) {
  CopiesLoop loop;
  for (int i = 0; i < 8; ++i) loop.copying_step(all_but({}));
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  (void)loop.more();
  for (const int out : {2, 5, 9, 12}) {
    loop.copying_step(all_but({out}));
    EXPECT_EQ(loop.more().detours, 3) << out;  // forward, back, and in the update
    loop.copying_step(all_but({}));
    EXPECT_EQ(loop.more().detours, 0) << out;
  }
  EXPECT_EQ(loop.pilot.stats().divergences, 0);
}

/// What was done behind the step while it was learnt is not done again: the step ends all the same.
TEST(PilotDetours, ALookAtAllWeightsBelongsToNoStep) {
  LayersLoop loop;
  for (int i = 0; i < 6; ++i) loop.looked_at(45);
  ASSERT_EQ(loop.pilot.stats().why, "planned");
  (void)loop.more();
  for (int i = 0; i < 20; ++i) loop.looked_at(0);
  const auto more = loop.more();
  EXPECT_GE(more.steps, 19) << loop.pilot.stats().why;
  EXPECT_EQ(more.divergences, 0);
}

/// What is left out is still evicted, and what it would have brought is brought: between one
/// detour and the next, copies are the plan's.
TEST(PilotDetours, WhatThePlanHadMeanwhileIsDone) {
  LayersLoop loop;
  loop.learn();
  loop.step(kDetourLayers);
  const auto before = loop.stats();
  loop.step(kDetourLayers);
  const auto planned = loop.stats().bytes_out - before.bytes_out;
  loop.step_of(all_but({5}));
  const auto detour = loop.stats().bytes_out - before.bytes_out - planned;
  EXPECT_LE(detour, planned + 4 * Loop::kBytes);
}

TEST(PilotDetours, StepsOfRandomDepth) {
  for (const double left_out : {0.05, 0.1, 0.2}) {
    LayersLoop loop;
    loop.steps(80, left_out);
    (void)loop.more();
    loop.steps(50, left_out);
    const auto more = loop.more();
    EXPECT_GE(more.steps, 45) << left_out << ": " << more.why;
    EXPECT_LE(more.divergences, 5) << left_out;
  }
}

/// One that is timed gets a plan all the same.
TEST(PilotDetours, AStepIsTimedOnADetour) {
  LayersLoop loop;
  for (int i = 0; i < 3; ++i) loop.step(kDetourLayers);
  for (int i = 0; i < 3; ++i) loop.step_of(all_but({4 + i}));
  EXPECT_EQ(loop.pilot.stats().planned, 1) << loop.pilot.stats().why;
}

/// What is wrong in bytes, Loop finds.
TEST(PilotDetours, RandomDepthsFindTheirBytes) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    LayersLoop loop((20 + static_cast<Bytes>(seed % 12)) * Loop::kBytes);
    loop.random.seed(seed);
    loop.device.beside = seed % 2 == 0;
    loop.device.addresses = false;
    loop.fails_at_first = seed % 5 == 0;
    loop.alike = seed % 3 != 0;
    loop.parts = 1 + static_cast<int>(seed % 7);
    for (int i = 0; i < 50; ++i) {
      if (loop.random() % 6 == 0) loop.optimizer();
      loop.activation = (1 + static_cast<Bytes>(loop.random() % (1 + seed % 3))) * Loop::kBytes;
      loop.steps(1, 0.03 * static_cast<double>(seed % 10));
      if (loop.random() % 8 == 0) loop.step(kDetourLayers, 700 + loop.random() % 3);
      if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
  }
}

}  // namespace
}  // namespace lms::testing
