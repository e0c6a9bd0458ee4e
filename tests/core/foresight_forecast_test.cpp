#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "core/engine_fixture.h"
#include "foresight/forecast.h"
#include "foresight/lru_ghost.h"
#include "foresight/outlook.h"

namespace lms {
namespace {

/// A network of layers that look alike, forward and back, with a weight each.
class Network {
 public:
  explicit Network(int layers) {
    for (int i = 0; i < layers; ++i) weights_.push_back(next_++);
  }

  /// Notes what was foretold of each weight and each activation, and how far off it was.
  void step(const std::vector<int>& layers, int extra_after = -1, int extra = 5) {
    std::vector<std::pair<int, BlockUid>> saved;
    for (const int layer : layers) {
      begin(1);
      touch(weights_[static_cast<std::size_t>(layer)]);
      touch(next_);
      saved.emplace_back(layer, next_++);
      begin(2);
      touch(saved.back().second);
      if (layer == extra_after) {
        for (int i = 0; i < extra; ++i) begin(50 + static_cast<OperatorKey>(i));
      }
    }
    while (!saved.empty()) {
      begin(3);
      touch(weights_[static_cast<std::size_t>(saved.back().first)]);
      touch(saved.back().second);
      forecast.released(saved.back().second);
      foretold_.erase(saved.back().second);
      saved.pop_back();
    }
    for (const BlockUid weight : weights_) {
      begin(4);
      touch(weight);
    }
  }
  void begin_count() { errors.clear(); }

  Forecast forecast;
  std::vector<std::int64_t>
      errors;  ///< of what was foretold for more than a few operators; -1: nothing was

 private:
  void begin(OperatorKey key) {
    forecast.begin_operator(key);
    ++operators_;
  }
  void touch(BlockUid uid) {
    const auto now = static_cast<std::int64_t>(forecast.now());
    if (const auto before = foretold_.find(uid); before != foretold_.end()) {
      const auto& [expected, when] = before->second;
      if (operators_ - when > 4) {
        errors.push_back(expected.at == 0 || expected.ends
                             ? -1
                             : std::abs(static_cast<std::int64_t>(expected.at) - now));
      }
    }
    foretold_[uid] = {forecast.touch(uid), operators_};
  }

