// The engine over a real file, whose system calls fail: each call of a recorded program in turn,
// in each way. An error reaches the caller, or everything is right; and once the fault is gone,
// nothing is lost, nothing miscounted, and nothing held.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tiers/file_io.h"
#include "tiers/paged_region.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::copy_to;
using testing::disk_options;
using testing::pattern;
using testing::same;

constexpr Bytes kPage = 4 * kKiB;

enum class Fault {
  kNone,
  kError,        ///< one call fails
  kFull,         ///< from this one on nothing can be written or allocated
  kDead,         ///< from this one on every call fails
  kShort,        ///< one transfer moves half, or a page if that is all
  kNothing,      ///< one transfer moves nothing
  kInterrupted,  ///< one call is interrupted by a signal
};

constexpr Fault kFaults[] = {Fault::kError, Fault::kFull,    Fault::kDead,
                             Fault::kShort, Fault::kNothing, Fault::kInterrupted};

/// Counts all calls, and has the k-th fail.
class SweptIo final : public FileIo {
 public:
  ssize_t pwrite(int fd, const void* data, std::size_t n, off_t offset) override {
    if (const int error = next(/*adds=*/true)) return fail(error);
    return FileIo::pwrite(fd, data, cut(n), offset);
  }
  ssize_t pread(int fd, void* data, std::size_t n, off_t offset) override {
    if (const int error = next(/*adds=*/false)) return fail(error);
    return FileIo::pread(fd, data, cut(n), offset);
  }
  int fallocate(int fd, off_t offset, off_t n) override {
    if (const int error = next(/*adds=*/true)) return fail(error);
    return FileIo::fallocate(fd, offset, n);
  }

  Fault fault = Fault::kNone;
  int at = 0;     ///< the call that fails, from 1
  int calls = 0;  ///< so far

 private:
  static int fail(int error) {
    errno = error;
    return -1;
  }
  int next(bool adds) {
    ++calls;
    if (fault == Fault::kFull) return calls >= at && adds ? ENOSPC : 0;
    if (fault == Fault::kDead) return calls >= at ? EIO : 0;
    if (calls != at) return 0;
    if (fault == Fault::kError) return EIO;
    return fault == Fault::kInterrupted ? EINTR : 0;
  }
  [[nodiscard]] std::size_t cut(std::size_t n) const {
    if (calls == at && fault == Fault::kShort) {
      return std::min(n, std::max<std::size_t>(n / 2 / kPage, 1) * kPage);
    }
    return calls == at && fault == Fault::kNothing ? 0 : n;
  }
};

struct RegionBlock final : Block {
  RegionBlock(Bytes size, unsigned seed)
      : Block(size), region(PagedRegion::make(size)), contents(pattern(size, seed)) {
    copy_to(region.data(), contents);
  }
  PagedRegion region;
  std::vector<char> contents;  ///< as they must be
  std::vector<char> lineage;   ///< empty: it cannot be computed again
};

/// As the CPU's, without lineages of its own.
class RegionMover final : public Mover {
 public:
  explicit RegionMover(FileStore& store) : store_(store) {}

  std::optional<Bytes> page_out(Block& block, bool clean) override {
    return of(block).region.leave(store_, !clean);
  }
  std::optional<Bytes> page_in(Block& block, bool /*ahead*/) override {
    const Bytes moved = of(block).region.come_back(store_, /*keep_copy=*/true);
    block.has_copy = of(block).region.has_copy();
    return moved;
  }
  bool drop(Block& block, Bytes /*most*/) override {
    if (of(block).lineage.empty()) return false;
    of(block).region.discard();
    return true;
  }
  bool rematerialise(Block& block, const std::function<void()>& take) override {
    take();
    of(block).region.renew();
    copy_to(of(block).region.data(), of(block).lineage);
    return true;
  }
  void drop_copy(Block& block) noexcept override { of(block).region.drop_copy(); }
  bool copy_matches(Block& block) override { return of(block).region.copy_matches(store_); }

  static RegionBlock& of(Block& block) { return static_cast<RegionBlock&>(block); }

 private:
  FileStore& store_;
};

