// Steps none of which is like another in all its operators.

#include "steps/rough_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace lms {
namespace {

/// A chain of layers, of three operators each, some of which are left out; the next batch is drawn
/// at the end, and freed when the next step has read it.
class Steps {
 public:
  static constexpr Bytes kBytes = 1 << 20;
  static constexpr Bytes kSmall = kBytes / 8;  ///< a gradient
  static constexpr int kLayers = 10;

  Steps() {
    for (int i = 0; i < kLayers; ++i) weights_.push_back(next_++);
  }
  void step(const std::set<int>& left_out) {
    BlockUid x = batch_;
    std::vector<BlockUid> made;
    for (int i = 0; i < kLayers; ++i) {
      if (left_out.contains(i)) continue;
      const BlockUid y = next_++;
      run(1, {{weights_[static_cast<std::size_t>(i)], false}, {x, false}}, y);
      run(2, {{y, true}}, 0);
      run(3, {{y, false}}, 0);
      made.push_back(x = y);
    }
    for (int i = kLayers; i-- > 0;) {
      if (left_out.contains(i)) continue;
      run(4, {{weights_[static_cast<std::size_t>(i)], true}, {made.back(), false}}, 0);
      log.release(made.back());
      made.pop_back();
      if (!keeps_gradients) continue;
      gradients_.push_back(next_++);
      run(11, {}, gradients_.back(), kSmall);
    }
    for (int i = 0; i < 3; ++i) run(5, {{weights_[0], true}}, 0);
    const BlockUid batch = next_++;
    run(6, {}, batch);
    if (batch_ != 0) log.release(batch_);
    batch_ = batch;
  }
  /// An optimizer of several operators a layer, of which one makes something else when the gradient
  /// has gone: as far as so many layers.
  void update(std::size_t most = kLayers) {
    for (std::size_t i = 0; i < std::min(most, gradients_.size()); ++i) {
      run(7, {{gradients_[i], false}}, 0, kSmall);
      run(8, {{gradients_[i], false}}, 0, kSmall);
      log.release(gradients_[i]);
      const BlockUid root = next_++;
      run(9, {}, root, kSmall);
      run(10, {{root, false}}, 0, kSmall);
      log.release(root);
    }
    gradients_.clear();
  }
  /// Nine steps; every other one leaves out two layers.
  void differ() {
    for (int i = 0; i < 9; ++i)
      step(i % 2 == 0 ? std::set<int>{i} : std::set<int>{i, (i + 4) % 10});
  }
  [[nodiscard]] BlockUid weight(int layer) const {
    return weights_[static_cast<std::size_t>(layer)];
  }

  StepLog log;
  bool keeps_gradients = false;  ///< until update()

 private:
  struct Touch {
    BlockUid block;
    bool writes;
  };
  void run(OperatorKey key, const std::vector<Touch>& uses, BlockUid made, Bytes bytes = kBytes) {
    log.begin_operator(key, "op", true);
    if (made != 0) log.alloc(made, bytes);
    for (const Touch& use : uses) {
      if (use.block != 0) log.touch(use.block, bytes, use.writes);
    }
    if (made != 0) log.touch(made, bytes, true);
    log.end_operator();
  }

  BlockUid next_ = 1;
  std::vector<BlockUid> weights_;
  BlockUid batch_ = 0;
  std::vector<BlockUid> gradients_;
};

TEST(RoughSteps, AreFoundWhereNoneIsLikeAnother) {
  Steps steps;
  steps.differ();
  EXPECT_FALSE(steps.log.repeated_step());
  const auto rough = find_rough_step(steps.log);
  ASSERT_TRUE(rough);
  EXPECT_EQ(rough->before.end, rough->step.begin);
  ASSERT_EQ(rough->partners.size(), rough->step.end - rough->step.begin);
  std::int64_t last = -1;
  int alone = 0;
  for (std::size_t i = 0; i < rough->partners.size(); ++i) {
    const std::int64_t partner = rough->partners[i];
    if (partner == RoughStep::kNone) {
      ++alone;
      continue;
    }
    EXPECT_GT(partner, last);
    last = partner;
    EXPECT_GE(partner, static_cast<std::int64_t>(rough->before.begin));
    EXPECT_LT(partner, static_cast<std::int64_t>(rough->before.end));
    const auto& now = steps.log.at(rough->step.begin + i);
    EXPECT_EQ(now.key, steps.log.at(static_cast<std::uint64_t>(partner)).key);
  }
  // Of the two layers that the step before has left out; what uses no weights may be another's.
  EXPECT_GE(alone, 4);
  EXPECT_LE(alone, 8);
}

/// While an optimizer goes from layer to layer there is ever less: an update is the step's that has
/// made its gradients, also where the log ends within one.
TEST(RoughSteps, BeginAfterTheUpdate) {
  Steps steps;
  steps.keeps_gradients = true;
  for (int i = 0; i < 8; ++i) {
    steps.step(i % 2 == 0 ? std::set<int>{i} : std::set<int>{i, (i + 4) % 10});
    steps.update(i < 7 ? Steps::kLayers : 4);
  }
  const auto rough = find_rough_step(steps.log);
  ASSERT_TRUE(rough);
  EXPECT_EQ(steps.log.at(rough->step.begin).key, 1) << "the first layer";
  EXPECT_EQ(steps.log.at(rough->step.begin - 1).key, 10) << "the end of an update";
}

TEST(RoughSteps, HaveWeightsThatStayWhoTheyAre) {
  Steps steps;
  steps.differ();
  const auto rough = find_rough_step(steps.log);
  ASSERT_TRUE(rough);
  const auto shape = make_shape(steps.log, *rough);
  ASSERT_TRUE(shape);
  EXPECT_TRUE(shape->turning.empty());
  int lasting = 0;
  int carried = 0;
  for (TraceBlockId id = 0; id < shape->trace.blocks.size(); ++id) {
    const TraceBlock& block = shape->trace.blocks[id];
    if (block.lasts()) ++lasting;
    if (block.carried_from != kNoBlock) ++carried;
  }
  EXPECT_EQ(lasting, Steps::kLayers);
  EXPECT_EQ(carried, 1);  // the batch
}

TEST(RoughSteps, AreNoneWhereTooMuchDiffers) {
  StepLog log;
  for (OperatorKey i = 0; i < 2000; ++i) {
    log.begin_operator(i % 20 < 12 ? i % 20 : i, "op", true);
    log.touch(1 + i % 7, 1 << 20, true);
    log.end_operator();
  }
  const auto rough = find_rough_step(log);
  if (rough) {
    EXPECT_LT(std::ranges::count(rough->partners, RoughStep::kNone),
              static_cast<std::ptrdiff_t>(rough->partners.size() / 2));
  }
  EXPECT_FALSE(find_rough_step(StepLog()));
}

/// One step leaves out another layer than the next, and looks the same: the layer between them is
/// where the other was, but no input that takes turns.
TEST(RoughSteps, LayersThatAreLeftOutDoNotTakeTurns) {
  Steps steps;
  for (int i = 0; i < 3; ++i) steps.step({4});
  steps.step({6});
  steps.step({4});
  const std::uint64_t size = 9 * 4 + 4;
  const std::uint64_t end = steps.log.end();
  const StepShape shape = make_shape(steps.log, StepLog::Span{end - size, end});
  ASSERT_EQ(shape.turning.size(), 1U);  // 6, which was not there the last time
  EXPECT_EQ(shape.uids[shape.turning[0]], steps.weight(6));
}

}  // namespace
}  // namespace lms
