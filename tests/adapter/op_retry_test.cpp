// Operators that run out of memory inside their kernels.

#include <c10/util/Exception.h>
#include <torch/library.h>

#include "adapter/support.h"

namespace lms::torch {
namespace {

using testing::bytes_of;
using testing::call;
using testing::find_operator;
using testing::ManagedCpu;
using testing::numbers;

enum class Failure { kNone, kPyTorchs, kLibrarys, kOther };

/// How often the kernels below are still to fail, how, and how often they have been called.
int failures = 0;
int calls = 0;
Failure failure = Failure::kNone;

void fail_first() {
  ++calls;
  if (failures == 0) return;
  --failures;
  switch (failure) {
    case Failure::kPyTorchs:
      TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory, for a test");
    case Failure::kLibrarys:
      TORCH_CHECK(false, "CUDNN_STATUS_ALLOC_FAILED");
    default:
      TORCH_CHECK(false, "some other fault");
  }
}

at::Tensor flaky(const at::Tensor& x) {
  fail_first();
  return x.mul(2);
}

at::Tensor& flaky_in_place(at::Tensor& x) {
  fail_first();
  return x.mul_(2);
}

/// As cuDNN does it: without memory for the workspace, another algorithm, which this thread
/// remembers.
thread_local bool remembered = false;
at::Tensor falls_back(const at::Tensor& x) {
  ++calls;
  if (remembered) return x.mul(3);
  try {
    const at::Tensor workspace = at::empty({2 * kMiB}, at::kByte);
    return x.mul(2);
  } catch (const c10::OutOfMemoryError&) {
    remembered = true;
    return x.mul(3);
  }
}

/// It has only algorithms that need too much, and an error of its own for that.
at::Tensor never_fits(const at::Tensor& x) {
  for (const std::int64_t workspace : {8 * kMiB, 2 * kMiB}) {
    try {
      (void)at::empty({workspace}, at::kByte);
      return x.mul(2);
    } catch (const c10::OutOfMemoryError&) {
      continue;
    }
  }
  TORCH_CHECK(false, "no algorithm was found");
}

/// A convolution that may run in place; PyTorch has it for GPUs alone. With a weight of one number
/// none of its algorithms fits.
at::Tensor depthwise(const at::Tensor& x, const at::Tensor& weight, c10::SymIntArrayRef /*kernel*/,
                     const std::optional<at::Tensor>& /*bias*/, c10::SymIntArrayRef /*stride*/,
                     c10::SymIntArrayRef /*padding*/, c10::SymIntArrayRef /*dilation*/) {
  return weight.numel() == 1 ? never_fits(x) : falls_back(x);
}

at::Tensor outer(const at::Tensor& x) {
  return call(find_operator("aten::_lms_test_flaky"), {x.add(0)})[0].toTensor();
}

}  // namespace
}  // namespace lms::torch

