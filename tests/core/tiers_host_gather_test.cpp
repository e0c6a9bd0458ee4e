#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tiers/host_arena.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::arena_options;
using testing::copy_to;
using testing::pattern;
using testing::same;

TEST(HostArenaPieces, TheOldestSegmentsAreFilledFirst) {
  HostArena arena(arena_options(4 * kMiB, 1 * kMiB), nullptr);
  std::vector<HostSlot> slots;
  for (int i = 0; i < 8; ++i) slots.push_back(arena.acquire(512 * kKiB));
  EXPECT_EQ(arena.stats().segments, 4);
  const void* const oldest = slots[0].data();
  slots[6] = {};
  slots.push_back(arena.acquire(256 * kKiB));
  slots[0] = {};
  // A tighter fit in a newer segment does not count.
  const auto small = arena.acquire(256 * kKiB);
  EXPECT_EQ(small.data(), oldest);
  // So all others can go.
  for (std::size_t i = 1; i < slots.size(); ++i) slots[i] = {};
  arena.trim();
  EXPECT_EQ(arena.stats().segments, 1);
}

TEST(HostArenaPieces, SmallSlotsKeepOutOfASegmentForLargeOnes) {
  HostArena arena(arena_options(16 * kMiB, 1 * kMiB), nullptr);
  auto large = arena.acquire(6 * kMiB);
  const void* const place = large.data();
  large = {};
  std::vector<HostSlot> small;
  for (int i = 0; i < 10; ++i) small.push_back(arena.acquire(1 * kMiB));
  large = arena.acquire(6 * kMiB);
  EXPECT_EQ(large.data(), place);
  // One of less than half of its size keeps out as well, but not where nothing else is left.
  large = {};
  const auto other = arena.acquire(2 * kMiB);
  EXPECT_EQ(other.data(), place);
  EXPECT_EQ(arena.stats().reserved, 16 * kMiB);
}

// What the gradient of the logits met: half of the memory free, and all of it between small slots.
TEST(HostArenaPieces, GatheringMakesOnePieceOfMany) {
  HostArena arena(arena_options(8 * kMiB, 1 * kMiB), nullptr);
  std::vector<HostSlot> slots;
  for (int i = 0; i < 32; ++i) slots.push_back(arena.acquire(256 * kKiB));
  for (std::size_t i = 0; i < 32; ++i) {
    if (i % 4 != 1) slots[i] = {};
  }
  EXPECT_EQ(arena.stats().used, 2 * kMiB);
  EXPECT_THROW((void)arena.acquire(3 * kMiB), TierFull);
  std::vector<std::vector<char>> contents;
  for (std::size_t i = 1; i < 32; i += 4) {
    contents.push_back(pattern(256 * kKiB, static_cast<unsigned>(i)));
    copy_to(slots[i].data(), contents.back());
  }
  const auto movable = [&] {
    std::vector<HostRange> all;
    for (const HostSlot& slot : slots) {
      if (slot) all.push_back({slot.data(), slot.size()});
    }
    return all;
  };
  {
    const auto gathering = arena.gather(3 * kMiB, movable());
    ASSERT_TRUE(gathering);
    Bytes moved = 0;
    for (HostSlot& slot : slots) {
      if (!slot || !gathering.contains(slot.data())) continue;
      HostSlot fresh = arena.acquire(slot.size());
      EXPECT_FALSE(gathering.contains(fresh.data()));
      std::memcpy(fresh.data(), slot.data(), static_cast<std::size_t>(slot.size()));
      moved += slot.size();
      slot = std::move(fresh);
    }
    EXPECT_EQ(moved, 768 * kKiB);
  }
  const auto large = arena.acquire(3 * kMiB);
  EXPECT_TRUE(large);
  for (std::size_t i = 1, k = 0; i < 32; i += 4, ++k) {
    EXPECT_TRUE(same(slots[i].data(), contents[k]));
  }
}

TEST(HostArenaPieces, NothingIsGatheredWhereItWouldNotHelp) {
  HostArena arena(arena_options(4 * kMiB, 1 * kMiB), nullptr);
  std::vector<HostSlot> slots;
  for (int i = 0; i < 16; ++i) slots.push_back(arena.acquire(256 * kKiB));
  for (std::size_t i = 0; i < 16; i += 4) slots[i] = {};
  std::vector<HostRange> movable;
  for (const HostSlot& slot : slots) {
    if (slot) movable.push_back({slot.data(), slot.size()});
  }
  EXPECT_FALSE(arena.gather(2 * kMiB, movable)) << "the others have no room for what would move";
  EXPECT_FALSE(arena.gather(1 * kMiB, {})) << "nothing may move";
  // Only what may move counts: one segment's slots, and not the first's.
  const std::vector<HostRange> some(movable.begin() + 3, movable.begin() + 6);
  const auto gathering = arena.gather(1 * kMiB, some);
  ASSERT_TRUE(gathering);
  EXPECT_FALSE(gathering.contains(movable[0].data));
  EXPECT_TRUE(gathering.contains(movable[3].data));
  // Meanwhile it serves nobody, and is not given back.
  for (std::size_t i = 5; i < 8; ++i) slots[i] = {};
  arena.trim();
  EXPECT_EQ(arena.stats().segments, 4);
  EXPECT_THROW((void)arena.acquire(1 * kMiB), TierFull);
}

}  // namespace
}  // namespace lms
