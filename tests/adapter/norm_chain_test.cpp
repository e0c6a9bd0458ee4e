// Which heads of lineages one kernel may compute.

#include "adapters/torch/fused/norm_chain.h"

#include <ATen/ops/zeros.h>

#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::find_operator;
using Shape = std::vector<std::int64_t>;

constexpr auto kFloat = c10::ScalarType::Float;
constexpr auto kBFloat16 = c10::ScalarType::BFloat16;
constexpr auto kHalf = c10::ScalarType::Half;
constexpr auto kDouble = c10::ScalarType::Double;

Shape contiguous(const Shape& sizes) {
  Shape strides(sizes.size(), 1);
  for (std::size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

Shape channels_last(const Shape& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[3] * sizes[1], sizes[1]};
}

TensorSpec spec(c10::ScalarType type, Shape sizes, Shape strides, TensorSpec::Source source) {
  TensorSpec result;
  result.source = source;
  result.type = c10::scalarTypeToTypeMeta(type);
  result.keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
  result.sizes = std::move(sizes);
  result.strides = std::move(strides);
  return result;
}

/// A lineage of a batch norm and of what comes after it, to be made wrong in one place.
struct Chain {
  explicit Chain(c10::ScalarType type = kBFloat16, c10::ScalarType parameters = kFloat,
                 Shape shape = {2, 6, 5, 5}, bool last = false)
      : data(type), sizes(std::move(shape)) {
    strides = last ? channels_last(sizes) : contiguous(sizes);
    norm = std::make_shared<Call>();
    norm->op = find_operator("aten::native_batch_norm");
    put(*norm, spec(data, sizes, strides, TensorSpec::Source::kOrigin));
    for (int i = 0; i < 2; ++i) put(*norm, of_channels(parameters));
    for (int i = 0; i < 2; ++i) put_value(*norm, c10::IValue());
    put_value(*norm, true);
    put_value(*norm, 0.1);
    put_value(*norm, 1e-5);
    norm->saved = {of_channels(kFloat), of_channels(kFloat)};
    norm->rounding = Rounding::kPlain;
    add = std::make_shared<Call>();
    add->op = find_operator("aten::add_", "Tensor");
    put(*add, spec(data, sizes, strides, TensorSpec::Source::kSelf));
    put(*add, spec(data, sizes, strides, TensorSpec::Source::kOrigin));
    put_value(*add, 1);
    relu = std::make_shared<Call>();
    relu->op = find_operator("aten::relu_");
    put(*relu, spec(data, sizes, strides, TensorSpec::Source::kSelf));
  }

  [[nodiscard]] TensorSpec of_channels(c10::ScalarType type) const {
    return spec(type, {sizes[1]}, {1}, TensorSpec::Source::kSmall);
  }
  static void put(Call& call, TensorSpec tensor) {
    Call::Argument& argument = call.arguments.emplace_back();
    argument.kind = Call::Argument::Kind::kTensor;
    argument.tensors = {static_cast<int>(call.tensors.size())};
    call.tensors.push_back(std::move(tensor));
  }
  static void put_value(Call& call, c10::IValue value) {
    call.arguments.emplace_back().value = std::move(value);
  }
  static void set_none(Call& call, std::size_t at) { call.arguments[at] = {}; }
  [[nodiscard]] std::optional<NormChain> find(
      const std::vector<std::shared_ptr<const Call>>& calls) const {
    return find_norm_chain(calls, c10::kCPU);
  }
  [[nodiscard]] std::optional<NormChain> find() const { return find({norm, add, relu}); }
  /// Of all three calls, how many are taken.
  [[nodiscard]] std::size_t taken() const {
    const auto chain = find();
    return chain ? chain->calls : 0;
  }

  c10::ScalarType data;
  Shape sizes;
  Shape strides;
  std::shared_ptr<Call> norm;
  std::shared_ptr<Call> add;
  std::shared_ptr<Call> relu;
};

TEST(NormChain, NormAndAddAndRelu) {
  const Chain chain;
  const auto found = chain.find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->calls, 3U);
  EXPECT_EQ(found->type, kBFloat16);
  EXPECT_EQ(found->parameters, kFloat);
  EXPECT_EQ(found->input, chain.norm->tensors.data());
  EXPECT_EQ(found->weight, &chain.norm->tensors[1]);
  EXPECT_EQ(found->bias, &chain.norm->tensors[2]);
  EXPECT_EQ(found->mean, chain.norm->saved.data());
  EXPECT_EQ(found->deviation, &chain.norm->saved[1]);
  EXPECT_EQ(found->other, &chain.add->tensors[1]);
  EXPECT_TRUE(found->relu);
  EXPECT_EQ(found->elements, 300U);
  EXPECT_EQ(found->channels, 6U);
  EXPECT_EQ(found->plane, 25U);
  EXPECT_EQ(found->bytes(), 600);
}

