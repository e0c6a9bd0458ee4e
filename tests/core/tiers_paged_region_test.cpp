#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tiers/mapped_memory.h"
#include "tiers/paged_region.h"
#include "tiers_faulty_io.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::copy_to;
using testing::disk_options;
using testing::FaultyIo;
using testing::filled;
using testing::message_of;
using testing::pattern;
using testing::same;

constexpr Bytes kRegionPage = 4 * kKiB;

/// Resident bytes of the mappings that lie in the region, by the kernel's account.
Bytes resident(const PagedRegion& region) {
  std::ifstream maps("/proc/self/smaps");
  const auto begin = reinterpret_cast<std::uintptr_t>(region.data());
  bool inside = false;
  Bytes sum = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    char dash = 0;
    std::istringstream head(line);
    if (head >> std::hex >> from >> dash >> to && dash == '-') {
      inside = from <= begin && begin < to;
    } else if (inside && line.rfind("Rss:", 0) == 0) {
      sum += std::stoll(line.substr(4)) * kKiB;
    }
  }
  return sum;
}

TEST(PagedRegion, StartsPresentAndZero) {
  const auto region = PagedRegion::make(5000);
  EXPECT_EQ(region.size(), 5000);
  EXPECT_TRUE(region.present());
  EXPECT_FALSE(region.has_copy());
  EXPECT_TRUE(same(region.data(), std::vector<char>(5000, 0)));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % 4096, 0U);
  EXPECT_NE(PagedRegion::make(0).data(), nullptr);
  const auto large = PagedRegion::make(2 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data()) % (2 * kMiB), 0U);
}

TEST(PagedRegion, ImpossibleSizesAreRefused) {
  EXPECT_THROW((void)PagedRegion::make(-1), BadSetting);
  EXPECT_THROW((void)PagedRegion::make(std::numeric_limits<Bytes>::max()), OutOfMemory);
  EXPECT_THROW((void)PagedRegion::make(Bytes{1} << 60), OutOfMemory);
}

TEST(PagedRegion, LeavesAndComesBackAtItsAddress) {
  FileStore store(disk_options(16 * kMiB));
  for (const Bytes n : {Bytes{1}, Bytes{5000}, 64 * kKiB, 2 * kMiB, 3 * kMiB + 17}) {
    const auto bytes = pattern(n, 1);
    auto region = filled(bytes);
    void* const place = region.data();
    EXPECT_EQ(region.leave(store, true), n);
    EXPECT_FALSE(region.present());
    EXPECT_FALSE(region.has_copy());
    EXPECT_EQ(region.data(), place);
    EXPECT_TRUE(same(place, bytes));
    EXPECT_EQ(region.leave(store, true), 0);
    EXPECT_EQ(region.come_back(store, false), n);
    EXPECT_TRUE(region.present());
    EXPECT_EQ(region.data(), place);
    EXPECT_TRUE(same(place, bytes));
    EXPECT_EQ(region.come_back(store, false), 0);
    EXPECT_EQ(store.stats().used, 0);
  }
}

TEST(PagedRegion, AbsenceGivesTheMemoryBack) {
  const auto options = disk_options(64 * kMiB);
  if (options.allow_memory_file_system) GTEST_SKIP() << "no disk here";
  FileStore store(options);
  const Bytes n = 8 * kMiB;
  auto region = filled(pattern(n, 2));
  EXPECT_EQ(resident(region), n);
  region.leave(store, true);
  EXPECT_EQ(resident(region), 0);
  std::vector<unsigned char> cached(static_cast<std::size_t>(n / 4096));
  ASSERT_EQ(::mincore(region.data(), static_cast<std::size_t>(n), cached.data()), 0);
  for (const auto page : cached) ASSERT_FALSE(page & 1);
  region.come_back(store, true);
  EXPECT_EQ(resident(region), n);
}

