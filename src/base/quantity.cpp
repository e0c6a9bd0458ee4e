#include "base/quantity.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"

namespace lms {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 14> kUnits = {{{"", 1},
                                                                         {"B", 1},
                                                                         {"KiB", 1024.0},
                                                                         {"MiB", 1048576.0},
                                                                         {"GiB", 1073741824.0},
                                                                         {"TiB", 1099511627776.0},
                                                                         {"K", 1024.0},
                                                                         {"M", 1048576.0},
                                                                         {"G", 1073741824.0},
                                                                         {"T", 1099511627776.0},
                                                                         {"kB", 1e3},
                                                                         {"MB", 1e6},
                                                                         {"GB", 1e9},
                                                                         {"TB", 1e12}}};

constexpr double kMost = 1e18;  ///< sums and multiples of what is accepted are still Bytes

[[noreturn]] void refuse(std::string_view text) {
  throw BadSetting("'" + std::string(text) +
                   R"(' is no amount of memory; write "12GiB", "800MB", "50%" or bytes)");
}

}  // namespace

Bytes parse_limit(std::string_view text, Bytes whole) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) refuse(text);
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double factor = 0;
  if (unit == "%" && whole > 0) factor = static_cast<double>(whole) / 100;
  for (const auto& [name, bytes] : kUnits) {
    if (unit == name) factor = bytes;
  }
  const double bytes = value * factor;
  if (!(bytes >= 1) || bytes > kMost) refuse(text);
  return static_cast<Bytes>(bytes);
}

Bytes parse_bytes(std::string_view text) { return parse_limit(text, 0); }

}  // namespace lms
