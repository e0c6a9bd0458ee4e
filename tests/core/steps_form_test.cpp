// Steps that repeat but for their sizes.

#include <gtest/gtest.h>

#include <vector>

#include "steps/step_log.h"
#include "steps/step_sizes.h"

namespace lms {
namespace {

constexpr Bytes kWeight = 1000;
constexpr Bytes kSmall = 10;

/// Forward and backward over some layers, each with a weight of its own.
class LayerSteps {
 public:
  explicit LayerSteps(StepLog& log, int layers = 6) : log_(log) {
    for (int i = 0; i < layers; ++i) weights_.push_back(next_++);
  }

  /// Activations of `bytes`; with each a small one, if it is not too small to be seen.
  std::uint64_t step(Bytes bytes, bool small = false, int rows = 1) {
    const std::uint64_t begin = log_.end();
    std::vector<BlockUid> made;
    std::vector<BlockUid> beside;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      log_.begin_operator(100, "forward", true);
      log_.touch(weights_[i], kWeight, false);
      for (int row = 0; i > 0 && row < rows; ++row) log_.touch(made.back(), bytes, false);
      made.push_back(make(bytes));
      if (small) beside.push_back(make(kSmall));
      log_.end_operator();
    }
    for (std::size_t i = weights_.size(); i-- > 0;) {
      log_.begin_operator(200, "backward", true);
      log_.touch(made[i], bytes, false);
      if (small) log_.touch(beside[i], kSmall, false);
      log_.touch(weights_[i], kWeight, true);
      log_.end_operator();
      log_.release(made[i]);
      if (small) log_.release(beside[i]);
    }
    return begin;
  }

 private:
  BlockUid make(Bytes bytes) {
    log_.alloc(next_, bytes);
    log_.touch(next_, bytes, true);
    return next_++;
  }

