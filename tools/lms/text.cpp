#include "tools/lms/text.h"

#include <array>
#include <cstdio>
#include <utility>

namespace lms::tool {
namespace {

constexpr double kGigabytesPerSecond = 1e-6;  ///< of bytes per millisecond
constexpr std::size_t kLabel = 22;

}  // namespace

std::string format(const char* pattern, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, value);
  return text.data();
}

std::string format_ms(double ms) {
  return format(ms < 10 ? "%.2f ms" : ms < 1000 ? "%.1f ms" : "%.0f ms", ms);
}

std::string percent(double ratio) { return format("%.1f %%", 100 * ratio); }

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string right(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }
double ratio(Bytes part, Bytes whole) {
  return ratio(static_cast<double>(part), static_cast<double>(whole));
}

std::string link_text(const LinkModel& link) {
  return "out " + format("%.3g", link.out_bytes_per_ms * kGigabytesPerSecond) + " GB/s, in " +
         format("%.3g", link.in_bytes_per_ms * kGigabytesPerSecond) + " GB/s, both at once " +
         format("%.3g", link.both_bytes_per_ms * kGigabytesPerSecond) + " GB/s each way";
}

void Lines::add(const std::string& label, const std::string& text) {
  text_ += "  " + padded(label, kLabel) + text + '\n';
}
void Lines::add(const std::string& line) { text_ += line + '\n'; }
std::string Lines::text() && { return std::move(text_); }

}  // namespace lms::tool
