#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tiers/host_arena.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::arena_options;
using testing::copy_to;
using testing::ManualFence;
using testing::message_of;
using testing::pattern;
using testing::RecordingPinning;
using testing::same;

TEST(HostArena, ASlotTakesItsSizeRoundedToFourKiB) {
  HostArena arena(arena_options(1 * kMiB, 64 * kKiB), nullptr);
  const auto one = arena.acquire(1);
  const auto none = arena.acquire(0);
  const auto odd = arena.acquire(4 * kKiB + 1);
  EXPECT_EQ(one.size(), 1);
  EXPECT_EQ(none.size(), 0);
  EXPECT_NE(none.data(), nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(odd.data()) % 4096, 0U);
  EXPECT_EQ(arena.stats().used, 16 * kKiB);
  EXPECT_EQ(arena.stats().reserved, 64 * kKiB);
  EXPECT_EQ(arena.stats().pinned, 0);
}

TEST(HostArena, SegmentsAreClippedToTheLimit) {
  const auto pinning = std::make_shared<RecordingPinning>();
  HostArena arena(arena_options(10 * kMiB + 100, 4 * kMiB), pinning);
  std::vector<HostSlot> slots;
  slots.reserve(10);
  for (int i = 0; i < 10; ++i) slots.push_back(arena.acquire(1 * kMiB));
  EXPECT_EQ(arena.stats().reserved, 10 * kMiB);
  EXPECT_EQ(arena.stats().pinned, 10 * kMiB);
  EXPECT_EQ(arena.stats().segments, 3);
  for (const auto& slot : slots) EXPECT_TRUE(pinning->holds(slot.data(), slot.size()));
  EXPECT_THROW((void)arena.acquire(1), TierFull);
}

TEST(HostArena, ABlockLargerThanTheStepHasASegmentOfItsOwnSize) {
  const auto pinning = std::make_shared<RecordingPinning>();
  HostArena arena(arena_options(16 * kMiB, 1 * kMiB), pinning);
  const auto slot = arena.acquire(3 * kMiB + 1);
  EXPECT_EQ(arena.stats().reserved, 3 * kMiB + 4 * kKiB);
  EXPECT_TRUE(pinning->holds(slot.data(), slot.size()));
}

TEST(HostArena, NeighboursCoalesceAndTheSmallestFitIsTaken) {
  HostArena arena(arena_options(64 * kKiB, 64 * kKiB), nullptr);
  auto a = arena.acquire(16 * kKiB);
  auto b = arena.acquire(16 * kKiB);
  auto c = arena.acquire(8 * kKiB);
  auto d = arena.acquire(24 * kKiB);
  void* const a_place = a.data();
  void* const c_place = c.data();
  a.release(nullptr);
  c.release(nullptr);
  const auto small = arena.acquire(8 * kKiB);
  EXPECT_EQ(small.data(), c_place);
  b.release(nullptr);
  const auto both = arena.acquire(32 * kKiB);
  EXPECT_EQ(both.data(), a_place);
}

TEST(HostArena, FullSaysWhatAndLosesNothing) {
  HostArena arena(arena_options(1 * kMiB, 256 * kKiB), nullptr);
  const auto bytes = pattern(768 * kKiB, 1);
  const auto slot = arena.acquire(768 * kKiB);
  copy_to(slot.data(), bytes);
  const auto before = arena.stats();
  const auto text = message_of<TierFull>([&] { (void)arena.acquire(512 * kKiB); });
  EXPECT_NE(text.find("wanted 512 KiB"), std::string::npos) << text;
  EXPECT_NE(text.find("768 KiB in use"), std::string::npos) << text;
  EXPECT_NE(text.find("limit 1.00 MiB"), std::string::npos) << text;
  EXPECT_EQ(arena.stats().used, before.used);
  EXPECT_EQ(arena.stats().reserved, before.reserved);
  EXPECT_TRUE(same(slot.data(), bytes));
  EXPECT_NO_THROW((void)arena.acquire(256 * kKiB));
}

TEST(HostArena, SizesThatNoMachineHasAreRefused) {
  HostArena arena(arena_options(std::numeric_limits<Bytes>::max(), 4 * kKiB), nullptr);
  EXPECT_THROW((void)arena.acquire(std::numeric_limits<Bytes>::max()), TierFull);
  EXPECT_THROW((void)arena.acquire(Bytes{1} << 60), TierFull);
  EXPECT_THROW((void)arena.acquire(-1), BadSetting);
  EXPECT_EQ(arena.stats().reserved, 0);
  EXPECT_NO_THROW((void)arena.acquire(1));
}

TEST(HostArena, BadOptionsAreRefused) {
  EXPECT_THROW(HostArena(arena_options(-1, 1), nullptr), BadSetting);
  EXPECT_THROW(HostArena(arena_options(1, 0), nullptr), BadSetting);
}