  StepLog& log_;
  std::vector<BlockUid> weights_;
  BlockUid next_ = 1;
};

TEST(StepsForm, RepeatsWhereSizesDiffer) {
  StepLog log;
  LayerSteps steps(log);
  steps.step(5000);
  steps.step(3000);
  const std::uint64_t third = steps.step(4000);
  const std::uint64_t fourth = steps.step(2000);
  EXPECT_FALSE(log.repeated_step());
  const auto form = log.repeated_form();
  ASSERT_TRUE(form);
  EXPECT_EQ(form->begin, third);
  EXPECT_EQ(form->end, fourth);
}

TEST(StepsForm, TheShapeIsTheLargerOfBoth) {
  StepLog log;
  LayerSteps steps(log);
  for (const Bytes bytes : {5000, 3000, 4000, 6000, 100}) steps.step(bytes);
  const auto form = log.repeated_form();
  ASSERT_TRUE(form);
  const StepShape shape = make_shape(log, *form);
  EXPECT_TRUE(shape.trace.validate().empty());
  for (const TraceBlock& block : shape.trace.blocks) {
    EXPECT_EQ(block.bytes, block.born_in_step ? 6000 : kWeight);
  }
}

TEST(StepsForm, WhatIsTooSmallToBeSeenNowAndThenDoesNotCount) {
  StepLog log;
  log.set_marginal(kSmall + 1);
  LayerSteps steps(log);
  for (int i = 0; i < 5; ++i) steps.step(1000 + 500 * (i % 2), /*small=*/i % 2 == 0);
  const auto form = log.repeated_form();
  ASSERT_TRUE(form);
  EXPECT_EQ(form->end - form->begin, 12U);
  EXPECT_TRUE(make_shape(log, *form).trace.validate().empty());
}

TEST(StepsForm, HowOftenAnOperatorUsesABlockDoesNotCount) {
  StepLog log;
  LayerSteps steps(log);
  for (int i = 0; i < 5; ++i) steps.step(1000 * (i + 1), /*small=*/false, /*rows=*/i + 1);
  EXPECT_FALSE(log.repeated_step());
  const auto form = log.repeated_form();
  ASSERT_TRUE(form);
  EXPECT_EQ(form->end - form->begin, 12U);
}

/// Layers of one loop with weights of their own, large ones, are no runs of one step.
TEST(StepsForm, LayersWithOtherWeightsAreNoSteps) {
  StepLog log;
  for (BlockUid level = 0; level < 5; ++level) {
    for (BlockUid i = 0; i < 12; ++i) {
      log.begin_operator(i, "update", true);
      log.touch(100 * (level + 1) + i, kWeight * static_cast<Bytes>(level + 1), true);
      log.end_operator();
    }
  }
  EXPECT_FALSE(log.repeated_form());
}

/// Kernels for larger sizes take more temporaries, and use them: before the result, and after it.
TEST(StepsForm, TemporariesDoNotCount) {
  for (const bool last_is_large : {true, false}) {
    StepLog log;
    BlockUid next = 100;
    std::vector<std::uint64_t> begins;
    const auto step = [&](Bytes bytes) {
      begins.push_back(log.end());
      std::vector<BlockUid> made;
      const auto pass = [&](Bytes size) {
        log.alloc(next, size);
        log.touch(next, size, true);
        log.release(next++);
      };
      for (BlockUid i = 0; i < 6; ++i) {
        log.begin_operator(100 + i, "forward", true);
        log.touch(i, kWeight, false);
        if (bytes > 3000) pass(bytes);
        log.alloc(next, bytes);
        log.touch(next, bytes, true);
        made.push_back(next++);
        if (bytes > 3000) pass(2 * bytes);
        log.end_operator();
      }
      for (BlockUid i = 6; i-- > 0;) {
        log.begin_operator(200 + i, "backward", true);
        log.touch(i, kWeight, true);
        log.touch(made[i], bytes, false);
        log.end_operator();
        log.release(made[i]);
      }
    };
    step(1000);
    step(4000);
    step(last_is_large ? 2000 : 5000);
    step(last_is_large ? 6000 : 2500);
    step(1500);
    EXPECT_FALSE(log.repeated_step());
    const auto form = log.repeated_form();
    ASSERT_TRUE(form);
    EXPECT_EQ(form->begin, begins[3]);
    EXPECT_EQ(form->end, begins[4]);
    const StepShape shape = make_shape(log, *form);
    EXPECT_TRUE(shape.trace.validate().empty());
    const Bytes larger = last_is_large ? 6000 : 5000;
    for (const TraceBlock& block : shape.trace.blocks) {
      EXPECT_EQ(block.bytes, block.born_in_step ? larger : kWeight);
    }
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(shape.trace.operators[i].workspace, 2 * larger);
    EXPECT_GE(bytes_needed(shape), 6 * kWeight + 6 * larger + 2 * larger);
  }
}

TEST(StepSizes, WidenAndPutBack) {
  TraceBuilder builder;
  const TraceBlockId weight = builder.existing(512);
  builder.run("a", {weight}, {}, 1, 2048);
  const TraceBlockId made = builder.result(1024);
  builder.temporary(2048, 0, 1);
  builder.dies(made);
  StepShape shape;
  shape.trace = builder.build();
  shape.operators.resize(1);
  shape.operators[0].touches = {{weight, false}};
  shape.operators[0].allocations = {{kNoBlock, 2048, true}, {made, 1024, true}};

  StepSizes sizes = StepSizes::of(shape);
  StepSizes larger = sizes;
  larger.blocks[made] = 2048;
  larger.allocations = {4096, 2048};
  sizes.widen(larger, 0.5);
  EXPECT_EQ(sizes.blocks[made], 2048 + 512);
  EXPECT_EQ(sizes.blocks[weight], 512);
  StepShape wider = shape;
  sizes.put_into(wider);
  EXPECT_TRUE(same_form(shape, wider));
  EXPECT_EQ(wider.trace.blocks[made].bytes, 2560);
  EXPECT_EQ(wider.operators[0].allocations[1].bytes, 2560);
  EXPECT_EQ(wider.trace.operators[0].temporaries[0].bytes, 4096 + 1024);
  EXPECT_EQ(wider.trace.operators[0].workspace, 4096 + 1024 - 2560);  // gone before the result
  const std::vector<double> longer = longer_by(wider, StepSizes::of(shape));
  EXPECT_EQ(longer[0], 1);  // it uses the weight alone
}

TEST(StepSizes, AnotherModelIsAnotherForm) {
  const auto step = [](Bytes weight, Bytes batch) {
    TraceBuilder builder;
    const TraceBlockId trained = builder.existing(weight);
    const TraceBlockId read = builder.existing(batch);
    builder.run("a", {trained, read}, {trained}, 1);
    StepShape shape;
    shape.trace = builder.build();
    shape.operators.resize(1);
    shape.operators[0].touches = {{trained, true}, {read, false}};
    return shape;
  };
  EXPECT_TRUE(same_form(step(512, 512), step(512, 1024)));
  EXPECT_FALSE(same_form(step(512, 512), step(1024, 512)));
}

}  // namespace
}  // namespace lms
