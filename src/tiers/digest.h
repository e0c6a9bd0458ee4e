#pragma once

#include <cstddef>
#include <cstdint>

namespace lms {

/// 127 bits by which two contents of one memory are told apart.
///
/// Keyed at random once a process. For any two different contents of one length, whatever they are,
/// the odds that they get the same digest are below 2^-60, so long as they were not chosen by
/// somebody who knows the key. Digests mean nothing outside the process and its forks.
struct Digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

/// The digest of `n` bytes. Reads each once, in order: as fast as memory, or nearly. Thread-safe.
/// Throws Error if the system has no random numbers for the key.
[[nodiscard]] Digest digest_of(const void* data, std::size_t n);

}  // namespace lms
