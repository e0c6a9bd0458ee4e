#include "cuda/virtual_memory.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/event.h"

namespace lms::cuda {
namespace {

constexpr Bytes kChunk = 4 * VirtualMemory::kUnit;

class VirtualMemoryOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }

  static Bytes free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<Bytes>(free);
  }
  static Bytes total_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<Bytes>(total);
  }
  static void fill(std::byte* where, int value, Bytes bytes) {
    check(cudaMemset(where, value, static_cast<std::size_t>(bytes)), "cudaMemset");
  }
  static int byte_at(const std::byte* where) {
    unsigned char value = 0;
    check(cudaMemcpy(&value, where, 1, cudaMemcpyDefault), "cudaMemcpy");
    return value;
  }
};

TEST_F(VirtualMemoryOnGpu, GrowsAndShrinksInChunksAndKeepsWhatStays) {
  VirtualMemory memory(0, 8 * kChunk - 1);
  EXPECT_EQ(memory.reserved(), 8 * kChunk);
  EXPECT_EQ(memory.mapped(), 0);
  memory.map(0, 1);
  EXPECT_EQ(memory.mapped(), kChunk);
  std::byte* base = memory.base();
  fill(base, 1, kChunk);
  memory.map(0, 3 * kChunk);
  EXPECT_EQ(memory.mapped(), 3 * kChunk);
  EXPECT_EQ(memory.base(), base);
  fill(base + kChunk, 2, 2 * kChunk);
  memory.map(0, 2 * kChunk);
  EXPECT_EQ(memory.mapped(), 3 * kChunk);
  EXPECT_EQ(byte_at(base + kChunk - 1), 1);
  EXPECT_EQ(byte_at(base + 3 * kChunk - 1), 2);
  memory.unmap(kChunk + 1, memory.reserved());
  EXPECT_EQ(memory.mapped(), 2 * kChunk);
  EXPECT_EQ(byte_at(base), 1);
  EXPECT_EQ(byte_at(base + 2 * kChunk - 1), 2);
  memory.unmap(0, memory.reserved());
  EXPECT_EQ(memory.mapped(), 0);
  memory.map(0, 8 * kChunk);
  fill(base, 3, 8 * kChunk);
  EXPECT_EQ(byte_at(base + 8 * kChunk - 1), 3);
}

TEST_F(VirtualMemoryOnGpu, ChunksLieSideBySideInAnyOrder) {
  constexpr Bytes kSmall = VirtualMemory::kUnit;
  VirtualMemory memory(0, 8 * kSmall, kSmall);
  memory.map(0, 8 * kSmall);
  for (int i = 0; i < 8; ++i) fill(memory.base() + i * kSmall, 10 + i, kSmall);
  const Bytes there = memory.side_by_side({5, 2, 7});
  EXPECT_GE(there, memory.reserved());
  EXPECT_TRUE(memory.owns(memory.base() + there + 3 * kSmall - 1));
  EXPECT_EQ(memory.side_by_side({5, 2, 7}), there);
  EXPECT_NE(memory.side_by_side({2, 5}), there);
  EXPECT_EQ(memory.mapped(), 8 * kSmall);
  const std::byte* pieces = memory.base() + there;
  EXPECT_EQ(byte_at(pieces), 15);
  EXPECT_EQ(byte_at(pieces + kSmall), 12);
  EXPECT_EQ(byte_at(pieces + 3 * kSmall - 1), 17);
  // One kernel and one copy over all of it.
  fill(memory.base() + there, 3, 3 * kSmall);
  EXPECT_EQ(byte_at(memory.base() + 5 * kSmall), 3);
  EXPECT_EQ(byte_at(memory.base() + 8 * kSmall - 1), 3);
  EXPECT_EQ(byte_at(memory.base() + 6 * kSmall), 16);
  check(cudaMemcpy(memory.base() + there, memory.base(), static_cast<std::size_t>(2 * kSmall),
                   cudaMemcpyDeviceToDevice),
        "cudaMemcpy");
  EXPECT_EQ(byte_at(memory.base() + 6 * kSmall - 1), 10);
  EXPECT_EQ(byte_at(memory.base() + 3 * kSmall - 1), 11);
  // Some may be forgotten; their memory stays.
  const Bytes other = memory.side_by_side({1, 6});
  memory.forget([&](Bytes offset) { return offset == other; });
  EXPECT_EQ(memory.side_by_side({1, 6}), other);
  EXPECT_EQ(byte_at(memory.base() + 5 * kSmall - 1), 14);
  (void)memory.side_by_side({5, 2, 7});
  // A chunk that is given back lies nowhere; its memory is free.
  const Bytes before = free_bytes();
  memory.unmap(2 * kSmall, 3 * kSmall);
  EXPECT_GE(free_bytes(), before + kSmall);
  EXPECT_THROW((void)memory.side_by_side({5, 2, 7}), Error);
  memory.map(2 * kSmall, 3 * kSmall);
  const Bytes again = memory.side_by_side({2, 0});
  fill(memory.base() + again, 9, 2 * kSmall);
  EXPECT_EQ(byte_at(memory.base() + 2 * kSmall), 9);
  EXPECT_EQ(byte_at(memory.base()), 9);
}

