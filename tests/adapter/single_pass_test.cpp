// Which products, sums and conversions one kernel may compute.

#include "adapters/torch/fused/single_pass.h"

#include <ATen/ops/zeros.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::find_operator;
using Sizes = std::vector<std::int64_t>;

TensorSpec float_spec(Sizes sizes) {
  TensorSpec result;
  result.source = TensorSpec::Source::kOrigin;
  result.type = c10::scalarTypeToTypeMeta(c10::kFloat);
  result.keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
  result.strides.assign(sizes.size(), 1);
  for (std::size_t i = sizes.size() - 1; i > 0; --i) {
    result.strides[i - 1] = result.strides[i] * sizes[i];
  }
  result.sizes = std::move(sizes);
  return result;
}

void add_tensor(Call& call, TensorSpec tensor) {
  Call::Argument& argument = call.arguments.emplace_back();
  argument.kind = Call::Argument::Kind::kTensor;
  argument.tensors = {static_cast<int>(call.tensors.size())};
  call.tensors.push_back(std::move(tensor));
}

/// factor * row, converted; to be made wrong in one place.
struct Pair {
  explicit Pair(bool row_first = false) {
    product.op = find_operator("aten::mul", "Tensor");
    add_tensor(product, float_spec(row_first ? Sizes{8} : Sizes{2, 3, 8}));
    add_tensor(product, float_spec(row_first ? Sizes{2, 3, 8} : Sizes{8}));
    cast.op = find_operator("aten::_to_copy");
    add_tensor(cast, float_spec({2, 3, 8}));
    cast.arguments.resize(7);
    cast.arguments[1].value = static_cast<int>(c10::kBFloat16);
    cast.arguments[5].value = false;
  }
  [[nodiscard]] std::optional<SinglePass> find() const {
    return find_cast_of_product(product, cast, c10::kCPU);
  }

  Call product;
  Call cast;
};

bool found_after(const std::function<void(Pair&)>& change) {
  Pair pair;
  change(pair);
  return pair.find().has_value();
}

TEST(SinglePass, BothOrders) {
  for (const bool row_first : {false, true}) {
    const Pair pair(row_first);
    const auto found = pair.find();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->type, c10::kBFloat16);
    EXPECT_EQ(found->input, &pair.product.tensors[row_first ? 1 : 0]);
    EXPECT_EQ(found->other, &pair.product.tensors[row_first ? 0 : 1]);
    EXPECT_EQ(found->with, SinglePass::With::kColumnFactors);
    EXPECT_EQ(found->elements, 48U);
    EXPECT_EQ(found->width, 8U);
    EXPECT_EQ(found->bytes(), 96);
  }
}

TEST(SinglePass, ANumberForEachRow) {
  for (const bool first : {false, true}) {
    Pair pair;
    pair.product.tensors[1] = float_spec({2, 3, 1});
    if (first) std::swap(pair.product.tensors[0], pair.product.tensors[1]);
    const auto found = pair.find();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->other, &pair.product.tensors[first ? 0 : 1]);
    EXPECT_EQ(found->with, SinglePass::With::kRowFactors);
    EXPECT_EQ(found->width, 8U);
  }
}

TEST(SinglePass, ProductsThatAreNotConverted) {
  Pair pair;
  const auto found = find_product(pair.product, c10::kCPU);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type, c10::kFloat);
  EXPECT_EQ(found->elements, 48U);
  EXPECT_EQ(found->bytes(), 192);
  EXPECT_FALSE(find_product(pair.cast, c10::kCPU));
  pair.product.tensors[0].source = TensorSpec::Source::kSelf;
  EXPECT_FALSE(find_product(pair.product, c10::kCPU));
}

TEST(SinglePass, ConversionsAlone) {
  Pair pair;
  pair.cast.tensors[0].offset = 8;
  const auto found = find_cast(pair.cast, c10::kCPU);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->type, c10::kBFloat16);
  EXPECT_EQ(found->with, SinglePass::With::kNothing);
  EXPECT_EQ(found->input, pair.cast.tensors.data());
  EXPECT_EQ(found->elements, 48U);
  EXPECT_EQ(found->bytes(), 96);
  EXPECT_FALSE(find_cast(pair.product, c10::kCPU));
  pair.cast.tensors[0].strides = {1, 2, 6};
  EXPECT_FALSE(find_cast(pair.cast, c10::kCPU));
}