TEST(HostArena, FreeSegmentsMakeRoomForALargerOne) {
  const auto pinning = std::make_shared<RecordingPinning>();
  HostArena arena(arena_options(8 * kMiB, 4 * kMiB), pinning);
  {
    const auto a = arena.acquire(3 * kMiB);
    const auto b = arena.acquire(3 * kMiB);
    EXPECT_EQ(arena.stats().segments, 2);
    EXPECT_THROW((void)arena.acquire(5 * kMiB), TierFull);
  }
  EXPECT_EQ(arena.stats().segments, 2);
  const auto whole = arena.acquire(8 * kMiB);
  EXPECT_EQ(arena.stats().segments, 1);
  EXPECT_EQ(arena.stats().reserved, 8 * kMiB);
  EXPECT_EQ(pinning->ranges(), 1U);
  EXPECT_EQ(pinning->wrong, 0);
}

TEST(HostArena, TrimGivesOnlyFreeSegmentsBack) {
  HostArena arena(arena_options(8 * kMiB, 1 * kMiB), nullptr);
  auto a = arena.acquire(1 * kMiB);
  const auto b = arena.acquire(4 * kKiB);
  a.release(nullptr);
  arena.trim();
  EXPECT_EQ(arena.stats().reserved, 1 * kMiB);
  EXPECT_EQ(arena.stats().segments, 1);
}

TEST(HostArena, AFailedPinLeavesNothingBehind) {
  const auto pinning = std::make_shared<RecordingPinning>();
  HostArena arena(arena_options(1 * kMiB, 256 * kKiB), pinning);
  const auto kept = arena.acquire(256 * kKiB);
  pinning->fail = true;
  EXPECT_EQ(message_of<Error>([&] { (void)arena.acquire(1); }), "no more pinning");
  EXPECT_EQ(arena.stats().reserved, 256 * kKiB);
  EXPECT_EQ(arena.stats().used, 256 * kKiB);
  pinning->fail = false;
  EXPECT_NO_THROW((void)arena.acquire(768 * kKiB));
}

TEST(HostArena, SlotsOutliveTheArena) {
  const auto pinning = std::make_shared<RecordingPinning>();
  HostSlot survivor;
  const auto fence = std::make_shared<ManualFence>();
  fence->signal();
  {
    HostArena arena(arena_options(1 * kMiB, 64 * kKiB), pinning);
    survivor = arena.acquire(64 * kKiB);
    arena.acquire(64 * kKiB).release(fence);
  }
  EXPECT_EQ(pinning->ranges(), 2U);
  std::memset(survivor.data(), 7, 64 * kKiB);
  survivor = HostSlot();
  EXPECT_EQ(pinning->ranges(), 0U);
  EXPECT_EQ(pinning->wrong, 0);
}

TEST(HostArena, ALowerLimitTakesEffectAsSlotsReturn) {
  HostArena arena(arena_options(4 * kMiB, 1 * kMiB), nullptr);
  auto a = arena.acquire(1 * kMiB);
  auto b = arena.acquire(1 * kMiB);
  auto c = arena.acquire(1 * kMiB);
  c.release(nullptr);
  arena.set_limit(1 * kMiB);
  EXPECT_EQ(arena.stats().reserved, 2 * kMiB);
  EXPECT_THROW((void)arena.acquire(1), TierFull);
  b.release(nullptr);
  EXPECT_EQ(arena.stats().reserved, 1 * kMiB);
  a.release(nullptr);
  EXPECT_EQ(arena.stats().reserved, 1 * kMiB);
  EXPECT_NO_THROW((void)arena.acquire(1 * kMiB));
  EXPECT_THROW(arena.set_limit(-1), BadSetting);
}

TEST(HostArena, WarnsOnceBeforeItIsFull) {
  int calls = 0;
  Bytes seen = 0;
  auto o = arena_options(1000 * kKiB, 1 * kMiB);
  o.on_high_water = [&](const HostArena::Stats& s) {
    ++calls;
    seen = s.used;
  };
  HostArena arena(o, nullptr);
  const auto a = arena.acquire(900 * kKiB);
  EXPECT_EQ(calls, 0);
  {
    const auto b = arena.acquire(4 * kKiB);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(seen, 904 * kKiB);
  }
  const auto c = arena.acquire(8 * kKiB);
  EXPECT_EQ(calls, 1);
  arena.set_limit(1000 * kKiB);
  const auto d = arena.acquire(8 * kKiB);
  EXPECT_EQ(calls, 2);
}

TEST(HostArena, PeakIsSinceTheReset) {
  HostArena arena(arena_options(1 * kMiB, 64 * kKiB), nullptr);
  { const auto a = arena.acquire(128 * kKiB); }
  EXPECT_EQ(arena.stats().peak_used, 128 * kKiB);
  arena.reset_peak();
  EXPECT_EQ(arena.stats().peak_used, 0);
}

TEST(HostArena, TouchingWithThreadsMakesEveryPageResident) {
  auto o = arena_options(16 * kMiB, 13 * kMiB);
  o.touch_threads = 3;
  o.numa_node = 0;
  HostArena arena(o, nullptr);
  const auto slot = arena.acquire(13 * kMiB);
  std::vector<unsigned char> resident(13 * kMiB / 4096);
  ASSERT_EQ(::mincore(slot.data(), 13 * kMiB, resident.data()), 0);
  for (const auto page : resident) ASSERT_TRUE(page & 1);
}

