#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tiers/file_store.h"
#include "tiers_faulty_io.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::disk_options;
using testing::FaultyIo;
using testing::message_of;
using testing::pattern;
using testing::same;

std::vector<char> read_back(const FileStore& store, const FileSlot& slot, Bytes n) {
  std::vector<char> bytes(static_cast<std::size_t>(n));
  store.read(slot, bytes.data(), bytes.size());
  return bytes;
}

Bytes disk_blocks(const FileStore& store) {
  struct stat info {};
  EXPECT_EQ(::fstat(store.fd(), &info), 0);
  return static_cast<Bytes>(info.st_blocks) * 512;
}

/// Pages of the slot that are in the page cache.
int cached_pages(const FileStore& store, const FileSlot& slot) {
  const auto n = static_cast<std::size_t>(round_up(slot.size(), 4096));
  void* p = ::mmap(nullptr, n, PROT_READ, MAP_SHARED, store.fd(), slot.offset());
  EXPECT_NE(p, MAP_FAILED);
  std::vector<unsigned char> in_core(n / 4096);
  EXPECT_EQ(::mincore(p, n, in_core.data()), 0);
  ::munmap(p, n);
  int count = 0;
  for (const auto page : in_core) count += page & 1;
  return count;
}

/// Both ways of transferring: past the page cache, and through it.
class FileStoreWays : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] static FileStore make(Bytes limit, std::shared_ptr<FileIo> io = nullptr) {
    auto options = disk_options(limit);
    options.direct = GetParam();
    return FileStore(options, std::move(io));
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, FileStoreWays, ::testing::Values(true, false),
                         [](const auto& way) { return way.param ? "Direct" : "Buffered"; });

TEST_P(FileStoreWays, EverySizeAndAlignmentComesBack) {
  auto store = make(16 * kMiB);
  unsigned seed = 0;
  for (const Bytes n :
       {Bytes{0}, Bytes{1}, Bytes{4095}, Bytes{4096}, Bytes{4097}, 1 * kMiB, 2 * kMiB + 4099}) {
    for (const Bytes shift : {0, 1, 512}) {
      const auto bytes = pattern(n + shift, ++seed);
      const std::vector<char> expected(bytes.begin() + shift, bytes.end());
      const auto slot = store.acquire(n);
      const auto neighbour = store.acquire(4096);
      const auto other = pattern(4096, ++seed);
      store.write(neighbour, other.data(), other.size());
      store.write(slot, bytes.data() + shift, static_cast<std::size_t>(n));
      std::vector<char> got(static_cast<std::size_t>(n + shift));
      store.read(slot, got.data() + shift, static_cast<std::size_t>(n));
      EXPECT_TRUE(same(got.data() + shift, expected)) << n << " at " << shift;
      EXPECT_EQ(read_back(store, neighbour, 4096), other);
    }
  }
  EXPECT_EQ(store.stats().written, store.stats().read);
}

TEST_P(FileStoreWays, ThePageCacheDoesNotGrow) {
  auto store = make(16 * kMiB);
  const auto slot = store.acquire(4 * kMiB);
  const auto bytes = pattern(4 * kMiB, 3);
  store.write(slot, bytes.data(), bytes.size());
  EXPECT_EQ(cached_pages(store, slot), 0);
  EXPECT_EQ(read_back(store, slot, 4 * kMiB), bytes);
  EXPECT_EQ(cached_pages(store, slot), 0);
}

TEST_P(FileStoreWays, ReadsSeeWhatWasWrittenThroughAMapping) {
  auto store = make(16 * kMiB);
  const auto slot = store.acquire(64 * kKiB);
  auto bytes = pattern(64 * kKiB, 4);
  store.write(slot, bytes.data(), bytes.size());
  auto* p = static_cast<char*>(
      ::mmap(nullptr, 64 * kKiB, PROT_READ | PROT_WRITE, MAP_SHARED, store.fd(), slot.offset()));
  ASSERT_NE(p, MAP_FAILED);
  for (int round = 0; round < 20; ++round) {
    p[5000 + round] = bytes[5000 + static_cast<std::size_t>(round)] = static_cast<char>(round);
    EXPECT_EQ(read_back(store, slot, 64 * kKiB), bytes);
  }
  ::munmap(p, 64 * kKiB);
}

