#pragma once

#include <string>

#include "base/bytes.h"
#include "plan/timing/link.h"

namespace lms::tool {

/// "%.1f" and the like of one value.
std::string format(const char* pattern, double value);
/// "9.87 ms", "98.7 ms", "987 ms".
std::string format_ms(double ms);
/// "12.3 %" of 0.123.
std::string percent(double ratio);
/// With spaces after it, or before it, up to a width.
std::string padded(std::string text, std::size_t width);
std::string right(const std::string& text, std::size_t width);
std::string link_text(const LinkModel& link);

/// 0 of nothing.
double ratio(double part, double whole);
double ratio(Bytes part, Bytes whole);

/// Lines of a label and what is to be said about it.
class Lines {
 public:
  void add(const std::string& label, const std::string& text);
  void add(const std::string& line);
  [[nodiscard]] std::string text() &&;

 private:
  std::string text_;
};

}  // namespace lms::tool