TEST(PagedRegion, ACleanCopyMakesLeavingFree) {
  FileStore store(disk_options(16 * kMiB));
  auto bytes = pattern(100 * kKiB, 3);
  auto region = filled(bytes);
  region.leave(store, true);
  region.come_back(store, true);
  EXPECT_TRUE(region.has_copy());
  const auto written = store.stats().written;
  EXPECT_EQ(region.leave(store, false), 0);
  EXPECT_EQ(store.stats().written, written);
  EXPECT_TRUE(same(region.data(), bytes));
  region.come_back(store, true);
  EXPECT_TRUE(same(region.data(), bytes));

  // A stale one is written over in place.
  static_cast<char*>(region.data())[77] = bytes[77] = 'x';
  EXPECT_EQ(region.leave(store, true), 100 * kKiB);
  EXPECT_EQ(store.stats().used, 100 * kKiB);
  EXPECT_TRUE(same(region.data(), bytes));
  region.come_back(store, true);
  EXPECT_TRUE(same(region.data(), bytes));
  region.drop_copy();
  EXPECT_FALSE(region.has_copy());
  EXPECT_EQ(store.stats().used, 0);
  EXPECT_EQ(region.leave(store, false), 100 * kKiB);
  region.drop_copy();
  EXPECT_TRUE(same(region.data(), bytes));
}

TEST(PagedRegion, AWriteThatNobodyAnnouncedIsNotLost) {
  // Byte by byte would take long: the ends, and what begins or ends a chunk of the digest.
  const std::vector<Bytes> places = {0, 7, 8, 2047, 2048, 4095, 4096, 100 * kKiB - 1, 100 * kKiB};
  FileStore store(disk_options(16 * kMiB));
  auto bytes = pattern(100 * kKiB + 1, 4);
  auto region = filled(bytes);
  region.leave(store, true);
  for (const Bytes place : places) {
    region.come_back(store, true);
    ASSERT_TRUE(region.has_copy());
    auto& byte = static_cast<char*>(region.data())[place];
    byte = bytes[static_cast<std::size_t>(place)] = static_cast<char>(byte ^ 1);
    EXPECT_EQ(region.leave(store, false), 100 * kKiB + 1) << place;
    EXPECT_TRUE(same(region.data(), bytes)) << place;
    region.come_back(store, true);
    EXPECT_EQ(region.leave(store, false), 0) << "and the copy is a good one again";
    EXPECT_TRUE(same(region.data(), bytes)) << place;
  }
}

TEST(PagedRegion, AWriteWhileAbsentCountsAsTheCopys) {
  // The file has it: only what is written after the return makes it differ.
  FileStore store(disk_options(16 * kMiB));
  auto bytes = pattern(9000, 5);
  const auto before = bytes;
  auto region = filled(bytes);
  region.leave(store, true);
  static_cast<char*>(region.data())[4321] = bytes[4321] = 'w';
  region.come_back(store, true);
  EXPECT_EQ(region.leave(store, false), 0);
  EXPECT_TRUE(same(region.data(), bytes));
  // What the first copy held is not what this one holds.
  region.come_back(store, true);
  copy_to(region.data(), before);
  EXPECT_EQ(region.leave(store, false), 9000);
  EXPECT_TRUE(same(region.data(), before));
}

TEST(PagedRegion, WritesWhileAbsentComeBack) {
  for (const bool direct : {true, false}) {
    auto options = disk_options(16 * kMiB);
    options.direct = direct;
    FileStore store(options);
    auto bytes = pattern(3 * kMiB, 4);
    auto region = filled(bytes);
    for (int round = 0; round < 10; ++round) {
      region.leave(store, round == 0);
      for (auto at = static_cast<std::size_t>(round); at < bytes.size(); at += 65537) {
        static_cast<char*>(region.data())[at] = bytes[at] = static_cast<char>(at + 1);
      }
      EXPECT_TRUE(same(region.data(), bytes));
      region.come_back(store, true);
      ASSERT_TRUE(same(region.data(), bytes)) << "direct " << direct << " round " << round;
    }
  }
}

