#include "lab/datasets/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lab/datasets/files.h"

namespace lms::data {
namespace {

std::vector<std::string> split_at(const std::string& text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

template <typename T>
bool parse(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

}  // namespace

void Options::refuse(const std::string& name, const std::string& expected) const {
  fail(spec_.text(), "option " + name + ": \"" + text(name, "") + "\" is not " + expected);
}

bool Options::has(const std::string& name) const { return spec_.options.contains(name); }

std::string Options::text(const std::string& name, const std::string& otherwise) const {
  const auto found = spec_.options.find(name);
  return found == spec_.options.end() ? otherwise : found->second;
}

std::string Options::word(const std::string& name, const std::vector<std::string>& words) const {
  std::string value = text(name, words.front());
  if (std::find(words.begin(), words.end(), value) == words.end()) {
    std::string expected = "one of";
    for (const std::string& word : words) expected += " " + word;
    refuse(name, expected);
  }
  return value;
}

std::int64_t Options::integer(const std::string& name, std::int64_t otherwise, std::int64_t least,
                              std::int64_t most) const {
  if (!has(name)) return otherwise;
  std::int64_t value = 0;
  if (!parse(text(name, ""), value) || value < least || value > most) {
    refuse(name, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

double Options::number(const std::string& name, double otherwise, double least, double most) const {
  if (!has(name)) return otherwise;
  double value = 0;
  if (!parse(text(name, ""), value) || !(value >= least && value <= most)) {
    refuse(name, "a number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

bool Options::flag(const std::string& name, bool otherwise) const {
  if (!has(name)) return otherwise;
  return word(name, {"0", "1"}) == "1";
}

std::vector<std::string> Options::list(const std::string& name,
                                       const std::string& otherwise) const {
  std::vector<std::string> parts = split_at(text(name, otherwise), ',');
  if (std::find(parts.begin(), parts.end(), "") != parts.end()) {
    refuse(name, "a list with commas between its entries");
  }
  return parts;
}

std::size_t Options::bytes(const std::string& name, std::size_t otherwise) const {
  if (!has(name)) return otherwise;
  std::string value = text(name, "");
  double factor = 1;
  for (const auto& [unit, size] :
       {std::pair{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}}) {
    if (!value.ends_with(unit)) continue;
    value.resize(value.size() - 3);
    factor = size;
    break;
  }
  double number = 0;
  if (!parse(value, number) || !(number >= 0) || number * factor > 0x1p50) {
    refuse(name, "an amount of bytes, such as 4GiB");
  }
  return static_cast<std::size_t>(number * factor);
}

std::vector<std::int64_t> Options::sides(const std::string& name, const std::string& otherwise,
                                         std::size_t count) const {
  std::vector<std::int64_t> sides;
  for (const std::string& part : split_at(text(name, otherwise), 'x')) {
    std::int64_t side = 0;
    if (!parse(part, side) || side < 1 || side > (1 << 20)) sides.clear();
    sides.push_back(side);
  }
  if (sides.size() == 1) sides.resize(count, sides[0]);
  if (sides.size() != count || *std::min_element(sides.begin(), sides.end()) < 1) {
    refuse(name, std::to_string(count) + " lengths with x between them, or one for all");
  }
  return sides;
}

}  // namespace lms::data
