// What a HostArena waits for: memory that a device may still use.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tiers/host_arena.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::arena_options;
using testing::ManualFence;
using testing::RecordingPinning;

TEST(HostArena, MemoryIsNotUsedAgainBeforeItsFence) {
  HostArena arena(arena_options(64 * kKiB, 32 * kKiB), nullptr);
  auto slot = arena.acquire(32 * kKiB);
  void* const place = slot.data();
  const auto fence = std::make_shared<ManualFence>();
  slot.release(fence);
  EXPECT_FALSE(slot);
  EXPECT_EQ(arena.stats().used, 0);
  EXPECT_EQ(arena.stats().pending, 32 * kKiB);
  auto other = arena.acquire(32 * kKiB);
  EXPECT_NE(other.data(), place);
  arena.trim();
  EXPECT_EQ(arena.stats().reserved, 64 * kKiB);
  fence->signal();
  const auto again = arena.acquire(32 * kKiB);
  EXPECT_EQ(again.data(), place);
  EXPECT_EQ(fence->waits, 0);
  EXPECT_EQ(arena.stats().pending, 0);
}

TEST(HostArena, WaitsForFencesWhenNothingElseHelps) {
  HostArena arena(arena_options(32 * kKiB, 32 * kKiB), nullptr);
  const auto first = std::make_shared<ManualFence>();
  const auto second = std::make_shared<ManualFence>();
  {
    auto a = arena.acquire(16 * kKiB);
    auto b = arena.acquire(16 * kKiB);
    a.release(first);
    b.release(second);
  }
  std::thread device([&] {
    while (first->waits == 0) std::this_thread::yield();
    first->signal();
    while (second->waits == 0) std::this_thread::yield();
    second->signal();
  });
  const auto all = arena.acquire(32 * kKiB);
  device.join();
  EXPECT_EQ(arena.stats().fence_waits, 2);
  EXPECT_EQ(first->waits, 1);
  EXPECT_EQ(second->waits, 1);
}

TEST(HostArena, WaitsForAFenceRatherThanPinAnew) {
  const auto pinning = std::make_shared<RecordingPinning>();
  HostArena arena(arena_options(8 * kMiB, 1 * kMiB), pinning);
  auto large = arena.acquire(4 * kMiB);
  const void* const place = large.data();
  {
    std::vector<HostSlot> small;
    for (int i = 0; i < 4; ++i) small.push_back(arena.acquire(1 * kMiB));
  }
  const auto fence = std::make_shared<ManualFence>();
  large.release(fence);
  std::atomic<bool> taken = false;
  std::thread device([&] {
    while (fence->waits == 0 && !taken) std::this_thread::yield();
    fence->signal();
  });
  large = arena.acquire(4 * kMiB);
  taken = true;
  device.join();
  EXPECT_EQ(large.data(), place);
  EXPECT_EQ(pinning->pins, 5) << "all of it was there";
  EXPECT_EQ(arena.stats().mapped, 8 * kMiB);
  // With nothing to wait for, what is idle makes room.
  const auto another = arena.acquire(4 * kMiB);
  EXPECT_EQ(pinning->pins, 6);
  EXPECT_EQ(arena.stats().mapped, 12 * kMiB);
}

TEST(HostArena, DoesNotWaitForWhatCanNotHelp) {
  const auto pinning = std::make_shared<RecordingPinning>();
  HostArena arena(arena_options(8 * kMiB, 2 * kMiB), pinning);
  const auto fence = std::make_shared<ManualFence>();
  const auto busy = arena.acquire(1 * kMiB);
  auto beside = arena.acquire(1 * kMiB);
  {
    const auto one = arena.acquire(2 * kMiB);
    const auto two = arena.acquire(2 * kMiB);
    const auto three = arena.acquire(2 * kMiB);
  }
  beside.release(fence);  // its segment is too small, and in use
  const auto large = arena.acquire(6 * kMiB);
  EXPECT_EQ(fence->waits, 0);
  EXPECT_EQ(pinning->pins, 5) << "the three that were idle make room";
  // Where nothing else is left, it is waited for all the same.
  std::thread device([&] {
    while (fence->waits == 0) std::this_thread::yield();
    fence->signal();
  });
  EXPECT_THROW((void)arena.acquire(2 * kMiB), TierFull);
  device.join();
  EXPECT_EQ(arena.stats().fence_waits, 1);
}

TEST(HostArena, TheEndWaitsForTheDevice) {
  const auto pinning = std::make_shared<RecordingPinning>();
  const auto fence = std::make_shared<ManualFence>();
  auto arena = std::make_optional<HostArena>(arena_options(1 * kMiB, 64 * kKiB), pinning);
  arena->acquire(1).release(fence);
  std::atomic<std::size_t> pinned_when_done = 0;
  std::thread device([&] {
    while (fence->waits == 0) std::this_thread::yield();
    pinned_when_done = pinning->ranges();
    fence->signal();
  });
  arena.reset();
  device.join();
  EXPECT_EQ(pinned_when_done, 1U);
  EXPECT_EQ(pinning->ranges(), 0U);
}

}  // namespace
}  // namespace lms