/// A float32 tensor plus one of 16 bits; to be made wrong in one place.
Call sum_of(c10::ScalarType narrow = c10::kBFloat16, bool narrow_first = false) {
  Call call;
  call.op = find_operator("aten::add", "Tensor");
  TensorSpec wide = float_spec({2, 3, 8});
  TensorSpec added = wide;
  added.type = c10::scalarTypeToTypeMeta(narrow);
  if (narrow_first) std::swap(wide, added);
  add_tensor(call, std::move(wide));
  add_tensor(call, std::move(added));
  call.arguments.emplace_back().value = std::int64_t{1};
  return call;
}

TEST(SinglePass, SumsOfTwoTypes) {
  for (const auto narrow : {c10::kBFloat16, c10::kHalf}) {
    for (const bool first : {false, true}) {
      const Call call = sum_of(narrow, first);
      const auto found = find_sum(call, c10::kCPU);
      ASSERT_TRUE(found);
      EXPECT_EQ(found->with, SinglePass::With::kAddend);
      EXPECT_EQ(found->type, c10::kFloat);
      EXPECT_EQ(found->addend, narrow);
      EXPECT_EQ(found->input, &call.tensors[first ? 1 : 0]);
      EXPECT_EQ(found->other, &call.tensors[first ? 0 : 1]);
      EXPECT_EQ(found->elements, 48U);
      EXPECT_EQ(found->bytes(), 192);
      EXPECT_FALSE(find_product(call, c10::kCPU));
      EXPECT_FALSE(find_cast(call, c10::kCPU));
    }
  }
}

TEST(SinglePass, NotAnySum) {
  const auto found_after = [](const std::function<void(Call&)>& change) {
    Call call = sum_of();
    change(call);
    return find_sum(call, c10::kCPU).has_value();
  };
  EXPECT_TRUE(found_after([](Call& c) { c.arguments[2].value = 1.0; }));
  EXPECT_TRUE(found_after([](Call& c) { c.tensors[1].offset = 3; }));
  EXPECT_FALSE(found_after([](Call& c) { c.arguments[2].value = 2; }));
  EXPECT_FALSE(found_after([](Call& c) { c.arguments[2].value = 1.5; }));
  EXPECT_FALSE(found_after([](Call& c) { c.op = find_operator("aten::sub", "Tensor"); }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[1] = float_spec({2, 3, 8}); }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[0].type = c.tensors[1].type; }));
  EXPECT_FALSE(
      found_after([](Call& c) { c.tensors[0].type = c10::scalarTypeToTypeMeta(c10::kDouble); }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[1].sizes = {1, 3, 8}; }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[1].sizes = {3, 2, 8}; }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[1].strides = {24, 1, 3}; }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[0].strides = {48, 16, 2}; }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[1].wrapped_number = true; }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[1].keys = {}; })) << "elsewhere";
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[0].source = TensorSpec::Source::kSelf; }));
  EXPECT_FALSE(found_after([](Call& c) { c.tensors[0].sizes[0] = std::int64_t{1} << 30; }));
}

TEST(SinglePass, WhatIsTheSame) {
  EXPECT_TRUE(found_after([](Pair& p) { p.product.tensors[1] = float_spec({1, 1, 8}); }));
  EXPECT_TRUE(found_after([](Pair& p) { p.cast.tensors[0] = float_spec({6, 8}); })) << "a view";
  EXPECT_TRUE(
      found_after([](Pair& p) { p.cast.arguments[1].value = static_cast<int>(c10::kHalf); }));
  EXPECT_TRUE(found_after(
      [](Pair& p) { p.cast.arguments[6].value = static_cast<int>(c10::MemoryFormat::Preserve); }));
  EXPECT_TRUE(found_after([](Pair& p) { p.product.tensors[0].offset = 8; }));
}

