#include "base/bytes.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace lms {

namespace {

/// An amount as it is written.
struct Written {
  double value;
  const char* unit;
  int digits;  ///< after the point
};

Written written(Bytes bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (std::llabs(bytes) < kKiB) return {static_cast<double>(bytes), kUnits[0], 0};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while ((value >= 999.5 || value <= -999.5) && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  const double magnitude = value < 0 ? -value : value;
  return {value, kUnits.at(unit), magnitude < 10 ? 2 : (magnitude < 100 ? 1 : 0)};
}

std::string text_of(const Written& amount) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", amount.digits, amount.value, amount.unit);
  return text.data();
}

}  // namespace

std::string format_bytes(Bytes bytes) { return text_of(written(bytes)); }

std::string format_bytes_up(Bytes bytes) {
  Written amount = written(bytes);
  const double scale = std::pow(10.0, amount.digits);
  amount.value = std::ceil(amount.value * scale) / scale;
  return text_of(amount);
}

}  // namespace lms
