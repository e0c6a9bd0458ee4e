#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
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

}  // namespace lms::testing
