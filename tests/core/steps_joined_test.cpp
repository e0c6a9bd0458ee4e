// Which operators are run again as one with what has made the block that they write.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "steps/joined.h"

namespace lms::testing {
namespace {

constexpr ReplayCost kNorm{.alone = 0.5F, .place = 1};
constexpr ReplayCost kAdd{.joined = 0.25F, .place = 2, .operands = 1};
constexpr ReplayCost kRelu{.joined = 0, .place = 3};
constexpr Bytes kBytes = 100;

/// A step, operator by operator, each of which takes 8 ms.
class Step {
 public:
  TraceBlockId weight(Bytes bytes = kBytes) { return builder_.existing(bytes); }
  TraceBlockId makes(const ReplayCost& cost, std::vector<TraceBlockId> reads, int results = 1) {
    run(cost, std::move(reads), {});
    TraceBlockId first = 0;
    for (int i = 0; i < results; ++i) {
      const TraceBlockId made = builder_.result(kBytes);
      if (i == 0) first = made;
    }
    return first;
  }
  void writes(const ReplayCost& cost, TraceBlockId block, std::vector<TraceBlockId> reads = {}) {
    reads.push_back(block);
    run(cost, std::move(reads), {block});
  }
  void run(const ReplayCost& cost, std::vector<TraceBlockId> reads,
           std::vector<TraceBlockId> writes, bool repeatable = true) {
    builder_.run("op", std::move(reads), std::move(writes), 8);
    if (repeatable) builder_.repeatable();
    StepShape::Operator& beside = operators_.emplace_back();
    beside.replay_cost = cost;
  }
  [[nodiscard]] StepShape shape() const {
    StepShape result;
    result.trace = builder_.build();
    result.operators = operators_;
    return result;
  }
  /// A letter an operator: joined or not.
  [[nodiscard]] std::string joined() const {
    std::string letters;
    for (const bool one : joined_operators(shape())) letters += one ? 'j' : '-';
    return letters;
  }
  TraceBuilder& builder() { return builder_; }

