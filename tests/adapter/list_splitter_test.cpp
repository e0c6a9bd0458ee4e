#include "adapters/torch/hook/list_splitter.h"

#include "adapter/support.h"
#include "adapters/torch/hook/op_run.h"
#include "adapters/torch/hook/typed_kernel.h"

namespace lms::torch {
namespace {

using testing::bytes_of;
using testing::call;
using testing::find_operator;
using testing::ManagedCpu;
using testing::numbers;

constexpr std::int64_t kElements = 16384;  // 64 KiB a tensor
constexpr int kLength = 12;
constexpr Bytes kLimit = 2 * kMiB;  // four lists take 3 MiB

std::vector<at::Tensor> list(double seed, at::ScalarType type = at::kFloat) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < kLength; ++i) {
    // Lengths differ, so that a mix-up of positions shows.
    tensors.push_back(numbers(kElements - i, seed + i).to(type));
  }
  return tensors;
}

/// Weights and state after one fused AdamW step.
std::vector<std::string> adamw() {
  auto weights = list(0.0), gradients = list(0.5), first = list(0.1), second = list(0.2);
  for (auto& tensor : second) tensor.square_();
  std::vector<at::Tensor> steps;
  for (int i = 0; i < kLength; ++i) steps.push_back(at::arange(3 + i, 4 + i, at::kFloat).squeeze());
  call(find_operator("aten::_fused_adamw_"),
       {weights, gradients, first, second, std::vector<at::Tensor>{}, steps, 0.1, 0.9, 0.99, 0.01,
        1e-8, false, false, c10::IValue(), c10::IValue()});
  auto all = bytes_of(weights);
  for (const auto& tensors : {first, second}) {
    for (auto& bytes : bytes_of(tensors)) all.push_back(std::move(bytes));
  }
  return all;
}

TEST(ListSplitter, FusedOptimizerInPartsIsTheSameStep) {
  const auto expected = adamw();
  ManagedCpu managed(kLimit);
  EXPECT_EQ(adamw(), expected);
  EXPECT_GT(managed.count("list_splits"), 0);
  EXPECT_LE(managed.stat("device.bytes.peak"), kLimit);
}

TEST(ListSplitter, WhatFitsIsLeftWhole) {
  const auto expected = adamw();
  ManagedCpu managed(64 * kMiB);
  EXPECT_EQ(adamw(), expected);
  EXPECT_EQ(managed.count("list_splits"), 0);
}

/// Runs a list operator's CPU kernel as on a device where it takes its lists whole.
bool in_chunks(const c10::OperatorHandle& op, c10::Stack& stack) {
  const OpInfo info = describe(op, c10::DispatchKey::CUDA);
  EXPECT_EQ(info.kind, OpKind::kList);
  const auto kernel = op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  return run_in_chunks(&run_operator, info, kernel, op, c10::DispatchKeySet(c10::DispatchKey::CPU),
                       stack);
}

