#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "tiers/file_store.h"
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

/// Bytes that differ from place to place and from seed to seed.
inline std::vector<char> pattern(Bytes n, unsigned seed) {
  std::vector<char> bytes(static_cast<std::size_t>(n));
  unsigned state = seed * 2654435761U + 1;
  for (auto& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
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