TEST(HostArena, ThreadsShareItWithoutOverlapAndWithinTheLimit) {
  const auto pinning = std::make_shared<RecordingPinning>();
  HostArena arena(arena_options(2 * kMiB, 256 * kKiB), pinning);
  std::atomic<int> wrong = 0;
  std::atomic<int> full = 0;
  std::atomic<bool> running = true;
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < 3; ++t) {
    workers.emplace_back([&, t] {
      for (unsigned i = 0; i < 150; ++i) {
        try {
          const auto n = static_cast<Bytes>((i * 7919 + t * 104729) % (500 * 1024) + 1);
          auto slot = arena.acquire(n);
          const auto bytes = pattern(n, t * 1000 + i);
          copy_to(slot.data(), bytes);
          if (!same(slot.data(), bytes)) ++wrong;
          if (i % 3 == 0) {
            const auto fence = std::make_shared<ManualFence>();
            slot.release(fence);
            fence->signal();
          }
        } catch (const TierFull&) {
          ++full;
        }
      }
    });
  }
  std::thread watcher([&] {
    while (running) {
      if (arena.stats().reserved > 2 * kMiB) ++wrong;
      arena.trim();
      std::this_thread::yield();
    }
  });
  for (auto& worker : workers) worker.join();
  running = false;
  watcher.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(arena.stats().used, 0);
  arena.trim();
  EXPECT_EQ(arena.stats().reserved, 0);
  EXPECT_EQ(pinning->ranges(), 0U);
  EXPECT_EQ(pinning->wrong, 0);
}

RC_GTEST_PROP(HostArenaProperty, SlotsKeepTheirBytesAndTheLimitHolds, ()) {
  const Bytes limit = *rc::gen::inRange<Bytes>(1, 200) * kKiB;
  const Bytes cap = limit / 4096 * 4096;
  const Bytes step = *rc::gen::inRange<Bytes>(1, 100) * kKiB;
  const auto pinning = std::make_shared<RecordingPinning>();
  HostArena arena(arena_options(limit, step), pinning);
  struct Live {
    HostSlot slot;
    std::vector<char> bytes;
  };
  std::vector<Live> live;
  Bytes used = 0;
  unsigned seed = 0;
  const auto operations = *rc::gen::container<std::vector<std::tuple<int, int>>>(
      rc::gen::tuple(rc::gen::inRange(0, 6), rc::gen::inRange(0, 80 * 1024)));
  for (const auto& [what, number] : operations) {
    if (what <= 2) {
      const Bytes rounded = round_up(std::max(number, 1), 4096);
      try {
        Live entry{arena.acquire(number), pattern(number, ++seed)};
        copy_to(entry.slot.data(), entry.bytes);
        RC_ASSERT(pinning->holds(entry.slot.data(), rounded));
        live.push_back(std::move(entry));
        used += rounded;
        RC_ASSERT(used <= cap);
      } catch (const TierFull&) {
        RC_ASSERT(!live.empty() || rounded > cap);
      }
    } else if (what == 3 && !live.empty()) {
      const auto which = live.begin() + number % static_cast<int>(live.size());
      used -= round_up(std::max<Bytes>(which->slot.size(), 1), 4096);
      if (number % 2 == 0) {
        const auto fence = std::make_shared<ManualFence>();
        fence->signal();
        which->slot.release(fence);
      }
      live.erase(which);
    } else if (what == 4) {
      arena.trim();
    } else if (what == 5) {
      std::vector<HostRange> movable;
      for (std::size_t i = 0; i < live.size(); ++i) {
        if (number % 7 != static_cast<int>(i) % 7) {
          movable.push_back({live[i].slot.data(), live[i].slot.size()});
        }
      }
      bool emptied = false;
      const Bytes reserved = arena.stats().reserved;
      {
        const auto gathering = arena.gather(number, movable);
        emptied = static_cast<bool>(gathering);
        try {
          for (Live& entry : live) {
            if (!gathering.contains(entry.slot.data())) continue;
            HostSlot fresh = arena.acquire(entry.slot.size());
            copy_to(fresh.data(), entry.bytes);
            entry.slot = std::move(fresh);
          }
        } catch (const TierFull&) {
          emptied = false;  // the others' room is in pieces too
        }
      }
      if (arena.stats().reserved > reserved) emptied = false;  // likewise: a segment more was made
      if (emptied) RC_ASSERT(arena.acquire(number).size() == number);
    }
    const auto s = arena.stats();
    RC_ASSERT(s.used == used);
    RC_ASSERT(s.reserved <= cap);
    RC_ASSERT(s.used + s.pending <= s.reserved);
    for (const auto& entry : live) RC_ASSERT(same(entry.slot.data(), entry.bytes));
  }
  live.clear();
  arena.trim();
  RC_ASSERT(arena.stats().reserved == 0);
  RC_ASSERT(pinning->ranges() == 0U);
}

}  // namespace
}  // namespace lms
