#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace lms::train {

/// Rows of text, the first column a step. Not thread-safe; throws lms::Error where the file cannot
/// be written.
class CsvFile {
 public:
  /// Goes on with the file if it has the same columns: rows of steps beyond `last_step` are left
  /// out, for they will be made again. Else starts anew.
  CsvFile(const std::string& path, const std::vector<std::string>& columns, std::int64_t last_step);

  void row(std::int64_t step, const std::vector<std::string>& values);
  void flush();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Shortest text that reads back as the same number.
std::string number_text(double value);
/// C99's hexadecimal notation, for comparing bits.
std::string hex_text(double value);

}  // namespace lms::train
