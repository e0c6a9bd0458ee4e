// The public C++ API, as a program sees it.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <lms/torch.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

lms::torch::Options options(std::int64_t limit) {
  lms::torch::Options options;
  options.device = "cpu";
  options.limit = limit;
  options.host_limit = 64 * kMiB;
  options.directory = ::testing::TempDir();
  return options;
}

at::Tensor numbers(double value) { return at::full({kMiB / 2}, value, at::kFloat); }  // 2 MiB

bool all_are(const at::Tensor& tensor, float value) { return tensor.eq(value).all().item<bool>(); }

static_assert(!std::is_copy_constructible_v<lms::torch::Managed>);
static_assert(std::is_nothrow_destructible_v<lms::torch::Managed>);

TEST(Api, ManagedIsOnForItsScope) {
  EXPECT_FALSE(lms::torch::is_enabled());
  {
    const lms::torch::Managed managed(options(16 * kMiB));
    EXPECT_EQ(managed.device(), "cpu");
    EXPECT_TRUE(lms::torch::is_enabled());
    EXPECT_TRUE(lms::torch::is_enabled("cpu"));
    EXPECT_EQ(lms::torch::memory_stats().at("limit"), 16 * kMiB);
  }
  EXPECT_FALSE(lms::torch::is_enabled("cpu"));
}

TEST(Api, AnInnerManagedChangesTheLimitAndLeavesTheDeviceOn) {
  const lms::torch::Managed outer(options(16 * kMiB));
  {
    const lms::torch::Managed inner(options(8 * kMiB));
    EXPECT_EQ(lms::torch::memory_stats("cpu").at("limit"), 8 * kMiB);
  }
  EXPECT_TRUE(lms::torch::is_enabled("cpu"));
}

TEST(Api, BytesLeaveAndReturn) {
  at::Tensor tensor;
  {
    const lms::torch::Managed managed(options(16 * kMiB));
    tensor = numbers(3);
    tensor.add_(1);
    EXPECT_EQ(lms::torch::reclaim_inactive("cpu"), 2 * kMiB);
    EXPECT_EQ(lms::torch::memory_stats("cpu").at("absent.bytes.current"), 2 * kMiB);
    EXPECT_TRUE(all_are(tensor, 4));
    EXPECT_EQ(lms::torch::memory_stats("cpu").at("absent.bytes.current"), 0);
    EXPECT_EQ(lms::torch::reclaim_inactive(), 2 * kMiB);
  }
  EXPECT_TRUE(all_are(tensor, 4));
}

TEST(Api, PeaksStartAnew) {
  const lms::torch::Managed managed(options(16 * kMiB));
  { const at::Tensor tensor = numbers(1); }
  EXPECT_GE(lms::torch::memory_stats("cpu").at("device.bytes.peak"), 2 * kMiB);
  lms::torch::reset_peak_memory_stats("cpu");
  const auto stats = lms::torch::memory_stats("cpu");
  EXPECT_EQ(stats.at("device.bytes.peak"), stats.at("device.bytes.current"));
}

TEST(Api, AccessKeepsABlockAndItsRawWrites) {
  const lms::torch::Managed managed(options(16 * kMiB));
  const at::Tensor tensor = numbers(5);
  ASSERT_TRUE(all_are(tensor, 5));
  ASSERT_EQ(lms::torch::reclaim_inactive("cpu"), 2 * kMiB);
  ASSERT_TRUE(all_are(tensor, 5));  // back, and clean
  lms::torch::access(tensor);
  tensor.data_ptr<float>()[7] = 6;
  EXPECT_EQ(lms::torch::reclaim_inactive("cpu"), 0);
  EXPECT_EQ(lms::torch::memory_stats("cpu").at("kept.bytes.current"), 2 * kMiB);
  EXPECT_EQ(tensor[7].item<float>(), 6);
}

TEST(Api, OutOfMemoryIsPyTorchsAndLosesNothing) {
  const lms::torch::Managed managed(options(4 * kMiB));
  const at::Tensor tensor = numbers(2);
  try {
    (void)at::empty({8 * kMiB}, at::kByte);
    FAIL() << "8 MiB fitted under 4 MiB";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_NE(error.msg().find("smallest limit that could work"), std::string::npos) << error.msg();
  }
  lms::torch::enable(options(16 * kMiB));
  EXPECT_EQ(at::zeros({8 * kMiB}, at::kByte).numel(), 8 * kMiB);
  EXPECT_TRUE(all_are(tensor, 2));
}

TEST(Api, BadSettingsAreValueErrorsAndChangeNothing) {
  auto unknown = options(kMiB);
  unknown.device = "tpu:0";
  EXPECT_THROW(lms::torch::enable(unknown), c10::ValueError);
  auto nowhere = options(kMiB);
  nowhere.directory = "/no/such/folder";
  EXPECT_THROW(lms::torch::enable(nowhere), c10::ValueError);
  EXPECT_THROW((lms::torch::Managed(nowhere)), c10::ValueError);
  EXPECT_FALSE(lms::torch::is_enabled());
  EXPECT_THROW(lms::torch::reclaim_inactive("cpu"), c10::ValueError);
}

TEST(Api, WithoutAManagedDeviceNothingHappens) {
  EXPECT_EQ(lms::torch::reclaim_inactive(), 0);
  EXPECT_TRUE(lms::torch::memory_stats().empty());
  EXPECT_NO_THROW(lms::torch::reset_peak_memory_stats());
  EXPECT_NO_THROW(lms::torch::disable());
  EXPECT_NO_THROW(lms::torch::access(numbers(1)));
}

}  // namespace