TEST(NormChain, EveryKindOfChain) {
  const Chain chain;
  const auto relu = chain.find({chain.norm, chain.relu});
  ASSERT_TRUE(relu);
  EXPECT_EQ(relu->calls, 2U);
  EXPECT_TRUE(relu->relu);
  EXPECT_EQ(relu->other, nullptr);
  const auto add = chain.find({chain.norm, chain.add});
  ASSERT_TRUE(add);
  EXPECT_EQ(add->calls, 2U);
  EXPECT_FALSE(add->relu);
  const auto longer = chain.find({chain.norm, chain.relu, chain.add});
  ASSERT_TRUE(longer);
  EXPECT_EQ(longer->calls, 2U) << "what comes after it is run as it is";
  EXPECT_EQ(longer->other, nullptr);
  const auto alone = chain.find({chain.norm});
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->calls, 1U);
  EXPECT_FALSE(alone->relu);
  EXPECT_EQ(alone->other, nullptr);
  EXPECT_EQ(chain.find({chain.norm, chain.norm})->calls, 1U);
  EXPECT_FALSE(chain.find({chain.add, chain.relu}));
  EXPECT_FALSE(chain.find({}));
}

TEST(NormChain, Types) {
  for (const auto data : {kFloat, kBFloat16, kHalf}) {
    EXPECT_EQ(Chain(data, data).taken(), 3U);
    EXPECT_EQ(Chain(data, kFloat).taken(), 3U);
  }
  EXPECT_EQ(Chain(kDouble, kDouble).taken(), 0U);
  EXPECT_EQ(Chain(kFloat, kHalf).taken(), 0U);
  EXPECT_EQ(Chain(kHalf, kBFloat16).taken(), 0U);
  Chain mixed(kHalf, kFloat);
  mixed.norm->tensors[2].type = c10::scalarTypeToTypeMeta(kHalf);
  EXPECT_EQ(mixed.taken(), 0U) << "weight and bias of two types";
  Chain statistics;
  statistics.norm->saved[1].type = c10::scalarTypeToTypeMeta(kBFloat16);
  EXPECT_EQ(statistics.taken(), 0U);
}

TEST(NormChain, WithoutParameters) {
  Chain chain;
  Chain::set_none(*chain.norm, 1);
  Chain::set_none(*chain.norm, 2);
  auto found = chain.find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->weight, nullptr);
  EXPECT_EQ(found->bias, nullptr);
  EXPECT_EQ(found->parameters, c10::ScalarType::Undefined);
  Chain weight_only;
  weight_only.norm->arguments[2].tensors = {-1};  // an undefined tensor
  found = weight_only.find();
  ASSERT_TRUE(found);
  EXPECT_NE(found->weight, nullptr);
  EXPECT_EQ(found->bias, nullptr);
  Chain number;
  number.norm->arguments[1] = {};
  number.norm->arguments[1].value = 1.0;
  EXPECT_EQ(number.taken(), 0U);
}

TEST(NormChain, Layouts) {
  const auto plane = [](const Shape& sizes, bool last) {
    const auto found = Chain(kFloat, kFloat, sizes, last).find();
    return found ? static_cast<int>(found->plane) : 0;
  };
  EXPECT_EQ(plane({2, 6}, false), 1);
  EXPECT_EQ(plane({2, 6, 7}, false), 7);
  EXPECT_EQ(plane({2, 6, 7, 3}, false), 21);
  EXPECT_EQ(plane({2, 6, 7, 3, 2}, false), 42);
  EXPECT_EQ(plane({2, 6, 7, 3}, true), 1);
  EXPECT_EQ(plane({2, 6, 1, 1}, true), 1);
  // Dimensions of one element have any stride.
  Chain one(kFloat, kFloat, {1, 6, 5, 1});
  for (auto* call : {one.norm.get(), one.add.get(), one.relu.get()}) {
    call->tensors[0].strides[0] = 77;
    call->tensors[0].strides[3] = 99;
  }
  EXPECT_EQ(one.taken(), 3U);
  // Neither of both.
  Chain holes;
  for (auto* call : {holes.norm.get(), holes.add.get(), holes.relu.get()}) {
    for (TensorSpec& tensor : call->tensors) {
      if (tensor.sizes.size() == 4) tensor.strides = {300, 50, 10, 2};
    }
  }
  EXPECT_EQ(holes.taken(), 0U);
  Chain vector(kFloat, kFloat, {6, 6});
  vector.norm->tensors[0].sizes = {6};
  vector.norm->tensors[0].strides = {1};
  EXPECT_EQ(vector.taken(), 0U);
  Chain last_3d(kFloat, kFloat, {2, 6, 5, 4, 3});
  for (auto* call : {last_3d.norm.get(), last_3d.add.get(), last_3d.relu.get()}) {
    for (TensorSpec& tensor : call->tensors) {
      if (tensor.sizes.size() == 5) tensor.strides = {360, 1, 72, 18, 6};
    }
  }
  EXPECT_EQ(last_3d.taken(), 0U) << "PyTorch takes a general kernel";
}

