#pragma once

#include <cstdint>

namespace lms {

/// A quantity that rises and falls, with the shape of PyTorch's memory statistics: what it is now,
/// the most it has been since the last reset, and the sums of all rises and of all falls.
/// Not thread-safe: its owner guards it.
struct Counter {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;
  std::int64_t freed = 0;

  void add(std::int64_t amount) noexcept {
    current += amount;
    allocated += amount;
    if (current > peak) peak = current;
  }
  void sub(std::int64_t amount) noexcept {
    current -= amount;
    freed += amount;
  }
  void reset_peak() noexcept { peak = current; }
};

}  // namespace lms