TEST(PagedRegion, MovesAndDiesInEveryState) {
  FileStore store(disk_options(16 * kMiB));
  const auto bytes = pattern(10000, 5);
  {
    auto a = filled(bytes);
    a.leave(store, true);
    PagedRegion b = std::move(a);
    EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): that it is empty is the point
    EXPECT_TRUE(same(b.data(), bytes));
    auto c = filled(pattern(5000, 6));
    c.leave(store, true);
    c = std::move(b);
    EXPECT_TRUE(same(c.data(), bytes));
    EXPECT_FALSE(c.present());
    EXPECT_EQ(store.stats().used, 12 * kKiB);
    PagedRegion empty;
    EXPECT_EQ(empty.leave(store, true), 0);
    EXPECT_EQ(empty.come_back(store, true), 0);
  }
  EXPECT_EQ(store.stats().used, 0);
}

TEST(PagedRegion, AFullStoreLosesNothing) {
  FileStore store(disk_options(64 * kKiB));
  const auto bytes = pattern(100 * kKiB, 7);
  auto region = filled(bytes);
  EXPECT_THROW(region.leave(store, true), TierFull);
  EXPECT_TRUE(region.present());
  EXPECT_TRUE(same(region.data(), bytes));
  EXPECT_EQ(store.stats().used, 0);
  store.set_limit(1 * kMiB);
  EXPECT_EQ(region.leave(store, true), 100 * kKiB);
  EXPECT_TRUE(same(region.data(), bytes));
}

TEST(PagedRegion, AFailedWriteLosesNothing) {
  const auto io = std::make_shared<FaultyIo>();
  FileStore store(disk_options(16 * kMiB), io);
  auto bytes = pattern(100 * kKiB, 8);
  auto region = filled(bytes);
  io->most_at_once = 16 * kKiB;
  io->writes_before_error = 3;
  io->write_error = ENOSPC;
  EXPECT_THROW(region.leave(store, true), TierFull);
  EXPECT_TRUE(region.present());
  EXPECT_TRUE(same(region.data(), bytes));
  EXPECT_EQ(store.stats().used, 0);

  EXPECT_EQ(region.leave(store, true), 100 * kKiB);
  EXPECT_TRUE(same(region.data(), bytes));
  region.come_back(store, true);
  static_cast<char*>(region.data())[9] = bytes[9] = 'y';
  io->writes_before_error = 3;
  io->write_error = EIO;
  EXPECT_THROW(region.leave(store, true), Error);
  EXPECT_TRUE(same(region.data(), bytes));
  // The copy was half written over: nobody may take it for a clean one.
  EXPECT_FALSE(region.has_copy());
  EXPECT_EQ(region.leave(store, false), 100 * kKiB);
  EXPECT_TRUE(same(region.data(), bytes));
}

TEST(PagedRegion, AFailedReadLeavesItAbsentAndReadable) {
  const auto io = std::make_shared<FaultyIo>();
  FileStore store(disk_options(16 * kMiB), io);
  const auto bytes = pattern(100 * kKiB, 9);
  auto region = filled(bytes);
  region.leave(store, true);
  io->read_error = EIO;
  EXPECT_THROW(region.come_back(store, false), Error);
  EXPECT_FALSE(region.present());
  EXPECT_TRUE(same(region.data(), bytes));
  EXPECT_EQ(region.come_back(store, false), 100 * kKiB);
  EXPECT_TRUE(same(region.data(), bytes));
}

TEST(PagedRegion, DiscardedBytesAreGoneAndTheirMemoryToo) {
  const auto bytes = pattern(3 * kMiB, 5);
  auto region = filled(bytes);
  void* const address = region.data();
  region.discard();
  EXPECT_FALSE(region.present());
  EXPECT_EQ(resident(region), 0);
  EXPECT_EQ(region.data(), address);
  region.renew();
  EXPECT_TRUE(region.present());
  EXPECT_EQ(region.data(), address);
  EXPECT_TRUE(same(region.data(), std::vector<char>(bytes.size(), 0)));
  copy_to(region.data(), bytes);
  EXPECT_TRUE(same(region.data(), bytes));
}