TEST_P(FileStoreWays, ShortAndInterruptedTransfersGoOn) {
  const auto io = std::make_shared<FaultyIo>();
  auto store = make(4 * kMiB, io);
  const auto slot = store.acquire(100 * kKiB);
  const auto bytes = pattern(100 * kKiB, 5);
  io->most_at_once = 8192;
  io->write_error = EINTR;
  io->read_error = EINTR;
  store.write(slot, bytes.data(), bytes.size());
  EXPECT_EQ(read_back(store, slot, 100 * kKiB), bytes);
  EXPECT_GE(io->writes, 13);
  EXPECT_GE(io->reads, 13);
}

TEST_P(FileStoreWays, FailedTransfersSaySo) {
  const auto io = std::make_shared<FaultyIo>();
  auto store = make(4 * kMiB, io);
  const auto slot = store.acquire(64 * kKiB);
  const auto bytes = pattern(64 * kKiB, 6);
  io->write_error = ENOSPC;
  EXPECT_THROW(store.write(slot, bytes.data(), bytes.size()), TierFull);
  io->write_error = EDQUOT;
  EXPECT_THROW(store.write(slot, bytes.data(), bytes.size()), TierFull);
  io->write_error = EIO;
  const auto text = message_of<Error>([&] { store.write(slot, bytes.data(), bytes.size()); });
  EXPECT_NE(text.find("Input/output error"), std::string::npos) << text;
  io->stuck = true;
  EXPECT_THROW(store.write(slot, bytes.data(), bytes.size()), Error);
  io->stuck = false;
  store.write(slot, bytes.data(), bytes.size());
  io->read_error = EIO;
  EXPECT_THROW(read_back(store, slot, 64 * kKiB), Error);
  EXPECT_EQ(read_back(store, slot, 64 * kKiB), bytes);
}

