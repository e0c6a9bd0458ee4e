#include "base/bytes.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace lms {

std::string format_bytes(Bytes bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (std::llabs(bytes) < kKiB) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while ((value >= 999.5 || value <= -999.5) && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  const double magnitude = value < 0 ? -value : value;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", magnitude < 10 ? 2 : (magnitude < 100 ? 1 : 0),
                value, kUnits.at(unit));
  return text.data();
}

}  // namespace lms
