#include <gtest/gtest.h>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/virtual_memory.h"

namespace lms::cuda {
namespace {

// What it does on a device is in tests/gpu.
TEST(VirtualMemory, WithoutADeviceSaysSo) {
  if (device_count() > 0) GTEST_SKIP() << "there is a device";
  EXPECT_THROW(VirtualMemory(0, kGiB), Error);
}

}  // namespace
}  // namespace lms::cuda