  std::vector<BlockUid> weights_;
  std::map<BlockUid, std::pair<Forecast::Expected, std::int64_t>> foretold_;
  BlockUid next_ = 1;
  std::int64_t operators_ = 0;
};

std::vector<int> upto(int layers) {
  std::vector<int> all;
  for (int i = 0; i < layers; ++i) all.push_back(i);
  return all;
}

double share_within(const std::vector<std::int64_t>& errors, std::int64_t most) {
  double within = 0;
  for (const std::int64_t error : errors) within += error >= 0 && error <= most ? 1 : 0;
  return errors.empty() ? 0 : within / static_cast<double>(errors.size());
}

TEST(Forecast, AStepThatRepeatsIsForetoldToTheOperator) {
  Network net(12);
  for (int i = 0; i < 4; ++i) net.step(upto(12));
  net.begin_count();
  net.step(upto(12));
  EXPECT_EQ(share_within(net.errors, 0), 1) << net.errors.size();
  EXPECT_TRUE(net.forecast.trusted());
}

TEST(Forecast, NothingIsForetoldOfWhatHasNotBeen) {
  Forecast forecast;
  forecast.begin_operator(1);
  EXPECT_EQ(forecast.touch(7).at, 0U);
  EXPECT_FALSE(forecast.trusted());
  forecast.released(7);
  forecast.released(8);
}

TEST(Forecast, OperatorsInBetweenChangeNothingBehindThem) {
  Network net(12);
  for (int i = 0; i < 5; ++i) net.step(upto(12));
  net.begin_count();
  net.step(upto(12), /*extra_after=*/5);
  net.step(upto(12));
  net.step(upto(12), /*extra_after=*/2, /*extra=*/9);
  net.step(upto(12));
  // Two operators a layer, all alike: it takes some until the place is certain again.
  EXPECT_GT(share_within(net.errors, 12), 0.6);
}

TEST(Forecast, LayersThatAreLeftOutShiftTheOthersByLittle) {
  Network net(24);
  std::mt19937 random(5);
  const auto some = [&] {
    std::vector<int> layers = upto(24);
    std::erase_if(layers, [&](int) { return random() % 8 == 0; });
    return layers;
  };
  for (int i = 0; i < 10; ++i) net.step(some());
  net.begin_count();
  for (int i = 0; i < 10; ++i) net.step(some());
  EXPECT_GT(share_within(net.errors, 24), 0.75);
  EXPECT_TRUE(net.forecast.trusted());
}

TEST(Forecast, WhatDiesUnusedIsForetoldToDie) {
  Forecast forecast;
  Forecast::Expected expected;
  for (int step = 0; step < 3; ++step) {
    const BlockUid uid = 100 + static_cast<BlockUid>(step);
    for (OperatorKey key = 1; key <= 20; ++key) {
      forecast.begin_operator(key);
      if (key == 5) expected = forecast.touch(uid);
      if (key == 9) forecast.released(uid);
    }
  }
  EXPECT_TRUE(expected.ends);
}

TEST(Forecast, WithdrawsWhatHasBeenWrong) {
  // A block that is used again after 20 operators, or after 60, by a coin.
  Forecast forecast;
  std::mt19937 random(3);
  int sure = 0;
  int all = 0;
  for (int step = 0; step < 400; ++step) {
    forecast.begin_operator(1000);
    const bool told = forecast.touch(1).at != 0;
    if (step >= 200) {
      ++all;
      sure += told ? 1 : 0;
    }
    const int gap = random() % 2 == 0 ? 20 : 60;
    for (int i = 0; i < gap; ++i) forecast.begin_operator(static_cast<OperatorKey>(gap * 100 + i));
  }
  EXPECT_LT(sure, all * 3 / 4);
}

TEST(Forecast, RemembersNoMoreThanItsBound) {
  Forecast forecast(64);
  for (int i = 0; i < 10000; ++i) {
    forecast.begin_operator(static_cast<OperatorKey>(i % 7));
    const auto uid = static_cast<BlockUid>(i);
    (void)forecast.touch(uid + 1);
    (void)forecast.touch(1);
    if (i > 3) forecast.released(uid - 2);
    forecast.for_expected(forecast.now() + 3, [](BlockUid) {});
  }
  EXPECT_LE(forecast.horizon() - forecast.now(), 64U);
}

TEST(LruGhost, MovesWhatLeavesAndComesBack) {
  LruGhost ghost;
  ghost.set_room(100);
  const auto use = [&](BlockUid uid, Bytes bytes, bool writes) {
    ghost.touch(uid, bytes, writes);
    ghost.begin_operator();
    return ghost.moved();
  };
  EXPECT_EQ(use(1, 60, true), 0);
  EXPECT_EQ(use(2, 40, true), 0);
  EXPECT_EQ(use(3, 40, true), 60) << "the first leaves";
  EXPECT_EQ(use(1, 60, false), 60 + 60 + 40) << "it comes back; 2 and 3 leave";
  EXPECT_EQ(use(2, 40, false), 160 + 40 + 40) << "3 leaves as well";
  EXPECT_EQ(use(3, 40, false), 240 + 40) << "1 leaves again, clean";
  ghost.released(2);
  ghost.released(9);
  EXPECT_EQ(use(1, 60, true), 280 + 60);
}

TEST(LruGhost, WhatOneOperatorUsesIsHereTogether) {
  LruGhost ghost;
  ghost.set_room(100);
  for (BlockUid uid = 1; uid <= 4; ++uid) {
    ghost.touch(uid, 30, true);
    ghost.begin_operator();
  }
  EXPECT_EQ(ghost.moved(), 30) << "the first has left";
  ghost.touch(1, 30, false);
  ghost.touch(2, 30, false);  // the oldest, but not to leave for the first
  EXPECT_EQ(ghost.moved(), 60);
  ghost.released(1);  // it was here until the operator's end
  EXPECT_EQ(ghost.moved(), 90) << "3 has left";
}

/// A loop over blocks of 10 bytes, of which `limit` holds some, that moves half of what leaving by
/// last use would. True if what is foretold is gone by in the end.
bool trusted_in_a_loop(EngineStats stats, Bytes limit) {
  testing::World world(limit);
  Outlook outlook(world.engine);
  std::vector<std::unique_ptr<SimBlock>> blocks;
  for (BlockUid uid = 1; uid <= 40; ++uid) {
    blocks.push_back(world.sim.make_block(10));
    blocks.back()->uid = uid;
  }
  for (int step = 0; step < 60; ++step) {
    for (const auto& block : blocks) {
      stats.bytes_in += 10;
      if (outlook.begin_operator(static_cast<OperatorKey>(block->uid))) outlook.look(stats, limit);
      outlook.touch(*block, 10, /*writes=*/true);
    }
  }
  return outlook.trusted();
}

TEST(Outlook, APeakFromBeforeIsNoRoom) {
  EngineStats stats;
  stats.device.add(100);
  EXPECT_TRUE(trusted_in_a_loop(stats, 100));
  stats.device.add(400);  // under another limit
  stats.device.sub(400);
  EXPECT_TRUE(trusted_in_a_loop(stats, 100));
}

TEST(Ahead, WhatHasFlownForAnotherForecastTakesNoRoom) {
  testing::World world(80);
  Ahead ahead(world.engine);
  SimBlock& a = world.used(10, 1);
  SimBlock& b = world.used(10, 2);
  a.uid = 1;
  b.uid = 2;
  a.expected_use = 100;
  b.expected_use = 50;
  ASSERT_TRUE(world.evict(a) && world.evict(b));
  const auto room = [](EngineLock&, Bytes, const auto&) { return true; };
  EngineLock lock = world.engine.lock();
  ahead.act(lock, 1, {{1, 100, &a}}, 80, room);
  EXPECT_EQ(a.state, BlockState::kResident);
  ahead.begin_anew(lock);
  ahead.act(lock, 1, {{2, 50, &b}}, 80, room);
  EXPECT_EQ(b.state, BlockState::kResident);
}

}  // namespace
}  // namespace lms