TEST(PagedRegionDeathTest, DiscardedBytesCannotBeTouched) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto region = filled(pattern(2 * kRegionPage, 6));
  region.discard();
  const auto* const read = static_cast<const volatile char*>(region.data());
  auto* const write = static_cast<volatile char*>(region.data());
  EXPECT_DEATH((void)read[0], "");
  EXPECT_DEATH((void)read[2 * kRegionPage - 1], "");
  EXPECT_DEATH(write[kRegionPage] = 1, "");
}

TEST(PagedRegion, DiscardingTakesTheCopyWithIt) {
  FileStore store(disk_options(64 * kMiB));
  const auto bytes = pattern(5 * kRegionPage, 7);
  auto region = filled(bytes);
  region.leave(store, true);
  region.come_back(store, true);
  ASSERT_TRUE(region.has_copy());
  region.discard();
  EXPECT_FALSE(region.has_copy());
  EXPECT_EQ(store.stats().used, 0);
  EXPECT_EQ(region.leave(store, true), 0) << "there is nothing to write";
  EXPECT_EQ(region.come_back(store, true), 0) << "nor to read";
  EXPECT_FALSE(region.present());
  region.drop_copy();
  region.isolate_in_child();
  region.renew();
  region.renew();  // without effect
  const auto others = pattern(5 * kRegionPage, 8);
  copy_to(region.data(), others);
  EXPECT_EQ(region.leave(store, false), 5 * kRegionPage)
      << "whatever it is called, no copy is valid";
  EXPECT_TRUE(same(region.data(), others));
  region.come_back(store, false);
  EXPECT_TRUE(same(region.data(), others));
}

TEST(PagedRegion, BytesInTheFileAreDiscardedToo) {
  FileStore store(disk_options(64 * kMiB));
  auto region = filled(pattern(5 * kRegionPage, 7));
  region.leave(store, true);
  region.discard();
  EXPECT_EQ(store.stats().used, 0);
  EXPECT_EQ(region.come_back(store, true), 0) << "there is nothing to read";
  const auto others = pattern(5 * kRegionPage, 8);
  auto computed = filled(others);
  ASSERT_TRUE(region.renew_with(computed));
  EXPECT_TRUE(same(region.data(), others));
}

TEST(PagedRegion, AnothersMemoryMovesToADiscardedAddress) {
  FileStore store(disk_options(64 * kMiB));
  const auto bytes = pattern(3 * kMiB, 7);
  auto region = filled(pattern(3 * kMiB, 5));
  void* const address = region.data();
  auto other = filled(bytes);
  EXPECT_FALSE(region.renew_with(other)) << "it has memory";
  region.discard();
  auto small = filled(pattern(kRegionPage, 1));
  EXPECT_FALSE(region.renew_with(small)) << "of another size";
  other.leave(store, true);
  EXPECT_FALSE(region.renew_with(other)) << "its bytes are in the file";
  other.come_back(store, true);
  ASSERT_TRUE(region.renew_with(other));
  EXPECT_EQ(region.data(), address);
  EXPECT_TRUE(region.present());
  EXPECT_FALSE(region.has_copy());
  EXPECT_TRUE(same(region.data(), bytes));
  EXPECT_EQ(other.data(), nullptr);
  EXPECT_EQ(store.stats().used, 0) << "its copy went";
  EXPECT_EQ(region.leave(store, true), 3 * kMiB);
  region.come_back(store, false);
  EXPECT_TRUE(same(region.data(), bytes));
}

TEST(PagedRegion, MovesAndDiesWhileDiscarded) {
  auto region = filled(pattern(2 * kRegionPage, 9));
  void* const address = region.data();
  region.discard();
  PagedRegion other(std::move(region));
  EXPECT_EQ(other.data(), address);
  EXPECT_FALSE(other.present());
  region = filled(pattern(kRegionPage, 10));
  std::swap(region, other);
  EXPECT_FALSE(region.present());
  EXPECT_TRUE(same(other.data(), pattern(kRegionPage, 10)));
  region.renew();
  EXPECT_TRUE(same(region.data(), std::vector<char>(2 * kRegionPage, 0)));
  region.discard();
}