constexpr Bytes kLargest = 5 * kPage;
constexpr Bytes kLimit = 3 * kLargest;

FileStore::Options options_for(unsigned seed) {
  // One in three has little room below. Memory does as well as a disk here, and faster.
  const Bytes limit = seed % 3 == 0 ? 2 * kLargest : kMiB;
  FileStore::Options options;
  if (::access("/dev/shm", W_OK) == 0) {
    options.limit = limit;
    options.directory = "/dev/shm";
    options.allow_memory_file_system = true;
  } else {
    options = disk_options(limit);
  }
  options.direct = seed % 2 == 0;
  options.step = 32 * kKiB;
  return options;
}

/// A program of random uses. Every call may throw; what has thrown has done nothing.
class Program {
 public:
  Program(unsigned seed, Fault fault, int at)
      : io_(std::make_shared<SweptIo>()),
        store_(options_for(seed), io_),
        mover_(store_),
        engine_({.limit = kLimit}, mover_, std::make_unique<LruPolicy>()),
        random_(seed) {
    io_->fault = fault;
    io_->at = at;
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      try {
        step();
      } catch (const Error&) {
        ++errors_;
      }
      // Up to the fault it is the plain program, which has been checked all along.
      if (io_->calls < io_->at) continue;
      ASSERT_NO_FATAL_FAILURE(check()) << "after step " << i;
    }
    io_->fault = Fault::kNone;
    finish();
  }

  [[nodiscard]] int calls() const { return io_->calls; }
  [[nodiscard]] int errors() const { return errors_; }
  [[nodiscard]] EngineStats stats() {
    EngineLock lock = engine_.lock();
    return engine_.stats(lock);
  }

 private:
  unsigned below(unsigned n) { return static_cast<unsigned>(random_()) % n; }

  void step() {
    // Whatever happens, the same numbers are drawn: the program stays the recorded one.
    const unsigned what = below(10);
    const unsigned which = below(64);
    const unsigned seed = below(1000);
    EngineLock lock = engine_.lock();
    if (what == 0 || blocks_.size() < 4) {
      if (blocks_.size() < 9) make(lock, seed);
      return;
    }
    RegionBlock& block = *blocks_[which % blocks_.size()];
    const Use use{&block, what <= 3};
    switch (what) {
      case 1:
        blocks_.erase(blocks_.begin() + which % static_cast<unsigned>(blocks_.size()));
        engine_.remove(lock, block);
        break;
      case 2:
      case 3:
        engine_.pin(lock, {&use, 1});
        block.contents = pattern(block.size, seed);
        copy_to(block.region.data(), block.contents);
        // Another computes what it holds now from something that stays.
        block.lineage = what == 2 ? block.contents : std::vector<char>();
        engine_.unpin(lock, {&use, 1});
        break;
      case 4:
        (void)engine_.evict(lock, block);
        break;
      case 5:
        (void)engine_.fetch(lock, block);
        break;
      case 6:
        (void)engine_.drop(lock, block);
        break;
      case 7:  // by a pointer that nobody knows of: wherever it is, as long as it is somewhere
        if (block.state == BlockState::kDropped) break;
        block.contents[seed % block.contents.size()] ^= 1;
        static_cast<char*>(block.region.data())[seed % block.contents.size()] ^= 1;
        block.lineage.clear();
        break;
      default:
        engine_.pin(lock, {&use, 1});
        EXPECT_TRUE(same(block.region.data(), block.contents));
        engine_.unpin(lock, {&use, 1});
        break;
    }
  }

  void make(EngineLock& lock, unsigned seed) {
    const Bytes size = kPage * (1 + seed % 5);
    if (!engine_.reserve(lock, size)) throw OutOfMemory("no room for another");
    auto& block =
        static_cast<RegionBlock&>(engine_.add(lock, std::make_unique<RegionBlock>(size, seed)));
    blocks_.push_back(&block);
    const Use use{&block, false};
    engine_.pin(lock, {&use, 1});
    engine_.unpin(lock, {&use, 1});
  }

  void check() {
    EngineLock lock = engine_.lock();
    Bytes here = 0;
    Bytes away = 0;
    Bytes dropped = 0;
    Bytes used = 0;
    for (RegionBlock* block : blocks_) {
      const BlockState state = block->state;
      (state == BlockState::kAbsent    ? away
       : state == BlockState::kDropped ? dropped
                                       : here) += block->size;
      ASSERT_TRUE(state == BlockState::kResident || is_away(state));
      ASSERT_EQ(block->pins, 0);
      ASSERT_EQ(block->region.present(), state == BlockState::kResident);
      if (state == BlockState::kAbsent || block->region.has_copy()) used += block->size;
      if (state == BlockState::kDropped) continue;
      ASSERT_TRUE(same(block->region.data(), block->contents)) << "bytes were lost";
    }
    const EngineStats stats = engine_.stats(lock);
    ASSERT_EQ(stats.device.current, here);
    ASSERT_LE(stats.device.current, kLimit);
    ASSERT_EQ(stats.below.current, away);
    ASSERT_EQ(stats.dropped.current, dropped);
    ASSERT_EQ(stats.pinned.current, 0);
    ASSERT_EQ(stats.blocks.current, static_cast<std::int64_t>(blocks_.size()));
    ASSERT_EQ(store_.stats().used, used);
  }

  /// As disable() does it, with room for all.
  void finish() {
    EngineLock lock = engine_.lock();
    engine_.set_options(lock, {.limit = kMiB});
    ASSERT_EQ(engine_.return_all(lock), 0);
    ASSERT_EQ(engine_.stats(lock).device.current, engine_.immovable(lock) + may_leave());
    engine_.drop_copies(lock, INT64_MAX);
    for (RegionBlock* block : blocks_) {
      ASSERT_EQ(block->state, BlockState::kResident);
      ASSERT_TRUE(same(block->region.data(), block->contents));
      engine_.remove(lock, *block);
    }
    blocks_.clear();
    lock.unlock();
    lock.lock();
    ASSERT_EQ(engine_.stats(lock).blocks.current, 0);
    ASSERT_EQ(engine_.stats(lock).device.current, 0);
    ASSERT_EQ(store_.stats().used, 0);
  }
  [[nodiscard]] Bytes may_leave() const {
    Bytes sum = 0;
    for (const RegionBlock* block : blocks_) sum += block->kept ? 0 : block->size;
    return sum;
  }

  std::shared_ptr<SweptIo> io_;
  FileStore store_;
  RegionMover mover_;
  Engine engine_;
  std::mt19937 random_;
  std::vector<RegionBlock*> blocks_;
  int errors_ = 0;
};

