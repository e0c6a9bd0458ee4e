#include "adapters/torch/operators/foreseen.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::find_operator;
using Sizes = std::vector<std::int64_t>;

class Foreseen : public ::testing::Test {
 protected:
  ForeseenResults::Result ask(const char* name, const char* overload,
                              const std::vector<c10::IValue>& arguments) {
    return foreseen.of(1, find_operator(name, overload), arguments, c10::kCPU);
  }

  ForeseenResults foreseen;
};

TEST_F(Foreseen, OtherSizesOfOnePatternAreNotAskedAgain) {
  const auto call = [&](std::int64_t rows, std::int64_t columns, bool widens) {
    const auto type = widens ? at::kHalf : at::kFloat;
    return ask("aten::_log_softmax", "", {at::empty({rows, columns}, type), 1, widens});
  };
  EXPECT_TRUE(call(3, 7, false).asked);
  const auto again = call(8, 5, false);
  EXPECT_FALSE(again.asked);
  EXPECT_EQ(again.tensor.sizes(), (Sizes{8, 5}));
  EXPECT_EQ(again.tensor.scalar_type(), at::kFloat);
  EXPECT_TRUE(call(4, 4, false).asked) << "sizes that are equal are another pattern";
  EXPECT_TRUE(call(3, 1, false).asked) << "and one position is another";
}

TEST_F(Foreseen, EachSizeIsThatOfItsArgument) {
  const auto call = [&](std::int64_t m, std::int64_t k, std::int64_t n) {
    return ask("aten::mm", "", {at::empty({m, k}), at::empty({k, n})});
  };
  EXPECT_TRUE(call(2, 3, 4).asked);
  const auto again = call(7, 6, 5);
  EXPECT_FALSE(again.asked);
  EXPECT_EQ(again.tensor.sizes(), (Sizes{7, 5}));
}

TEST_F(Foreseen, TypesAndNumbersAreOfThePattern) {
  const auto call = [&](at::ScalarType type, const c10::IValue& other) {
    return ask("aten::div", "Tensor", {at::empty({3}, type), other});
  };
  EXPECT_EQ(call(at::kFloat, at::empty({3})).tensor.scalar_type(), at::kFloat);
  const auto other = call(at::kHalf, at::empty({3}));
  EXPECT_TRUE(other.asked);
  EXPECT_EQ(other.tensor.scalar_type(), at::kFloat);
  const auto whole = call(at::kInt, at::empty({3}, at::kInt));
  EXPECT_EQ(whole.tensor.scalar_type(), at::kFloat);
  at::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const auto now = call(at::kInt, at::empty({3}, at::kInt));
  at::set_default_dtype(caffe2::TypeMeta::Make<float>());
  EXPECT_EQ(now.tensor.scalar_type(), at::kDouble) << "the default is of the pattern, too";
}

TEST_F(Foreseen, WhatIsNotASizeOfTheCallIsAskedEachTime) {
  const auto pad = [&](std::int64_t rows) {
    return ask("aten::constant_pad_nd", "", {at::empty({rows}), Sizes{2, 0}, 0});
  };
  EXPECT_EQ(pad(3).tensor.sizes(), (Sizes{5}));
  EXPECT_EQ(pad(4).tensor.sizes(), (Sizes{6})) << "made of a size and a number";
  const auto made = [&](std::int64_t rows) {
    return ask("aten::new_zeros", "",
               {at::empty({rows}), Sizes{4, 4}, c10::IValue(), c10::IValue(), c10::IValue(),
                c10::IValue()});
  };
  EXPECT_EQ(made(4).tensor.sizes(), (Sizes{4, 4}));
  EXPECT_EQ(made(6).tensor.sizes(), (Sizes{4, 4})) << "a number that happened to be a size";
}

TEST_F(Foreseen, OnlyContiguousTensorsAreOfAPattern) {
  const auto call = [&](std::int64_t rows) {
    return ask("aten::neg", "", {at::empty({rows, 3}).t()});
  };
  EXPECT_TRUE(call(2).asked);
  EXPECT_TRUE(call(2).asked);
  EXPECT_EQ(foreseen.patterns(), 0U);
}

TEST_F(Foreseen, ThatThereAreSeveralResultsIsKnown) {
  const auto call = [&](std::int64_t rows) {
    return ask("aten::max", "dim", {at::empty({rows, 3}), 1, false});
  };
  EXPECT_FALSE(call(2).tensor.defined());
  EXPECT_EQ(foreseen.patterns(), 1U);
  EXPECT_FALSE(call(5).tensor.defined());
  EXPECT_EQ(foreseen.patterns(), 1U);
}

}  // namespace
}  // namespace lms::torch