TORCH_LIBRARY_FRAGMENT(aten, m) {
  m.def("_lms_test_flaky(Tensor x) -> Tensor");
  m.def("_lms_test_flaky_random(Tensor x) -> Tensor", {at::Tag::nondeterministic_seeded});
  m.def("_lms_test_outer(Tensor x) -> Tensor");
  m.def("_lms_test_falls_back(Tensor x) -> Tensor");
  m.def("_lms_test_conv_falls_back(Tensor x) -> Tensor");
  m.def("_lms_test_conv_never_fits(Tensor x) -> Tensor");
  m.def("_lms_test_flaky_(Tensor(a!) x) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_lms_test_flaky", &lms::torch::flaky);
  m.impl("_lms_test_flaky_random", &lms::torch::flaky);
  m.impl("_lms_test_outer", &lms::torch::outer);
  m.impl("_lms_test_falls_back", &lms::torch::falls_back);
  m.impl("_lms_test_conv_falls_back", &lms::torch::falls_back);
  m.impl("_lms_test_conv_never_fits", &lms::torch::never_fits);
  m.impl("conv_depthwise3d", &lms::torch::depthwise);
  m.impl("_lms_test_flaky_", &lms::torch::flaky_in_place);
}
TORCH_LIBRARY(lms_retry_test, m) { m.def("flaky(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(lms_retry_test, CPU, m) { m.impl("flaky", &lms::torch::flaky); }

namespace lms::torch {
namespace {

class OpRetry : public ::testing::Test {
 protected:
  void fail(int times, Failure how) {
    failures = times;
    failure = how;
    calls = 0;
  }
  void TearDown() override {
    failures = 0;
    remembered = false;
  }

  /// Evicts something: from then on operators keep what it takes to run them again.
  void press() {
    const at::Tensor other = numbers(16384, 0.4).clone();
    ASSERT_GT(managed.reclaim(), 0);
  }
  /// Whether nothing is pinned any more.
  bool all_may_leave() {
    managed.reclaim();
    return managed.stat("device.bytes.current") == 0 && managed.stat("pinned.bytes.current") == 0;
  }

  at::Tensor convolved() { return convolved(x); }
  at::Tensor convolved(const at::Tensor& weight) {
    const std::vector<std::int64_t> sizes{1, 1, 1};
    const auto op = find_operator("aten::conv_depthwise3d");
    return call(op, {x, weight, sizes, c10::IValue(), sizes, sizes, sizes})[0].toTensor();
  }

  ManagedCpu managed{kMiB};
  at::Tensor x = numbers(16384, 0.3).clone();
  std::string doubled = bytes_of(x.mul(2));
};

TEST_F(OpRetry, RunsAgainAfterAReclaim) {
  for (const Failure how : {Failure::kPyTorchs, Failure::kLibrarys}) {
    press();
    fail(1, how);
    const auto retries = managed.count("op_retries");
    {
      const at::Tensor result = call(find_operator("aten::_lms_test_flaky"), {x})[0].toTensor();
      EXPECT_EQ(calls, 2);
      EXPECT_EQ(managed.count("op_retries"), retries + 1);
      EXPECT_EQ(bytes_of(result), doubled);
    }
    EXPECT_TRUE(all_may_leave());
  }
}

TEST_F(OpRetry, AKernelMayNotGoOnWithAnotherAlgorithm) {
  managed.never_in_place();
  const auto op = find_operator("aten::_lms_test_falls_back");
  EXPECT_THROW(call(op, {x}), c10::OutOfMemoryError);
  press();
  EXPECT_THROW(call(op, {x}), c10::OutOfMemoryError);
  EXPECT_TRUE(all_may_leave()) << "the error left pins";
  managed.set_limit(8 * kMiB);
  EXPECT_EQ(bytes_of(call(op, {x})[0].toTensor()), doubled);
}

TEST_F(OpRetry, AConvolutionGoesOnWithAnotherAlgorithmWhereTheFirstNeverFits) {
  managed.never_in_place();
  const auto op = find_operator("aten::_lms_test_conv_falls_back");
  const std::string tripled = bytes_of(x.mul(3));
  managed.set_limit(8 * kMiB);
  EXPECT_EQ(bytes_of(call(op, {x})[0].toTensor()), doubled);
  EXPECT_EQ(managed.count("op_changes"), 0) << "it fits";
  managed.set_limit(kMiB);
  EXPECT_THROW(call(op, {x}), c10::OutOfMemoryError) << "nobody allowed it";
  EXPECT_FALSE(remembered);
  managed.allow_other_algorithms();
  calls = 0;
  EXPECT_EQ(bytes_of(call(op, {x})[0].toTensor()), tripled);
  EXPECT_EQ(managed.count("op_changes"), 1);
  EXPECT_GT(calls, 1) << "not before everything has left";
  calls = 0;
  EXPECT_EQ(bytes_of(call(op, {x})[0].toTensor()), tripled);
  EXPECT_EQ(calls, 1) << "the thread remembers";
  EXPECT_TRUE(all_may_leave());
}

TEST_F(OpRetry, InPlaceTheFirstAlgorithmComesBeforeAnother) {
  managed.allow_other_algorithms();
  EXPECT_EQ(bytes_of(convolved()), doubled);
  EXPECT_FALSE(remembered);
  EXPECT_EQ(managed.count("op_changes"), 0);
  EXPECT_GT(managed.count("slices.in_place"), 0);
  calls = 0;
  EXPECT_EQ(bytes_of(convolved()), doubled);
  EXPECT_EQ(calls, 1) << "it is known to run in place";
  EXPECT_TRUE(all_may_leave());
}

TEST_F(OpRetry, WithNoRoomInPlaceEitherAnotherAlgorithmRunsAsAWhole) {
  const std::string tripled = bytes_of(x.mul(3));
  managed.set_host_limit(kMiB);
  EXPECT_THROW((void)convolved(), c10::OutOfMemoryError) << "nobody allowed it";
  managed.allow_other_algorithms();
  EXPECT_EQ(bytes_of(convolved()), tripled);
  EXPECT_EQ(managed.count("op_changes"), 1);
  const auto in_place = managed.count("slices.in_place_bytes");
  calls = 0;
  EXPECT_EQ(bytes_of(convolved()), tripled);
  EXPECT_EQ(calls, 1) << "the thread remembers";
  EXPECT_EQ(managed.count("slices.in_place_bytes"), in_place);
  EXPECT_TRUE(all_may_leave());
}

TEST_F(OpRetry, WithNoRoomForAnyAlgorithmTheErrorIsOfTheLastOne) {
  managed.set_host_limit(kMiB);
  managed.allow_other_algorithms();
  try {
    (void)convolved(numbers(1, 1));
    FAIL() << "it cannot fit";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_NE(error.msg().find("needs at least 2."), std::string::npos) << error.msg();
    EXPECT_EQ(error.msg().find("other_algorithms=True"), std::string::npos) << error.msg();
  }
  EXPECT_EQ(managed.count("op_changes"), 0);
  EXPECT_TRUE(all_may_leave()) << "the error left pins";
}

TEST_F(OpRetry, WithoutAnAlgorithmThatFitsTheErrorIsOurs) {
  managed.never_in_place();
  managed.allow_other_algorithms();
  try {
    call(find_operator("aten::_lms_test_conv_never_fits"), {x});
    FAIL() << "it cannot fit";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_NE(error.msg().find("_lms_test_conv_never_fits needs at least 2."), std::string::npos)
        << error.msg();
  }
  EXPECT_EQ(managed.count("op_changes"), 0);
  EXPECT_TRUE(all_may_leave()) << "the error left pins";
}

TEST_F(OpRetry, ASecondFailureIsTheCallers) {
  managed.never_in_place();
  press();
  fail(2, Failure::kPyTorchs);
  EXPECT_THROW(call(find_operator("aten::_lms_test_flaky"), {x}), c10::OutOfMemoryError);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(all_may_leave()) << "the error left pins";
  EXPECT_EQ(bytes_of(call(find_operator("aten::_lms_test_flaky"), {x})[0].toTensor()), doubled);
}

TEST_F(OpRetry, OtherErrorsAreNotRetried) {
  press();
  fail(1, Failure::kOther);
  EXPECT_THROW(call(find_operator("aten::_lms_test_flaky"), {x}), c10::Error);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(managed.count("op_retries"), 0);
  EXPECT_TRUE(all_may_leave());
}

TEST_F(OpRetry, WhatCannotSafelyRunTwiceRunsOnce) {
  press();
  const std::string before = bytes_of(x);
  for (const char* name :
       {"aten::_lms_test_flaky_", "aten::_lms_test_flaky_random", "lms_retry_test::flaky"}) {
    fail(1, Failure::kPyTorchs);
    EXPECT_THROW(call(find_operator(name), {x}), c10::OutOfMemoryError) << name;
    EXPECT_EQ(calls, 1) << name;
  }
  EXPECT_EQ(managed.count("op_retries"), 0);
  EXPECT_EQ(bytes_of(x), before);
  EXPECT_TRUE(all_may_leave());
}

TEST_F(OpRetry, NestedOperatorsLeaveItToTheOutermost) {
  // einsum, bmm and their like call operators from operators; the innermost has not all the facts.
  press();
  fail(1, Failure::kPyTorchs);
  const auto op = find_operator("aten::_lms_test_outer");
  EXPECT_EQ(bytes_of(call(op, {x})[0].toTensor()), doubled);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(managed.count("op_retries"), 1);
  EXPECT_TRUE(all_may_leave());
}

}  // namespace
}  // namespace lms::torch
