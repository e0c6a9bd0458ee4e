// Forks for real: what a child can read of the parent's file stays as it was while the child lives.
// Children report by exit status and touch neither GoogleTest nor the heap more than they must.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "tiers/file_store.h"
#include "tiers/fork_epochs.h"
#include "tiers/paged_region.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::copy_to;
using testing::disk_options;
using testing::pattern;
using testing::same;

/// A child that waits for finish() and then runs `body`, whose result is its exit status.
class Child {
 public:
  Child(FileStore& store, const std::function<int()>& body) : Child({&store}, {}, body) {}

  Child(const std::vector<FileStore*>& stores, const std::vector<PagedRegion*>& regions,
        const std::function<int()>& body) {
    EXPECT_EQ(::pipe(go_.data()), 0);
    for (auto* store : stores) store->on_fork_prepare();
    pid_ = ::fork();
    if (pid_ == 0) {
      for (auto* region : regions) region->isolate_in_child();
      for (auto* store : stores) store->on_fork_child();
      ::close(go_[1]);
      char byte = 0;
      while (::read(go_[0], &byte, 1) < 0 && errno == EINTR) {
      }
      ::_exit(body());
    }
    for (auto* store : stores) store->on_fork_parent();
    ::close(go_[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { finish(); }

  /// Lets the child run and waits for its end.
  int finish() {
    if (pid_ <= 0) return status_;
    // Not by closing it: later children have inherited this end.
    EXPECT_EQ(::write(go_[1], "!", 1), 1);
    ::close(go_[1]);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return status_;
  }

 private:
  std::array<int, 2> go_ = {-1, -1};
  pid_t pid_ = -1;
  int status_ = -1;
};

TEST(Fork, ExtentsInUseAreNeitherHandedOutNorOverwrittenWhileAChildLives) {
  FileStore store(disk_options(64 * kKiB));
  auto slot = store.acquire(32 * kKiB);
  const auto bytes = pattern(32 * kKiB, 1);
  store.write(slot, bytes.data(), bytes.size());
  EXPECT_TRUE(store.may_overwrite(slot));
  const Bytes offset = slot.offset();

  Child child(store, [&] {
    std::vector<char> got(bytes.size());
    store.read(slot, got.data(), got.size());
    return got == bytes ? 0 : 1;
  });
  EXPECT_FALSE(store.may_overwrite(slot));
  slot.release();
  EXPECT_EQ(store.stats().quarantined, 32 * kKiB);
  EXPECT_EQ(store.stats().used, 0);
  auto after = store.acquire(32 * kKiB);
  EXPECT_NE(after.offset(), offset);
  EXPECT_TRUE(store.may_overwrite(after));
  store.write(after, pattern(32 * kKiB, 2).data(), 32 * kKiB);
  EXPECT_THROW((void)store.acquire(4096), TierFull);

  EXPECT_EQ(child.finish(), 0);
  const auto again = store.acquire(32 * kKiB);
  EXPECT_EQ(again.offset(), offset);
  EXPECT_EQ(store.stats().quarantined, 0);
}

TEST(Fork, EveryChildThatSawAnExtentHoldsIt) {
  FileStore store(disk_options(256 * kKiB));
  auto old = store.acquire(4096);
  Child first(store, [] { return 0; });
  auto middle = store.acquire(4096);
  Child second(store, [] { return 0; });
  const auto young = store.acquire(4096);
  EXPECT_FALSE(store.may_overwrite(old));
  EXPECT_FALSE(store.may_overwrite(middle));
  EXPECT_TRUE(store.may_overwrite(young));
  old.release();
  // A fork after the release holds nothing of it.
  Child third(store, [] { return 0; });
  EXPECT_FALSE(store.may_overwrite(young));
  first.finish();
  EXPECT_EQ(store.stats().quarantined, 4096);
  EXPECT_FALSE(store.may_overwrite(middle));
  second.finish();
  store.trim();
  EXPECT_EQ(store.stats().quarantined, 0);
  EXPECT_FALSE(store.may_overwrite(middle));
  EXPECT_FALSE(store.may_overwrite(young));
  third.finish();
  EXPECT_TRUE(store.may_overwrite(middle));
  EXPECT_TRUE(store.may_overwrite(young));
}

TEST(Fork, AGrandchildCountsAsLong) {
  FileStore store(disk_options(256 * kKiB));
  const auto slot = store.acquire(4096);
  std::array<int, 2> hold = {-1, -1};
  ASSERT_EQ(::pipe(hold.data()), 0);
  Child child(store, [&] {
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      ::close(hold[1]);
      char byte = 0;
      [[maybe_unused]] const auto got = ::read(hold[0], &byte, 1);
      ::_exit(0);
    }
    return grandchild > 0 ? 0 : 1;
  });
  EXPECT_EQ(child.finish(), 0);
  EXPECT_FALSE(store.may_overwrite(slot));
  ::close(hold[1]);
  for (int i = 0; i < 5000 && !store.may_overwrite(slot); ++i) ::usleep(1000);
  EXPECT_TRUE(store.may_overwrite(slot));
  ::close(hold[0]);
}

TEST(Fork, AnExecEndsTheHold) {
  FileStore store(disk_options(256 * kKiB));
  const auto slot = store.acquire(4096);
  std::array<int, 2> hold = {-1, -1};
  ASSERT_EQ(::pipe(hold.data()), 0);
  store.on_fork_prepare();
  const pid_t pid = ::fork();
  if (pid == 0) {
    store.on_fork_child();
    ::dup2(hold[0], 0);
    ::close(hold[1]);
    ::execlp("cat", "cat", static_cast<char*>(nullptr));
    ::_exit(1);
  }
  store.on_fork_parent();
  for (int i = 0; i < 5000 && !store.may_overwrite(slot); ++i) ::usleep(1000);
  EXPECT_TRUE(store.may_overwrite(slot));
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0);  // it lives still
  ::close(hold[0]);
  ::close(hold[1]);
  ::waitpid(pid, nullptr, 0);
}

TEST(Fork, AForkThatFailedHoldsNothing) {
  FileStore store(disk_options(256 * kKiB));
  auto slot = store.acquire(4096);
  store.on_fork_prepare();
  store.on_fork_parent();
  EXPECT_TRUE(store.may_overwrite(slot));
  slot.release();
  EXPECT_EQ(store.stats().quarantined, 0);
}

TEST(Fork, WithNothingInUseNothingIsHeld) {
  FileStore store(disk_options(256 * kKiB));
  const int before = ::dup(0);
  ::close(before);
  store.on_fork_prepare();
  store.on_fork_parent();
  const int after = ::dup(0);
  ::close(after);
  EXPECT_EQ(after, before) << "a descriptor for nothing";
  Child child(store, [] { return 0; });
  auto slot = store.acquire(4096);
  slot.release();
  EXPECT_EQ(store.stats().quarantined, 0);
}

TEST(Fork, WithoutDescriptorsTheHoldNeverEnds) {
  ForkEpochs epochs;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  epochs.prepare(true);
  epochs.parent();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(epochs.count(), 1U);
  EXPECT_TRUE(epochs.any_living(0, epochs.count()));
}

TEST(Fork, TheChildsStoreOnlyReads) {
  FileStore store(disk_options(256 * kKiB));
  auto slot = store.acquire(4096);
  const auto bytes = pattern(4096, 3);
  store.write(slot, bytes.data(), bytes.size());
  auto region = PagedRegion::make(4096);
  Child child(store, [&] {
    int refused = 0;
    try {
      (void)store.acquire(4096);
    } catch (const Error&) {
      ++refused;
    }
    try {
      store.write(slot, bytes.data(), bytes.size());
    } catch (const Error&) {
      ++refused;
    }
    try {
      region.leave(store, true);
    } catch (const Error&) {
      ++refused;
    }
    std::vector<char> got(4096);
    store.read(slot, got.data(), got.size());
    slot.release();
    // What is free is for the parent alone to say.
    return refused == 3 && got == bytes && store.stats().used == 4096 ? 0 : 1;
  });
  EXPECT_EQ(child.finish(), 0);
  std::vector<char> got(4096);
  store.read(slot, got.data(), got.size());
  EXPECT_EQ(got, bytes);
}

TEST(Fork, AnotherThreadMayHoldTheLockAtTheFork) {
  FileStore store(disk_options(4 * kMiB));
  const auto kept = store.acquire(4096);
  std::atomic<bool> running = true;
  std::thread busy([&] {
    while (running) (void)store.acquire(8192);
  });
  for (int i = 0; i < 20; ++i) {
    Child child(store, [&] { return store.stats().used >= 4096 ? 0 : 1; });
    EXPECT_EQ(child.finish(), 0);
  }
  running = false;
  busy.join();
  EXPECT_EQ(store.stats().used, 4096);
}

TEST(Fork, TheChildSeesTheOldBytesWhileTheParentOverwrites) {
  FileStore store(disk_options(16 * kMiB));
  const auto old = pattern(300 * kKiB, 4);
  auto absent = PagedRegion::make(300 * kKiB);
  copy_to(absent.data(), old);
  absent.leave(store, true);
  auto copied = PagedRegion::make(300 * kKiB);
  copy_to(copied.data(), old);
  copied.leave(store, true);
  copied.come_back(store, true);

  Child child({&store}, {&absent, &copied}, [&] {
    if (!same(absent.data(), old) || !same(copied.data(), old)) return 1;
    absent.come_back(store, true);
    return same(absent.data(), old) && !absent.has_copy() ? 0 : 2;
  });

  const auto fresh = pattern(300 * kKiB, 5);
  for (int round = 0; round < 3; ++round) {
    for (auto* region : {&absent, &copied}) {
      region->come_back(store, round != 1);
      copy_to(region->data(), fresh);
      region->leave(store, true);
      EXPECT_TRUE(same(region->data(), fresh));
    }
  }
  EXPECT_EQ(store.stats().quarantined, 600 * kKiB);
  EXPECT_EQ(child.finish(), 0);
  store.trim();
  EXPECT_EQ(store.stats().quarantined, 0);
}

TEST(Fork, TheChildsWritesDoNotReachTheParent) {
  FileStore store(disk_options(16 * kMiB));
  const auto bytes = pattern(300 * kKiB, 6);
  auto region = PagedRegion::make(300 * kKiB);
  copy_to(region.data(), bytes);
  region.leave(store, true);

  Child child({&store}, {&region}, [&] {
    const auto mine = pattern(300 * kKiB, 7);
    copy_to(region.data(), mine);
    if (!same(region.data(), mine)) return 1;
    region.come_back(store, false);
    return same(region.data(), mine) ? 0 : 2;
  });
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(same(region.data(), bytes));
  region.come_back(store, false);
  EXPECT_TRUE(same(region.data(), bytes));
}

}  // namespace
}  // namespace lms
