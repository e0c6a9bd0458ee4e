// VHASH, as T. Krovetz and W. Dai have published it (VMAC, 2007), but for its last step, which is
// for shorter digests. Contents are cut into chunks; each becomes a number by NH, whose odds of a
// collision are 2^-62, and these numbers are the coefficients of a polynomial modulo the prime
// 2^127 - 1, whose odds are the number of chunks in 2^127.

#include "tiers/digest.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace lms {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::size_t kWords = 256;  // a chunk; with the key in the first-level cache
constexpr std::size_t kChunk = kWords * sizeof(std::uint64_t);
constexpr Wide kPrime = (Wide{1} << 127) - 1;
constexpr Wide kCoefficient = (Wide{1} << 126) - 1;

struct Key {
  std::array<std::uint64_t, kWords> words{};
  Wide point = 0;  // at which the polynomials are evaluated

  Key() {
    fill(words.data(), sizeof words);
    fill(&point, sizeof point);
    point &= kPrime;
  }

  static void fill(void* data, std::size_t n) {
    constexpr std::size_t kMost = 256;  // of one call
    for (std::size_t at = 0; at < n; at += kMost) {
      if (::getentropy(static_cast<char*>(data) + at, n - at < kMost ? n - at : kMost) != 0) {
        throw Error(std::string("digest: no random key: ") + std::strerror(errno));
      }
    }
  }
};

std::uint64_t low_of(Wide wide) { return static_cast<std::uint64_t>(wide); }
std::uint64_t high_of(Wide wide) { return static_cast<std::uint64_t>(wide >> 64); }

std::uint64_t word_at(const char* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

Wide nh(const char* chunk, const Key& key) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  Wide even = 0;
  Wide odd = 0;
  for (std::size_t i = 0; i < kWords; i += 4) {
    const char* at = chunk + i * kWord;
    const auto sum = [&](std::size_t j) { return word_at(at + j * kWord) + key.words[i + j]; };
    even += Wide{sum(0)} * sum(1);
    odd += Wide{sum(2)} * sum(3);
  }
  return (even + odd) & kCoefficient;
}

/// At most 2^127 - 1, which stands for 0 as well.
Wide fold(Wide x) {
  x = (x & kPrime) + (x >> 127);
  return (x & kPrime) + (x >> 127);
}

/// a * b modulo the prime; both at most 2^127 - 1.
Wide times(Wide a, Wide b) {
  const Wide low = Wide{low_of(a)} * low_of(b);
  const Wide cross = Wide{low_of(a)} * high_of(b);
  const Wide other = Wide{high_of(a)} * low_of(b);
  const Wide middle = Wide{high_of(low)} + low_of(cross) + low_of(other);
  const Wide high =
      Wide{high_of(a)} * high_of(b) + high_of(cross) + high_of(other) + high_of(middle);
  const Wide rest = (Wide{low_of(middle)} << 64) | low_of(low);
  // 2^128 is 2 modulo the prime.
  return fold(fold(rest) + 2 * high);
}

}  // namespace

Digest digest_of(const void* data, std::size_t n) {
  static const Key key;
  const auto* at = static_cast<const char*>(data);
  Wide sum = n & kCoefficient;
  const auto add = [&](const char* chunk) { sum = fold(times(sum, key.point) + nh(chunk, key)); };
  std::size_t left = n;
  for (; left >= kChunk; left -= kChunk, at += kChunk) add(at);
  if (left > 0) {
    std::array<char, kChunk> last{};
    std::memcpy(last.data(), at, left);
    add(last.data());
  }
  if (sum == kPrime) sum = 0;
  return {low_of(sum), high_of(sum)};
}

}  // namespace lms