/// Likewise as PyTorch finds it there: without boxes.
void run_typed(const c10::OperatorHandle& op, c10::Stack& stack) {
  const OpInfo info = describe(op, c10::DispatchKey::CUDA);
  const auto own = op.getComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  const auto kernel = typed_kernel(info, own, op);
  ASSERT_TRUE(kernel) << info.name;
  kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

void expect_same_in_chunks(const char* name, const char* overload,
                           const std::vector<c10::IValue>& arguments) {
  const auto op = find_operator(name, overload);
  const auto expected = bytes_of(call(op, arguments)[0].toTensorVector());
  c10::Stack stack = arguments;
  ASSERT_TRUE(in_chunks(op, stack)) << name << "." << overload;
  ASSERT_EQ(stack.size(), 1U);
  EXPECT_EQ(bytes_of(stack[0].toTensorVector()), expected) << name << "." << overload;
  stack = arguments;
  run_typed(op, stack);
  ASSERT_EQ(stack.size(), 1U);
  EXPECT_EQ(bytes_of(stack[0].toTensorVector()), expected) << name << "." << overload;
}

TEST(ListSplitter, ListsThatAreReturnedAndScalarsByPosition) {
  ManagedCpu managed(kLimit);
  const auto a = list(0.0), b = list(0.5);
  auto scalars = c10::impl::GenericList(c10::NumberType::get());
  for (int i = 0; i < kLength; ++i) scalars.push_back(0.1 * i);
  const at::Tensor by_position = at::arange(kLength, at::kFloat);

  expect_same_in_chunks("aten::_foreach_mul", "List", {a, b});
  expect_same_in_chunks("aten::_foreach_mul", "Scalar", {a, 0.3});
  expect_same_in_chunks("aten::_foreach_mul", "ScalarList", {a, scalars});
  expect_same_in_chunks("aten::_foreach_addcmul", "Tensor", {a, a, b, by_position});
  expect_same_in_chunks("aten::_foreach_norm", "Scalar", {a, 2, c10::IValue()});
  EXPECT_EQ(managed.count("list_splits"), 10);
}

TEST(ListSplitter, ListsThatAreWrittenWithoutBoxes) {
  ManagedCpu managed(kLimit);
  const auto b = list(0.5);
  auto scalars = c10::impl::GenericList(c10::NumberType::get());
  for (int i = 0; i < kLength; ++i) scalars.push_back(0.1 * i);
  const at::Tensor by_position = at::arange(kLength, at::kFloat);
  const auto expect_same = [&](const char* name, const char* overload,
                               std::vector<c10::IValue> others) {
    const auto op = find_operator(name, overload);
    const auto whole = list(0.0), in_parts = list(0.0);
    others.insert(others.begin(), whole);
    (void)call(op, others);
    others.front() = in_parts;
    c10::Stack stack = std::move(others);
    const auto splits = managed.count("list_splits");
    run_typed(op, stack);
    EXPECT_TRUE(stack.empty());
    EXPECT_EQ(managed.count("list_splits"), splits + 1);
    EXPECT_EQ(bytes_of(in_parts), bytes_of(whole)) << name << "." << overload;
  };
  expect_same("aten::_foreach_mul_", "Scalar", {0.3});
  expect_same("aten::_foreach_lerp_", "ScalarList", {b, scalars});
  expect_same("aten::_foreach_addcdiv_", "Tensor", {list(0.2), b, by_position});

  // Scalars for other positions than there are: the operator complains, and has written nothing.
  const auto op = find_operator("aten::_foreach_addcdiv_", "Tensor");
  const auto a = list(0.0);
  c10::Stack stack{a, list(0.2), b, at::arange(kLength - 1, at::kFloat)};
  EXPECT_ANY_THROW(run_typed(op, stack));
  EXPECT_EQ(bytes_of(a), bytes_of(list(0.0)));
}

TEST(ListSplitter, ListsThatKernelsLookAtAsAWholeAreLeftWhole) {
  ManagedCpu managed(kLimit);
  const auto op = find_operator("aten::_foreach_mul", "List");
  const auto refused = [&](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    c10::Stack stack{a, b};
    const bool chunks = in_chunks(op, stack);
    return !chunks && stack.size() == 2;
  };
  auto mixed = list(0.0, at::kDouble);
  mixed[3] = mixed[3].to(at::kFloat);
  EXPECT_TRUE(refused(mixed, list(0.5, at::kDouble))) << "mixed types";

  auto gaps = list(0.0);
  gaps[2] = numbers(4 * kElements, 0.0).slice(0, 0, 2 * (kElements - 2), 2);
  EXPECT_TRUE(refused(gaps, list(0.5))) << "a tensor with gaps";

  // Its kernel in place writes all of the list, and then complains.
  auto inference = list(0.0);
  {
    const c10::InferenceMode guard;
    inference[1] = numbers(kElements - 1, 0.3);
  }
  EXPECT_TRUE(refused(inference, list(0.5))) << "an inference tensor";

  auto shorter = list(0.5);
  shorter.pop_back();
  EXPECT_TRUE(refused(list(0.0), shorter)) << "lists of different lengths";

  EXPECT_TRUE(refused({numbers(kElements * 16, 0.0)}, {numbers(kElements * 16, 0.1)})) << "one";
  EXPECT_EQ(managed.count("list_splits"), 0);
}

}  // namespace
}  // namespace lms::torch
