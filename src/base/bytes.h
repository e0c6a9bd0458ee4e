#pragma once

#include <cstdint>
#include <string>

namespace lms {

/// A number of bytes. Signed, so that differences are safe.
using Bytes = std::int64_t;

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

/// "1.50 GiB", "12.0 MiB", "17 B": for messages; three significant digits.
std::string format_bytes(Bytes bytes);
/// Likewise of `bytes` >= 0, but never less than they are: who copies it has enough.
std::string format_bytes_up(Bytes bytes);

/// `bytes` rounded up to a multiple of `unit` (`unit` > 0, `bytes` >= 0).
constexpr Bytes round_up(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

/// `bytes` rounded down to a multiple of `unit` (`unit` > 0, `bytes` >= 0).
constexpr Bytes round_down(Bytes bytes, Bytes unit) { return bytes / unit * unit; }

}  // namespace lms