 private:
  TraceBuilder builder_;
  std::vector<StepShape::Operator> operators_;
};

class StepsJoined : public ::testing::Test {
 protected:
  Step step;
  const TraceBlockId x = step.weight();
};

TEST_F(StepsJoined, WhatFollowsInPlaceInOrder) {
  const auto y = step.makes(kNorm, {x});
  step.writes(kAdd, y, {x});
  step.writes(kRelu, y);
  const auto z = step.makes(kNorm, {y});
  step.writes(kRelu, z);
  EXPECT_EQ(step.joined(), "-jj-j");
}

TEST_F(StepsJoined, ReadersInBetweenDoNotMatter) {
  const auto y = step.makes(kNorm, {x});
  (void)step.makes({}, {y});
  step.writes(kRelu, y);
  EXPECT_EQ(step.joined(), "--j");
}

TEST_F(StepsJoined, ChainsOfTwoBlocksMayCross) {
  const auto y = step.makes(kNorm, {x});
  const auto z = step.makes(kNorm, {x});
  step.writes(kAdd, z, {y});
  step.writes(kRelu, y);
  step.writes(kRelu, z);
  EXPECT_EQ(step.joined(), "--jjj");
}

TEST_F(StepsJoined, OnlyOnceAndNotBackwards) {
  const auto y = step.makes(kNorm, {x});
  step.writes(kRelu, y);
  step.writes(kRelu, y);
  const auto z = step.makes(kNorm, {x});
  step.writes(kRelu, z);
  step.writes(kAdd, z, {x});
  step.writes(kRelu, z);
  EXPECT_EQ(step.joined(), "-j--j--");
}

TEST_F(StepsJoined, NotAfterAnotherWriter) {
  const auto y = step.makes(kNorm, {x});
  step.writes({}, y);
  step.writes(kRelu, y);
  EXPECT_EQ(step.joined(), "---");
}

TEST_F(StepsJoined, NotWhereNoChainBegins) {
  const auto y = step.makes({}, {x});
  step.writes(kRelu, y);
  step.writes(kRelu, x);
  const auto z = step.makes(kNorm, {x}, 2);  // which of both?
  step.writes(kRelu, z);
  EXPECT_EQ(step.joined(), "-----");
}

TEST_F(StepsJoined, NotWithOtherOperands) {
  const auto small = step.weight(kBytes / 2);
  const auto a = step.makes(kNorm, {x});
  step.writes(kAdd, a);  // a number, or itself
  const auto b = step.makes(kNorm, {x});
  step.writes(kAdd, b, {small});
  const auto c = step.makes(kNorm, {x});
  step.writes(kAdd, c, {a, b});
  const auto d = step.makes(kNorm, {x});
  step.writes(kRelu, d, {x});
  EXPECT_EQ(step.joined(), "--------");
}

TEST_F(StepsJoined, NotWhatDoesMore) {
  const auto a = step.makes(kNorm, {x});
  step.run(kRelu, {a}, {a});
  (void)step.builder().result(kBytes);
  const auto b = step.makes(kNorm, {x});
  step.run(kRelu, {b, x}, {b, x});
  const auto c = step.makes(kNorm, {x});
  step.run(kRelu, {c}, {c}, /*repeatable=*/false);
  step.run(kNorm, {x}, {}, /*repeatable=*/false);
  const auto d = step.builder().result(kBytes);
  step.writes(kRelu, d);
  EXPECT_EQ(step.joined(), "--------");
}

TEST_F(StepsJoined, PricesAreThoseOfTheChain) {
  const auto y = step.makes(kNorm, {x});
  step.writes(kAdd, y, {x});
  step.writes(kRelu, y);
  step.writes(kRelu, y);
  step.writes({}, y);
  StepShape shape = step.shape();
  price_replays(shape);
  std::vector<double> again;
  for (const TraceOperator& op : shape.trace.operators) again.push_back(op.again_ms());
  EXPECT_EQ(again, (std::vector<double>{4, 2, 0, 8, 8}));
}

TEST_F(StepsJoined, ATimeOfItsOwn) {
  step.makes({.alone_ms = 3, .place = 1}, {x});
  step.makes({.alone_ms = 9, .place = 1}, {x});
  StepShape shape = step.shape();
  price_replays(shape);
  EXPECT_EQ(shape.trace.operators[0].again_ms(), 3);
  EXPECT_EQ(shape.trace.operators[1].again_ms(), 8) << "no more than the operator itself";
}

constexpr ReplayCost kProduct{.fold = Fold::kProduct};
constexpr ReplayCost kConversion{.fold = Fold::kConversion};

/// What the last operator reads when it is run again.
std::vector<TraceBlockId> read_again(const Step& step) {
  StepShape shape = step.shape();
  price_replays(shape);
  return shape.trace.operators.back().again_reads();
}

TEST_F(StepsJoined, ConversionsOfProducts) {
  const auto reads = [](const ReplayCost& first, const ReplayCost& second) {
    Step step;
    const auto product = step.makes(first, {step.weight()});
    step.makes(second, {product});
    step.builder().dies(product);
    return read_again(step);
  };
  EXPECT_EQ(reads(kProduct, kConversion), (std::vector<TraceBlockId>{0}));
  EXPECT_EQ(reads(kProduct, {}), (std::vector<TraceBlockId>{1}));
  EXPECT_EQ(reads({}, kConversion), (std::vector<TraceBlockId>{1}));
  EXPECT_EQ(reads(kConversion, kProduct), (std::vector<TraceBlockId>{1}));
}

TEST_F(StepsJoined, NotOfProductsThatStay) {
  const auto product = step.makes(kProduct, {step.weight()});
  step.makes(kConversion, {product});
  EXPECT_EQ(read_again(step), (std::vector<TraceBlockId>{product}));
}

TEST_F(StepsJoined, NotIfTheFactorDiesFirst) {
  const auto factor = step.makes({}, {});
  const auto product = step.makes(kProduct, {factor});
  step.builder().dies(factor);
  step.makes(kConversion, {product});
  step.builder().dies(product);
  EXPECT_EQ(read_again(step), (std::vector<TraceBlockId>{product}));
}

TEST_F(StepsJoined, NotIfEitherIsWritten) {
  for (const bool factor : {false, true}) {
    Step step;
    const auto x = step.weight();
    const auto product = step.makes(kProduct, {x});
    step.writes({}, factor ? x : product);
    step.makes(kConversion, {product});
    step.builder().dies(product);
    EXPECT_EQ(read_again(step), (std::vector<TraceBlockId>{product}));
  }
}

TEST_F(StepsJoined, NotWithAFactorOfAnotherSize) {
  const auto product = step.makes(kProduct, {step.weight(kBytes / 2)});
  step.makes(kConversion, {product});
  step.builder().dies(product);
  EXPECT_EQ(read_again(step), (std::vector<TraceBlockId>{product}));
}

TEST_F(StepsJoined, TheLogKeepsTheCosts) {
  StepLog log;
  for (BlockUid run = 0; run < 3; ++run) {
    const BlockUid block = 10 + run;
    log.begin_operator(1, "norm", true, kNorm);
    log.alloc(block, kBytes);
    log.end_operator();
    log.begin_operator(2, "relu", true, kRelu);
    log.touch(block, kBytes, true);
    log.end_operator();
    log.release(block);
  }
  const StepShape shape = make_shape(log, StepLog::Span{4, 6});
  ASSERT_EQ(shape.operators.size(), 2U);
  EXPECT_EQ(shape.operators[0].replay_cost, kNorm);
  EXPECT_EQ(shape.operators[1].replay_cost, kRelu);
  EXPECT_EQ(joined_operators(shape), (std::vector<bool>{false, true}));
}

}  // namespace
}  // namespace lms::testing
