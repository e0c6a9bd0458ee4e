#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "tiers/paged_region.h"
#include "tiers_faulty_io.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::disk_options;
using testing::FaultyIo;
using testing::filled;
using testing::pattern;
using testing::same;

// The reader races with the remapping by design; what it must never see is a wrong byte.
__attribute__((no_sanitize("thread"), noinline)) bool all_right(const volatile std::uint64_t* words,
                                                                std::size_t count) {
  for (std::size_t i = 0; i < count; i += 64) {
    if (words[i] != i * 0x9E3779B97F4A7C15ULL + 1) return false;
  }
  return true;
}

TEST(PagedRegion, AReaderNeverSeesAWrongByte) {
  for (const Bytes n : {192 * kKiB, 2 * kMiB}) {
    FileStore store(disk_options(16 * kMiB));
    auto region = PagedRegion::make(n);
    auto* const words = static_cast<std::uint64_t*>(region.data());
    const auto count = static_cast<std::size_t>(n) / sizeof(std::uint64_t);
    for (std::size_t i = 0; i < count; ++i) words[i] = i * 0x9E3779B97F4A7C15ULL + 1;
    std::atomic<bool> running = true;
    std::atomic<int> passes = 0;
    std::atomic<int> wrong = 0;
    std::thread reader([&] {
      while (running) {
        if (!all_right(words, count)) ++wrong;
        ++passes;
      }
    });
    while (passes == 0) std::this_thread::yield();
    for (int round = 0; round < 150; ++round) {
      region.leave(store, round % 3 != 0);
      if (round % 5 == 0) std::this_thread::yield();
      region.come_back(store, round % 2 == 0);
    }
    const int seen = passes;
    while (passes < seen + 2) std::this_thread::yield();
    running = false;
    reader.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_TRUE(all_right(words, count));
  }
}

// The model is a vector, what it was when it came back, and a flag: written since. Not every write
// is announced.
RC_GTEST_PROP(PagedRegionProperty, AgreesWithAVector, ()) {
  const Bytes n = *rc::gen::inRange<Bytes>(1, 40 * kKiB);
  auto options = disk_options(96 * kKiB);
  options.direct = *rc::gen::arbitrary<bool>();
  const auto io = std::make_shared<FaultyIo>();
  FileStore store(options, io);
  auto model = pattern(n, 11);
  auto region = filled(model);
  std::optional<PagedRegion> neighbour;
  auto returned = model;
  bool dirty = true;
  bool present = true;
  bool copy = false;
  const auto operations = *rc::gen::container<std::vector<std::tuple<int, int>>>(
      rc::gen::tuple(rc::gen::inRange(0, 8), rc::gen::inRange(0, 1 << 20)));
  for (const auto& [what, number] : operations) {
    switch (what) {
      case 0:
      case 1: {
        const auto at = static_cast<std::size_t>(number) % model.size();
        static_cast<char*>(region.data())[at] = model[at] = static_cast<char>(number);
        dirty = true;
        break;
      }
      case 2:
      case 3: {
        const bool announced = dirty && number % 2 == 0;
        const bool stays = copy && !announced && model == returned;
        RC_ASSERT(region.leave(store, announced) == (present && !stays ? n : 0));
        present = false;
        break;
      }
      case 4:
      case 5: {
        const bool keep = number % 2 == 0;
        RC_ASSERT(region.come_back(store, keep) == (present ? 0 : n));
        if (!present) {
          copy = keep;
          dirty = false;
          returned = model;
        }
        present = true;
        break;
      }
      case 6:
        if (present) {
          io->writes_before_error = 0;
          io->write_error = ENOSPC;
          try {
            region.leave(store, dirty && number % 2 == 0);
            RC_ASSERT(model == returned && copy);
            present = false;
          } catch (const TierFull&) {
            copy = region.has_copy();
          }
          io->write_error = 0;
        } else {
          region.drop_copy();
        }
        break;
      default:
        if (number % 3 == 0) {
          neighbour.reset();
        } else if (number % 3 == 1) {
          neighbour.emplace(filled(pattern(20 * kKiB, 12)));
          neighbour->leave(store, true);
        } else if (present) {
          region.drop_copy();
          copy = false;
        }
    }
    RC_ASSERT(region.present() == present);
    if (present) RC_ASSERT(region.has_copy() == copy);
    RC_ASSERT(same(region.data(), model));
    if (neighbour) RC_ASSERT(same(neighbour->data(), pattern(20 * kKiB, 12)));
  }
}

}  // namespace
}  // namespace lms
