#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "tiers/file_store.h"
#include "tiers/host_arena.h"
#include "tiers/paged_region.h"

namespace lms::testing {

/// Options for a store on a real disk, where this machine has one: LMS_TEST_DIRECTORY, the test
/// directory, or /var/tmp, whichever is not kept in memory; else in memory.
inline FileStore::Options disk_options(Bytes limit) {
  FileStore::Options options;
  options.limit = limit;
  options.step = 64 * kKiB;
  const char* wish = std::getenv("LMS_TEST_DIRECTORY");
  for (const std::string& directory :
       {std::string(wish != nullptr ? wish : ""), ::testing::TempDir(), std::string("/var/tmp")}) {
    if (directory.empty()) continue;
    options.directory = directory;
    try {
      const FileStore probe(options);
      return options;
    } catch (const BadSetting&) {
      continue;
    }
  }
  options.allow_memory_file_system = true;
  return options;
}

inline HostArena::Options arena_options(Bytes limit, Bytes step) {
  HostArena::Options options;
  options.limit = limit;
  options.step = step;
  return options;
}

/// Bytes that differ from place to place and from seed to seed.
inline std::vector<char> pattern(Bytes n, unsigned seed) {
  // By words: sanitizers look at every store.
  std::vector<std::uint64_t> words(static_cast<std::size_t>(n) / sizeof(std::uint64_t) + 1);
  std::uint64_t state = seed * 2654435761U + 1;
  for (auto& word : words) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    word = state ^ state >> 32;
  }
  const auto* const begin = reinterpret_cast<const char*>(words.data());
  return {begin, begin + n};
}

inline void copy_to(void* memory, const std::vector<char>& bytes) {
  if (!bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
}

inline PagedRegion filled(const std::vector<char>& bytes) {
  auto region = PagedRegion::make(static_cast<Bytes>(bytes.size()));
  copy_to(region.data(), bytes);
  return region;
}

inline bool same(const void* memory, const std::vector<char>& expected) {
  return expected.empty() || std::memcmp(memory, expected.data(), expected.size()) == 0;
}

/// The message of the E that `action` throws; a failed expectation and "" when it throws none.
template <typename E, typename Action>
std::string message_of(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Knows what is pinned; can be told to fail.
class RecordingPinning : public HostPinning {
 public:
  void pin(void* p, std::size_t n) override {
    const std::lock_guard lock(mutex_);
    if (fail) throw Error("no more pinning");
    ranges_.emplace(static_cast<char*>(p), n);
    ++pins;
  }
  void unpin(void* p, std::size_t n) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto it = ranges_.find(static_cast<char*>(p));
    if (it == ranges_.end() || it->second != n) {
      ++wrong;
      return;
    }
    ranges_.erase(it);
  }
  bool holds(const void* p, Bytes n) {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, size] : ranges_) {
      const char* q = static_cast<const char*>(p);
      if (q >= begin && q + n <= begin + size) return true;
    }
    return false;
  }
  std::size_t ranges() {
    const std::lock_guard lock(mutex_);
    return ranges_.size();
  }

  std::atomic<bool> fail = false;
  std::atomic<int> pins = 0;
  std::atomic<int> wrong = 0;

 private:
  std::mutex mutex_;
  std::map<char*, std::size_t> ranges_;
};

class ManualFence : public Fence {
 public:
  bool done() override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    ++waits;
    changed_.wait(lock, [this] { return done_; });
  }
  void signal() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  std::atomic<int> waits = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

}  // namespace lms::testing