constexpr int kSteps = 100;
constexpr unsigned kSeeds = 6;  // all of options_for()

TEST(TierFaults, EveryCallOfAProgramInEveryWay) {
  EngineStats total;
  int errors = 0;
  int runs = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    Program plain(seed, Fault::kNone, 0);
    ASSERT_NO_FATAL_FAILURE(plain.run(kSteps)) << "seed " << seed;
    total.evictions += plain.stats().evictions;
    total.clean_evictions += plain.stats().clean_evictions;
    total.drops += plain.stats().drops;
    for (const Fault fault : kFaults) {
      for (int at = 1; at <= plain.calls(); ++at) {
        Program program(seed, fault, at);
        ASSERT_NO_FATAL_FAILURE(program.run(kSteps))
            << "seed " << seed << ", fault " << static_cast<int>(fault) << ", call " << at;
        const bool harmless = fault == Fault::kShort || fault == Fault::kInterrupted;
        if (harmless) {
          ASSERT_EQ(program.errors(), plain.errors())
              << "seed " << seed << ", fault " << static_cast<int>(fault) << ", call " << at;
        }
        errors += program.errors() - plain.errors();
        ++runs;
      }
    }
  }
  // The programs do what they are there for.
  EXPECT_GT(total.evictions, 10 * kSeeds);
  EXPECT_GT(total.clean_evictions, kSeeds);
  EXPECT_GT(total.drops, kSeeds);
  EXPECT_GT(errors, runs / 4);
}

}  // namespace
}  // namespace lms