TEST(SinglePass, NotAnyProduct) {
  EXPECT_FALSE(found_after([](Pair& p) { p.product.op = find_operator("aten::add", "Tensor"); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[1] = float_spec({3, 8}); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[1] = float_spec({2, 3, 8}); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[1] = float_spec({3, 1}); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[1] = float_spec({2, 1, 1}); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[1] = float_spec({2, 3, 1, 1}); }));
  EXPECT_FALSE(found_after([](Pair& p) {
    p.product.tensors[1] = float_spec({2, 3, 1});
    p.product.tensors[1].strides = {1, 2, 1};
  }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[1] = float_spec({1}); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[0] = float_spec({8}); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[0].strides = {24, 1, 3}; }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[1].strides = {2}; }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[1].wrapped_number = true; }));
  EXPECT_FALSE(found_after(
      [](Pair& p) { p.product.tensors[0].type = c10::scalarTypeToTypeMeta(c10::kBFloat16); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[0].keys = {}; })) << "elsewhere";
  EXPECT_FALSE(found_after([](Pair& p) { p.product.tensors[0].sizes[0] = std::int64_t{1} << 30; }))
      << "PyTorch counts in 64 bits";
}

TEST(SinglePass, NotAnyConversion) {
  EXPECT_FALSE(found_after([](Pair& p) { p.cast.op = find_operator("aten::clone"); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.cast.tensors[0] = float_spec({3, 8}); })) << "a part";
  EXPECT_FALSE(found_after([](Pair& p) { p.cast.tensors[0].offset = 8; }));
  EXPECT_FALSE(found_after([](Pair& p) { p.cast.tensors[0].strides = {1, 2, 6}; }));
  EXPECT_FALSE(found_after(
      [](Pair& p) { p.cast.arguments[1].value = static_cast<int>(c10::ScalarType::Double); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.cast.arguments[1].value = c10::IValue(); }));
  EXPECT_FALSE(found_after([](Pair& p) { p.cast.arguments[3].value = c10::Device(c10::kCPU); }));
  EXPECT_FALSE(found_after([](Pair& p) {
    p.cast.arguments[6].value = static_cast<int>(c10::MemoryFormat::ChannelsLast);
  }));
}

TEST(SinglePass, WhatPlansReckonWith) {
  const at::Tensor x = at::zeros({2, 3, 8});
  const at::Tensor row = at::zeros({8});
  EXPECT_TRUE(may_be_product({x, row}, 0));
  EXPECT_TRUE(may_be_product({1, row, x}, 1));
  EXPECT_TRUE(may_be_product({x, at::zeros({2, 3, 1})}, 0));
  EXPECT_FALSE(may_be_product({x, at::zeros({2, 1, 1})}, 0));
  EXPECT_FALSE(may_be_product({x, x}, 0));
  EXPECT_FALSE(may_be_product({x, at::Tensor()}, 0));
  EXPECT_FALSE(may_be_product({x, row.to(c10::kBFloat16)}, 0));
  EXPECT_FALSE(may_be_product({x.transpose(0, 1), row}, 0));
  const auto cast = [](const at::Tensor& tensor, c10::IValue type) {
    return may_be_cast({tensor, std::move(type), {}, {}, {}, false, {}}, 0);
  };
  EXPECT_TRUE(cast(x, static_cast<int>(c10::kBFloat16)));
  EXPECT_FALSE(cast(x, static_cast<int>(c10::kFloat)));
  EXPECT_FALSE(cast(x, {}));
  EXPECT_FALSE(cast(x.to(c10::kHalf), static_cast<int>(c10::kBFloat16)));
  EXPECT_FALSE(cast(x[1], static_cast<int>(c10::kBFloat16)));
  const auto sum = [](const at::Tensor& one, const at::Tensor& other, c10::IValue alpha = 1) {
    return may_be_sum({one, other, std::move(alpha)}, 0);
  };
  const at::Tensor narrow = x.to(c10::kBFloat16);
  EXPECT_TRUE(sum(x, narrow));
  EXPECT_TRUE(sum(narrow, x, 1.0));
  EXPECT_TRUE(sum(x, x.to(c10::kHalf)));
  EXPECT_TRUE(may_be_sum({1, narrow, x, 1}, 1));
  EXPECT_FALSE(sum(x, narrow, 2));
  EXPECT_FALSE(sum(x, x));
  EXPECT_FALSE(sum(narrow, narrow));
  EXPECT_FALSE(sum(x, narrow[0]));
  EXPECT_FALSE(sum(x, at::Tensor()));
  EXPECT_FALSE(sum(x.to(c10::kDouble), narrow));
  EXPECT_FALSE(sum(x, at::zeros({8, 3, 2}, c10::kBFloat16).permute({2, 1, 0})));
  EXPECT_FALSE(sum(at::zeros({0, 8}), at::zeros({0, 8}, c10::kBFloat16)));
}

}  // namespace
}  // namespace lms::torch
