#pragma once

// Reading the options of a DataSpec. For the sources of this folder.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/datasets/open.h"

namespace lms::data {

/// Values with their defaults; DataError, naming spec, option and what would do, for a bad one.
class Options {
 public:
  explicit Options(const DataSpec& spec) : spec_(spec) {}

  [[nodiscard]] bool has(const std::string& name) const;
  [[nodiscard]] std::string text(const std::string& name, const std::string& otherwise) const;
  /// One of `words`, the first by default.
  [[nodiscard]] std::string word(const std::string& name,
                                 const std::vector<std::string>& words) const;
  [[nodiscard]] std::int64_t integer(const std::string& name, std::int64_t otherwise,
                                     std::int64_t least, std::int64_t most) const;
  [[nodiscard]] double number(const std::string& name, double otherwise, double least,
                              double most) const;
  [[nodiscard]] bool flag(const std::string& name, bool otherwise) const;
  /// Separated by commas.
  [[nodiscard]] std::vector<std::string> list(const std::string& name,
                                              const std::string& otherwise) const;
  /// Bytes, such as 4GiB.
  [[nodiscard]] std::size_t bytes(const std::string& name, std::size_t otherwise) const;
  /// `count` lengths, or one for all: 512x1024, or 512.
  [[nodiscard]] std::vector<std::int64_t> sides(const std::string& name,
                                                const std::string& otherwise,
                                                std::size_t count) const;

  [[noreturn]] void refuse(const std::string& name, const std::string& expected) const;

 private:
  const DataSpec& spec_;
};

}  // namespace lms::data
