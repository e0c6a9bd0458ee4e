#include "lab/train/csv_file.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace lms::train {
namespace {

std::string csv_line(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ",") + value;
  return text;
}

}  // namespace

CsvFile::CsvFile(const std::string& path, const std::vector<std::string>& columns,
                 std::int64_t last_step)
    : path_(path) {
  std::vector<std::string> kept;
  {
    std::ifstream old(path);
    std::string line;
    if (std::getline(old, line) && line == csv_line(columns)) {
      while (std::getline(old, line) && !old.eof()) {  // a last line without its end is a torn one
        std::int64_t step = 0;
        const auto result = std::from_chars(line.data(), line.data() + line.size(), step);
        if (result.ec == std::errc() && step <= last_step) kept.push_back(line);
      }
    }
  }
  const std::string part = path + ".part";
  file_.reset(std::fopen(part.c_str(), "w"));
  if (!file_) throw Error(path + ": cannot be written: " + std::strerror(errno));
  std::fprintf(file_.get(), "%s\n", csv_line(columns).c_str());
  for (const std::string& line : kept) std::fprintf(file_.get(), "%s\n", line.c_str());
  flush();
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    throw Error(path + ": cannot be replaced: " + std::strerror(errno));
  }
}

void CsvFile::row(std::int64_t step, const std::vector<std::string>& values) {
  std::fprintf(file_.get(), "%lld,%s\n", static_cast<long long>(step), csv_line(values).c_str());
}

void CsvFile::flush() {
  if (std::fflush(file_.get()) != 0 || std::ferror(file_.get()) != 0) {
    throw Error(path_ + ": cannot be written: " + std::strerror(errno));
  }
}

std::string number_text(double value) {
  std::array<char, 40> text = {};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

std::string hex_text(double value) {
  std::array<char, 40> text = {};
  std::snprintf(text.data(), text.size(), "%a", value);
  return text.data();
}

}  // namespace lms::train
