#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace lms {

/// A stretch of memory in circular time: taken from moment `begin` for `length` moments (one that
/// reaches the end of the period goes on at its start; one of no length needs no place).
struct Rectangle {
  std::int32_t begin = 0;
  std::int32_t length = 0;
  Bytes size = 0;
  Bytes address = 0;
};

/// Bytes taken at every moment of [0, period).
std::vector<Bytes> bytes_by_moment(const std::vector<Rectangle>& rectangles, std::int32_t period);

/// The most of them: what every packing needs.
Bytes most_at_once(const std::vector<Rectangle>& rectangles, std::int32_t period);

/// Sets addresses such that rectangles that share a moment share no byte, and returns the end of
/// the highest. Searches for `seconds` at most, less when nothing better is possible.
Bytes pack(std::vector<Rectangle>& rectangles, std::int32_t period, double seconds);

}  // namespace lms
