#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "tiers/digest.h"
#include "tiers_test_support.h"

namespace lms {
namespace {

using testing::pattern;

Digest of(const std::vector<char>& bytes) { return digest_of(bytes.data(), bytes.size()); }

TEST(Digest, EveryBitCounts) {
  for (const Bytes n : {1, 7, 8, 9, 63, 64, 2047, 2048, 2049, 5000}) {
    auto bytes = pattern(n, 1);
    std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
    const auto note = [&] {
      const Digest digest = of(bytes);
      EXPECT_EQ(of(bytes), digest);
      seen.emplace(digest.low, digest.high);
    };
    note();
    for (auto& byte : bytes) {
      for (int bit = 0; bit < 8; ++bit) {
        byte = static_cast<char>(byte ^ (1 << bit));
        note();
        byte = static_cast<char>(byte ^ (1 << bit));
      }
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(n) * 8 + 1) << n;
  }
}

TEST(Digest, DoesNotDependOnWhereTheBytesLie) {
  const auto bytes = pattern(5000, 2);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    std::vector<char> elsewhere(bytes.size() + shift);
    std::memcpy(elsewhere.data() + shift, bytes.data(), bytes.size());
    EXPECT_EQ(digest_of(elsewhere.data() + shift, bytes.size()), of(bytes));
  }
}

TEST(Digest, ZerosOfEveryLengthDiffer) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  const std::vector<char> zeros(9000, 0);
  for (std::size_t n = 0; n <= zeros.size(); ++n) {
    const Digest digest = digest_of(zeros.data(), n);
    seen.emplace(digest.low, digest.high);
  }
  EXPECT_EQ(seen.size(), zeros.size() + 1);
}

RC_GTEST_PROP(DigestProperty, WhereAndWhatBothCount, ()) {
  // Words that change places, or whose sums stay: what simple checksums overlook.
  auto words = *rc::gen::container<std::vector<std::uint64_t>>(
      *rc::gen::inRange<std::size_t>(2, 1500), rc::gen::element<std::uint64_t>(0, 1, ~0ULL, 5));
  const auto before = words;
  const auto digest = digest_of(words.data(), words.size() * sizeof(words[0]));
  const auto a = *rc::gen::inRange<std::size_t>(0, words.size());
  const auto b = *rc::gen::inRange<std::size_t>(0, words.size());
  if (*rc::gen::arbitrary<bool>()) {
    std::swap(words[a], words[b]);
  } else {
    ++words[a];
    --words[b];
  }
  RC_ASSERT((words == before) ==
            (digest_of(words.data(), words.size() * sizeof(words[0])) == digest));
}

}  // namespace
}  // namespace lms