TEST(PagedRegion, AnotherStoreIsToldApart) {
  FileStore store(disk_options(1 * kMiB));
  FileStore other(disk_options(1 * kMiB));
  const auto bytes = pattern(5000, 10);
  auto region = filled(bytes);
  region.leave(store, true);
  region.come_back(store, true);
  // A copy there is none here.
  EXPECT_EQ(region.leave(other, false), 5000);
  EXPECT_EQ(store.stats().used, 0);
  EXPECT_TRUE(same(region.data(), bytes));
}

TEST(PagedRegion, WhatLiesInAStoreThatIsGoneLeavesAndComesBack) {
  const auto bytes = pattern(5000, 11);
  auto leaves = filled(bytes);
  auto comes = filled(bytes);
  {
    FileStore store(disk_options(1 * kMiB));
    leaves.leave(store, true);
    comes.leave(store, true);
  }
  FileStore other(disk_options(1 * kMiB));
  static_cast<char*>(leaves.data())[7] = 1;
  EXPECT_EQ(leaves.leave(other, false), 5000);
  EXPECT_EQ(other.stats().used, 8192);
  EXPECT_EQ(leaves.come_back(other, false), 5000);
  EXPECT_EQ(static_cast<char*>(leaves.data())[7], 1);
  EXPECT_TRUE(leaves.present());
  EXPECT_EQ(comes.come_back(other, true), 5000);
  EXPECT_FALSE(comes.has_copy()) << "a copy in this store there is not";
  EXPECT_TRUE(same(comes.data(), bytes));
}

/// The system maps nothing more.
class NoMoreMappings {
 public:
  NoMoreMappings() { MappedMemory::refuses_all = true; }
  ~NoMoreMappings() { MappedMemory::refuses_all = false; }
};

TEST(PagedRegionMappings, WhereNoneIsLeftBytesStayWhereTheyAreAndCanBeUsed) {
  FileStore store(disk_options(4 * kMiB));
  const auto bytes = pattern(64 * kKiB, 1);
  const auto others = pattern(64 * kKiB, 2);
  auto region = filled(bytes);
  {
    const NoMoreMappings none;
    const std::string text = message_of<TierFull>([&] { region.leave(store, true); });
    EXPECT_NE(text.find("vm.max_map_count"), std::string::npos) << text;
    EXPECT_TRUE(region.present());
    EXPECT_FALSE(region.has_copy());
    EXPECT_EQ(store.stats().used, 0) << "what it took below has been given back";
    EXPECT_TRUE(same(region.data(), bytes));
  }
  EXPECT_GT(region.leave(store, true), 0);
  {
    const NoMoreMappings none;
    EXPECT_TRUE(region.usable_below(store));
    EXPECT_EQ(region.come_back(store, true), 0);
    EXPECT_TRUE(same(region.data(), bytes)) << "read where they lie";
    copy_to(region.data(), others);
    EXPECT_FALSE(region.has_copy());
    EXPECT_EQ(region.leave(store, true), 0) << "they have never come";
    EXPECT_EQ(region.come_back(store, false), 0);
  }
  EXPECT_EQ(region.come_back(store, false), region.size());
  EXPECT_TRUE(same(region.data(), others)) << "the write reached the file";
}

TEST(PagedRegionMappings, WhatWasDiscardedIsRenewedInItsPlace) {
  auto region = filled(pattern(64 * kKiB, 1));
  region.discard();
  const NoMoreMappings none;
  region.renew();
  EXPECT_TRUE(region.present());
  EXPECT_TRUE(same(region.data(), std::vector<char>(64 * kKiB, 0)));
  copy_to(region.data(), pattern(64 * kKiB, 3));
  EXPECT_TRUE(same(region.data(), pattern(64 * kKiB, 3)));
}

}  // namespace
}  // namespace lms