TEST(FileStore, TheLimitIsFoundBeforeAByteIsLost) {
  FileStore store(disk_options(1 * kMiB));
  const auto slot = store.acquire(768 * kKiB);
  const auto bytes = pattern(768 * kKiB, 7);
  store.write(slot, bytes.data(), bytes.size());
  const auto text = message_of<TierFull>([&] { (void)store.acquire(512 * kKiB); });
  EXPECT_NE(text.find("wanted 512 KiB"), std::string::npos) << text;
  EXPECT_NE(text.find("limit 1.00 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("free on the disk"), std::string::npos) << text;
  EXPECT_EQ(store.stats().used, 768 * kKiB);
  EXPECT_EQ(read_back(store, slot, 768 * kKiB), bytes);
  EXPECT_NO_THROW((void)store.acquire(256 * kKiB));
  EXPECT_THROW((void)store.acquire(-1), BadSetting);
  EXPECT_THROW((void)store.acquire(std::numeric_limits<Bytes>::max()), TierFull);
}

TEST(FileStore, AFullDiskIsFoundByAcquire) {
  const auto io = std::make_shared<FaultyIo>();
  FileStore store(disk_options(64 * kMiB), io);
  io->pretended_free = 1 * kMiB;
  const auto text = message_of<TierFull>([&] { (void)store.acquire(2 * kMiB); });
  EXPECT_NE(text.find("limit 64.0 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("free on the disk 1.00 MiB"), std::string::npos) << text;
  EXPECT_EQ(store.stats().reserved, 0);

  io->pretended_free = -1;
  io->sticky = true;
  io->allocate_error = ENOSPC;
  const auto refused = message_of<TierFull>([&] { (void)store.acquire(4096); });
  EXPECT_NE(refused.find("No space left"), std::string::npos) << refused;
  EXPECT_EQ(store.stats().reserved, 0);
  EXPECT_EQ(store.stats().used, 0);
  io->sticky = false;
  io->allocate_error = 0;
  EXPECT_NO_THROW((void)store.acquire(4096));
}

TEST(FileStore, TakesJustWhatIsNeededWhenAWholeStepIsRefused) {
  const auto io = std::make_shared<FaultyIo>();
  FileStore store(disk_options(64 * kMiB), io);
  io->allocate_error = ENOSPC;
  const auto slot = store.acquire(4096);
  EXPECT_EQ(store.stats().reserved, 4096);
}

TEST(FileStore, WorksWithoutFallocate) {
  const auto io = std::make_shared<FaultyIo>();
  io->sticky = true;
  io->allocate_error = EOPNOTSUPP;
  FileStore store(disk_options(64 * kMiB), io);
  const auto slot = store.acquire(100 * kKiB);
  const auto bytes = pattern(100 * kKiB, 8);
  store.write(slot, bytes.data(), bytes.size());
  EXPECT_EQ(read_back(store, slot, 100 * kKiB), bytes);
}

TEST(FileStore, DiskBlocksAreThereFromTheStart) {
  FileStore store(disk_options(16 * kMiB));
  const auto slot = store.acquire(3 * kMiB);
  EXPECT_GE(disk_blocks(store), 3 * kMiB);
}

TEST(FileStore, FreedExtentsAreUsedAgainAndTheTailGoesBack) {
  FileStore store(disk_options(1 * kMiB));
  auto a = store.acquire(256 * kKiB);
  auto b = store.acquire(256 * kKiB);
  auto c = store.acquire(256 * kKiB);
  EXPECT_EQ(store.stats().reserved, 768 * kKiB);
  a.release();
  b.release();
  const auto d = store.acquire(512 * kKiB);
  EXPECT_EQ(d.offset(), 0);
  EXPECT_EQ(store.stats().reserved, 768 * kKiB);
  c.release();
  store.trim();
  EXPECT_EQ(store.stats().reserved, 512 * kKiB);
  EXPECT_LT(disk_blocks(store), 768 * kKiB);
  const auto e = store.acquire(512 * kKiB);
  EXPECT_EQ(store.stats().reserved, 1 * kMiB);
  EXPECT_EQ(store.stats().peak_used, 1 * kMiB);
}

TEST(FileStore, ALowerLimitStopsGrowth) {
  FileStore store(disk_options(1 * kMiB));
  auto a = store.acquire(512 * kKiB);
  store.set_limit(256 * kKiB);
  EXPECT_THROW((void)store.acquire(4096), TierFull);
  a.release();
  store.set_limit(256 * kKiB);
  EXPECT_EQ(store.stats().reserved, 0);
  EXPECT_NO_THROW((void)store.acquire(256 * kKiB));
}

TEST(FileStore, RefusesWhatCannotWork) {
  FileStore::Options options;
  options.limit = 1 * kMiB;
  options.directory = "/nowhere/at/all";
  const auto text = message_of<BadSetting>([&] { FileStore store(options); });
  EXPECT_NE(text.find("/nowhere/at/all"), std::string::npos) << text;
  auto negative = disk_options(1);
  negative.limit = -1;
  EXPECT_THROW(FileStore{negative}, BadSetting);
  auto stepless = disk_options(1);
  stepless.step = 0;
  EXPECT_THROW(FileStore{stepless}, BadSetting);
}

TEST(FileStore, RefusesAFileSystemInMemory) {
  FileStore::Options options;
  options.limit = 1 * kMiB;
  options.directory = "/dev/shm";
  options.allow_memory_file_system = true;
  std::optional<FileStore> allowed;
  try {
    allowed.emplace(options);
  } catch (const BadSetting&) {
    GTEST_SKIP() << "no /dev/shm here";
  }
  const auto slot = allowed->acquire(5000);
  const auto bytes = pattern(5000, 9);
  allowed->write(slot, bytes.data(), bytes.size());
  EXPECT_EQ(read_back(*allowed, slot, 5000), bytes);

  options.allow_memory_file_system = false;
  const auto text = message_of<BadSetting>([&] { FileStore store(options); });
  EXPECT_NE(text.find("kept in memory"), std::string::npos) << text;
  EXPECT_NE(text.find("/var/tmp"), std::string::npos) << text;
}

TEST(FileStore, MisuseIsAnError) {
  FileStore store(disk_options(1 * kMiB));
  FileStore other(disk_options(1 * kMiB));
  const auto slot = store.acquire(4096);
  std::vector<char> bytes(8192);
  EXPECT_THROW(store.write(slot, bytes.data(), 4097), Error);
  EXPECT_THROW(store.read(slot, bytes.data(), 8192), Error);
  EXPECT_THROW(other.write(slot, bytes.data(), 1), Error);
  EXPECT_THROW(other.read(slot, bytes.data(), 1), Error);
  EXPECT_THROW(store.write(FileSlot(), bytes.data(), 1), Error);
  EXPECT_FALSE(other.may_overwrite(slot));
  EXPECT_EQ(FileSlot().fd(), -1);
}

TEST(FileStore, SlotsOutliveTheStore) {
  FileSlot survivor;
  {
    FileStore store(disk_options(1 * kMiB));
    survivor = store.acquire(4096);
  }
  EXPECT_GE(survivor.fd(), 0);
  survivor.release();
  EXPECT_EQ(survivor.fd(), -1);
}

TEST(FileStore, ThreadsShareIt) {
  FileStore store(disk_options(2 * kMiB));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < 3; ++t) {
    workers.emplace_back([&, t] {
      for (unsigned i = 0; i < 40; ++i) {
        const auto n = static_cast<Bytes>((i * 7919 + t * 104729) % (200 * 1024) + 1);
        const auto slot = store.acquire(n);
        const auto bytes = pattern(n, t * 1000 + i);
        store.write(slot, bytes.data(), bytes.size());
        if (read_back(store, slot, n) != bytes) ++wrong;
      }
    });
  }
  for (auto& worker : workers) worker.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(store.stats().used, 0);
}

RC_GTEST_PROP(FileStoreProperty, SlotsKeepTheirBytesAndTheLimitHolds, ()) {
  const Bytes limit = *rc::gen::inRange<Bytes>(1, 128) * kKiB;
  const Bytes cap = limit / 4096 * 4096;
  auto options = disk_options(limit);
  options.step = *rc::gen::inRange<Bytes>(1, 64) * kKiB;
  options.direct = *rc::gen::arbitrary<bool>();
  FileStore store(options);
  std::vector<std::pair<FileSlot, std::vector<char>>> live;
  Bytes used = 0;
  unsigned seed = 0;
  const auto operations = *rc::gen::container<std::vector<std::tuple<int, int>>>(
      rc::gen::tuple(rc::gen::inRange(0, 5), rc::gen::inRange(0, 40 * 1024)));
  for (const auto& [what, number] : operations) {
    if (what <= 2) {
      const Bytes rounded = round_up(std::max(number, 1), 4096);
      try {
        auto slot = store.acquire(number);
        auto bytes = pattern(number, ++seed);
        store.write(slot, bytes.data(), bytes.size());
        live.emplace_back(std::move(slot), std::move(bytes));
        used += rounded;
      } catch (const TierFull&) {
        RC_ASSERT(!live.empty() || rounded > cap);
      }
    } else if (what == 3 && !live.empty()) {
      const auto which = live.begin() + number % static_cast<int>(live.size());
      used -= round_up(std::max<Bytes>(which->first.size(), 1), 4096);
      live.erase(which);
    } else if (what == 4) {
      store.trim();
    }
    const auto s = store.stats();
    RC_ASSERT(s.used == used);
    RC_ASSERT(s.used <= s.reserved);
    RC_ASSERT(s.reserved <= cap);
  }
  for (const auto& [slot, bytes] : live) RC_ASSERT(read_back(store, slot, slot.size()) == bytes);
}

}  // namespace
}  // namespace lms