TEST_F(VirtualMemoryOnGpu, GivesMemoryBack) {
  VirtualMemory first(0, kChunk);  // whatever the first use of the driver takes
  first.map(0, kChunk);
  const Bytes before = free_bytes();
  {
    VirtualMemory memory(0, kGiB);
    memory.map(0, kGiB);
    EXPECT_LE(free_bytes(), before - kGiB);
    memory.unmap(kGiB / 2, memory.reserved());
    EXPECT_GE(free_bytes(), before - kGiB / 2 - 4 * kChunk);
  }
  EXPECT_GE(free_bytes(), before - 4 * kChunk);
}

TEST_F(VirtualMemoryOnGpu, WithoutMemoryThrowsAndChangesNothing) {
  VirtualMemory memory(0, 2 * total_bytes());
  memory.map(0, 2 * kChunk);
  fill(memory.base(), 7, 2 * kChunk);
  const Bytes before = free_bytes();
  EXPECT_THROW(memory.map(0, 2 * total_bytes()), OutOfMemory);
  EXPECT_EQ(memory.mapped(), 2 * kChunk);
  EXPECT_GE(free_bytes(), before - 4 * kChunk);
  EXPECT_EQ(byte_at(memory.base() + 2 * kChunk - 1), 7);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_THROW(memory.map(0, memory.reserved() + 1), Error);
  memory.map(0, 3 * kChunk);
  EXPECT_EQ(memory.mapped(), 3 * kChunk);
}

TEST_F(VirtualMemoryOnGpu, PeersReachWhatIsMappedNowAndLater) {
  int can = 0;
  if (device_count() > 1) check(cudaDeviceCanAccessPeer(&can, 1, 0), "cudaDeviceCanAccessPeer");
  if (can == 0) GTEST_SKIP() << "no second device that reaches the first";
  VirtualMemory memory(0, 4 * kChunk);
  memory.map(0, kChunk);
  memory.allow(1);
  memory.allow(1);
  memory.map(0, 2 * kChunk);
  int before = 0;
  check(cudaGetDevice(&before), "cudaGetDevice");
  check(cudaSetDevice(1), "cudaSetDevice");
  fill(memory.base(), 9, 2 * kChunk);  // a kernel of device 1
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaSetDevice(before), "cudaSetDevice");
  EXPECT_EQ(byte_at(memory.base()), 9);
  EXPECT_EQ(byte_at(memory.base() + 2 * kChunk - 1), 9);
}

TEST_F(VirtualMemoryOnGpu, TheCurrentDeviceStays) {
  const int last = device_count() - 1;
  check(cudaSetDevice(last), "cudaSetDevice");
  VirtualMemory memory(0, kChunk);
  memory.map(0, kChunk);
  memory.unmap(0, memory.reserved());
  int current = -1;
  check(cudaGetDevice(&current), "cudaGetDevice");
  EXPECT_EQ(current, last);
}

TEST_F(VirtualMemoryOnGpu, RefusesWhatCannotBe) {
  EXPECT_THROW(VirtualMemory(0, 0), Error);
  EXPECT_THROW(VirtualMemory(device_count(), kChunk), Error);
  VirtualMemory memory(0, kChunk);
  EXPECT_THROW(memory.allow(device_count()), Error);
}

}  // namespace
}  // namespace lms::cuda