TEST(NormChain, Sizes) {
  EXPECT_EQ(Chain(kBFloat16, kFloat, {1 << 10, 1 << 10, 1 << 10}).taken(), 3U);
  EXPECT_EQ(Chain(kBFloat16, kFloat, {1 << 11, 1 << 10, 1 << 10}).taken(), 0U);
  EXPECT_EQ(Chain(kBFloat16, kFloat, {std::int64_t{1} << 40, 1 << 20, 1 << 20}).taken(), 0U);
  EXPECT_EQ(Chain(kBFloat16, kFloat, {1, std::numeric_limits<std::int32_t>::max(), 1}).taken(), 0U);
  EXPECT_EQ(Chain(kBFloat16, kFloat, {0, 6, 5, 5}).taken(), 0U);
}

/// How many calls of a chain are taken after a change.
std::size_t taken_after(const std::function<void(Chain&)>& change) {
  Chain chain;
  change(chain);
  return chain.taken();
}

TEST(NormChain, NotAnyNorm) {
  EXPECT_EQ(taken_after([](Chain& c) { c.norm->saved.clear(); }), 0U);
  EXPECT_EQ(taken_after([](Chain& c) { c.norm->rounding = Rounding::kOther; }), 0U);
  EXPECT_EQ(taken_after([](Chain& c) { c.norm->op = find_operator("aten::cudnn_batch_norm"); }),
            3U);
  EXPECT_EQ(taken_after([](Chain& c) { c.norm->tensors[1].strides = {2}; }), 0U);
  EXPECT_EQ(taken_after([](Chain& c) { c.norm->tensors[2].sizes = {5}; }), 0U);
  EXPECT_EQ(taken_after([](Chain& c) { c.norm->saved[0].strides = {2}; }), 0U);
  EXPECT_EQ(taken_after([](Chain& c) { c.norm->saved[1].sizes = {1, 6}; }), 0U);
  EXPECT_EQ(taken_after([](Chain& c) { c.norm->tensors[1].keys = {}; }), 0U) << "elsewhere";
  EXPECT_EQ(taken_after([](Chain& c) {
              c.norm->tensors[0].keys = c.norm->tensors[0].keys.add(c10::DispatchKey::Negative);
            }),
            0U);
}

TEST(NormChain, NotAnyAdd) {
  // The norm alone is taken: what follows an add that is none is no part of it.
  EXPECT_EQ(taken_after([](Chain& c) { c.add->arguments[2].value = 2; }), 1U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->arguments[2].value = true; }), 1U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->arguments[2].value = 1.0; }), 3U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->op = find_operator("aten::sub_", "Tensor"); }), 1U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->tensors[1].source = TensorSpec::Source::kSelf; }),
            1U);
  EXPECT_EQ(
      taken_after([](Chain& c) { c.add->tensors[1].type = c10::scalarTypeToTypeMeta(kFloat); }),
      1U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->tensors[1].sizes = {1, 6, 5, 5}; }), 1U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->tensors[1].strides = channels_last(c.sizes); }), 1U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->tensors[1].offset = 40; }), 3U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->tensors[1].wrapped_number = true; }), 1U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->tensors[0].offset = 1; }), 1U);
  EXPECT_EQ(taken_after([](Chain& c) { c.add->tensors[0].source = TensorSpec::Source::kOrigin; }),
            1U);
  EXPECT_EQ(taken_after([](Chain& c) { Chain::set_none(*c.add, 1); }), 1U);
}

TEST(NormChain, LeakyRelu) {
  Chain chain;
  chain.relu->op = find_operator("aten::leaky_relu_");
  EXPECT_EQ(chain.taken(), 2U) << "without a slope";
  Chain::put_value(*chain.relu, 0.25);
  const auto found = chain.find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->calls, 3U);
  EXPECT_TRUE(found->relu);
  EXPECT_EQ(found->slope, 0.25F);
  chain.relu->arguments[1].value = true;
  EXPECT_EQ(chain.taken(), 2U);
  EXPECT_FALSE(Chain().find()->slope);
}

TEST(NormChain, Rounding) {
  Chain chain;
  chain.norm->rounding = Rounding::kFlushed;
  EXPECT_EQ(chain.find()->rounding, Rounding::kFlushed);
}

TEST(NormChain, NotAnyRelu) {
  // Norm and add are taken without it.
  EXPECT_EQ(taken_after([](Chain& c) { c.relu->op = find_operator("aten::sigmoid_"); }), 2U);
  EXPECT_EQ(taken_after([](Chain& c) { c.relu->tensors[0].sizes = {1, 6, 5, 5}; }), 2U);
  EXPECT_EQ(taken_after([](Chain& c) { c.relu->tensors[0].offset = 150; }), 2U);
  EXPECT_EQ(
      taken_after([](Chain& c) { c.relu->tensors[0].type = c10::scalarTypeToTypeMeta(kHalf); }),
      2U);
}

}  // namespace
}  // namespace lms::torch
