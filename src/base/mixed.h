#pragma once

#include <cstdint>

namespace lms {

/// One step of a hash of a stream of numbers: quick, and good enough for tables and signatures that
/// are checked afterwards.
constexpr std::uint64_t mixed(std::uint64_t state, std::uint64_t value) noexcept {
  state = (state ^ value) * 0x9FB21C651E98DF25U;
  return state ^ (state >> 29U);
}

}  // namespace lms
