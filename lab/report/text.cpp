#include "lab/report/text.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>

namespace lms::report {
namespace {

constexpr std::string_view kMinus = "\u2212";
constexpr std::string_view kNarrowSpace = "\u202f";
constexpr std::string_view kDash = "\u2013";
constexpr char32_t kReplacement = 0xfffd;

/// The code point that begins at `at`, which moves past it; what is no UTF-8 is U+FFFD, one byte of
/// it at a time.
char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at++);
  if (first < 0x80) return first;
  std::size_t more = 0;
  char32_t code = 0;
  char32_t least = 0;
  if (first >= 0xc2 && first < 0xe0) {
    more = 1, code = first & 0x1fU, least = 0x80;
  } else if (first >= 0xe0 && first < 0xf0) {
    more = 2, code = first & 0x0fU, least = 0x800;
  } else if (first >= 0xf0 && first < 0xf5) {
    more = 3, code = first & 0x07U, least = 0x10000;
  } else {
    return kReplacement;
  }
  if (at + more > text.size()) return kReplacement;
  for (std::size_t i = 0; i < more; ++i) {
    if ((byte(at + i) & 0xc0U) != 0x80U) return kReplacement;
    code = (code << 6U) | (byte(at + i) & 0x3fU);
  }
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool forbidden = (code & 0xfffeU) == 0xfffeU;  // XML has no such characters
  if (code < least || code > 0x10ffff || surrogate || forbidden) return kReplacement;
  at += more;
  return code;
}

void append(std::string& out, char32_t code) {
  const auto put = [&](char32_t bits) { out += static_cast<char>(bits); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0U | (code >> 6U)), put(0x80U | (code & 0x3fU));
  } else if (code < 0x10000) {
    put(0xe0U | (code >> 12U)), put(0x80U | ((code >> 6U) & 0x3fU)), put(0x80U | (code & 0x3fU));
  } else {
    put(0xf0U | (code >> 18U)), put(0x80U | ((code >> 12U) & 0x3fU));
    put(0x80U | ((code >> 6U) & 0x3fU)), put(0x80U | (code & 0x3fU));
  }
}

bool is_control(char32_t code) {
  // Marks of direction would let a string rewrite the line that it stands in.
  const bool direction = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || direction;
}

/// Of DejaVu Sans, which is among the widest that a page may be shown in.
double width_of(char32_t code) {
  constexpr std::string_view kSlim = "ijl.,:;|'! ()[]ft";
  constexpr std::string_view kBroad = "mwMW@%";
  if (code < 0x80) {
    const char letter = static_cast<char>(code);
    if (kSlim.find(letter) != std::string_view::npos) return 0.37;
    if (kBroad.find(letter) != std::string_view::npos) return 0.98;
    if (letter >= 'A' && letter <= 'Z') return 0.73;
    return 0.64;
  }
  if (code == 0x202f || code == 0xa0 || code == 0xb2 || code == 0xb3) return 0.42;
  if (code == 0xd7 || code == 0x2212) return 0.84;
  return code >= 0x1100 && code < 0xfb00 && code >= 0x2e80 ? 1.05 : 0.9;
}

std::string printed(const char* pattern, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, value);
  return text.data();
}

void trim_zeros(std::string& text) {
  if (text.find('.') == std::string::npos) return;
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
}

/// Of a value that is not negative.
std::string digits(double value) {
  if (value >= 1e15) return printed("%.3g", value);
  if (value < 1e-12) return "0";
  // The exponent after rounding decides: 9.996 is 10.0.
  const auto exponent = static_cast<int>(std::floor(std::log10(value) + 1e-12));
  const double unit = std::pow(10.0, exponent - 2);
  const double rounded = exponent >= 3 ? std::round(value) : std::round(value / unit) * unit;
  if (rounded < 1e-6) return printed("%.2g", value);
  const int decimals = exponent >= 2 ? 0 : 2 - exponent;
  std::string text(64, '\0');
  text.resize(
      static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.*f", decimals, rounded)));
  trim_zeros(text);
  const std::size_t point = std::min(text.find('.'), text.size());
  for (std::size_t at = point; at > 3;) {
    at -= 3;
    // Four digits are read as one.
    if (point > 4) text.insert(at, kNarrowSpace);
  }
  return text;
}

struct Unit {
  double size;
  std::string_view name;
};

template <std::size_t Count>
std::string in_units(double value, const std::array<Unit, Count>& units) {
  if (!std::isfinite(value)) return std::string(kDash);
  const double size = std::fabs(value);
  const Unit* unit = units.data();
  // 999.7 MB is 1 GB.
  for (const Unit& larger : units) {
    if (size >= 0.9995 * larger.size) unit = &larger;
  }
  return format_number(value / unit->size) + "\u00a0" + std::string(unit->name);
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    switch (code) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        append(out, is_control(code) ? U' ' : code);
    }
  }
  return out;
}

std::string coordinate(double value) {
  if (!std::isfinite(value)) return "0";
  std::string text = printed("%.2f", value);
  trim_zeros(text);
  return text == "-0" ? "0" : text;
}

std::string format_number(double value) {
  if (!std::isfinite(value)) return std::string(kDash);
  const std::string text = digits(std::fabs(value));
  return value < 0 && text != "0" ? std::string(kMinus) + text : text;
}

std::string format_factor(double value) {
  return std::isfinite(value) ? format_number(value) + "×" : std::string(kDash);
}

std::string format_share(double fraction) {
  if (!std::isfinite(fraction)) return std::string(kDash);
  const double percent = 100 * fraction;
  const double size = std::fabs(percent);
  if (size > 0 && size < 0.05) return "<0.1\u00a0%";
  return format_number(size < 99.95 ? std::round(percent * 10) / 10 : std::round(percent)) +
         "\u00a0%";
}

std::string format_change(double fraction) {
  if (fraction != 0 && std::fabs(fraction) < 0.0005) return "±0\u00a0%";
  const std::string text = format_share(fraction);
  return std::isfinite(fraction) && fraction > 0 ? "+" + text : text;
}

std::string format_traffic(double bytes) {
  return in_units(
      bytes, std::array<Unit, 5>{{{1, "B"}, {1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}}});
}

std::string format_memory(double bytes) {
  return in_units(bytes, std::array<Unit, 5>{{{1, "B"},
                                              {1024.0, "KiB"},
                                              {1048576.0, "MiB"},
                                              {1073741824.0, "GiB"},
                                              {1099511627776.0, "TiB"}}});
}

std::string format_link(double bytes_per_second) {
  return std::isfinite(bytes_per_second) ? format_traffic(bytes_per_second) + "/s"
                                         : std::string(kDash);
}

std::string format_seconds(double seconds) {
  return in_units(seconds, std::array<Unit, 3>{{{1e-6, "µs"}, {1e-3, "ms"}, {1, "s"}}});
}

double text_width(std::string_view text, double size) {
  double width = 0;
  for (std::size_t at = 0; at < text.size();) width += width_of(next_code_point(text, at));
  return width * size;
}

std::string shorten(std::string_view text, double size, double width) {
  if (text_width(text, size) <= width) return std::string(text);
  double left = width - text_width("…", size);
  std::size_t kept = 0;
  for (std::size_t at = 0; at < text.size();) {
    left -= width_of(next_code_point(text, at)) * size;
    if (left < 0) break;
    kept = at;
  }
  while (kept > 0 && text[kept - 1] == ' ') --kept;
  return std::string(text.substr(0, kept)) + "…";
}

}  // namespace lms::report
