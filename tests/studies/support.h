#pragma once

#include <ftw.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "lab/records/files.h"

namespace lms::studies::test {

using records::read_json;
using records::read_record;
using records::write_json;

/// A folder for a test, which goes with it.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "lms-studies-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  // Not std::filesystem::remove_all: PyTorch's libraries export one of another libstdc++.
  ~Folder() {
    ::nftw(
        path_.c_str(),
        [](const char* each, const struct stat*, int, struct FTW*) { return std::remove(each); },
        16, FTW_DEPTH | FTW_PHYS);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

inline std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline constexpr const char* kRecipe = R"(
study = "T1"
title = "A test"
model = "resnet50"
classes = 15
cap = "100kB"

[training]
lr = 0.5

[[series]]
name = "resolution"
over = "side"
batch = 1
start = 600
step = 100

[[series.tries]]
method = "plain"
search = true
priority = 1

[[series.tries]]
method = "lms"
multiples = [4, 9]
priority = 1
steps = 3

[[series]]
name = "batch"
over = "batch"
base = 1
side_of = "resolution"
side_factor = 0.5

[[series.tries]]
method = "lms"
multiples = [2]
link = "pcie3"
)";

}  // namespace lms::studies::test
