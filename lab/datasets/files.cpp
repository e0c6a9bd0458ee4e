#include "lab/datasets/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

namespace lms::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostList = std::size_t{64} << 20;

std::vector<std::string> names_in(const std::string& folder, bool folders) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator at(folder, error);
  if (error) fail(folder, "the folder cannot be read: " + error.message());
  for (; at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.') || at->is_directory(ignored) != folders) continue;
    names.push_back(name);
  }
  if (error) fail(folder, "the folder cannot be read: " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

void fail(const std::string& where, const std::string& what) {
  throw DataError(where + ": " + what);
}

std::vector<std::uint8_t> read_bytes(const std::string& path, std::size_t most) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) fail(path, "is no file: " + error.message());
  if (size > most) {
    fail(path,
         "has " + std::to_string(size) + " bytes; at most " + std::to_string(most) + " are read");
  }
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
    fail(path, "could not be read to its end");
  }
  return bytes;
}

std::vector<Line> split_lines(ByteView text) {
  std::string_view rest(reinterpret_cast<const char*>(text.data()), text.size());
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  std::vector<Line> lines;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    constexpr std::string_view kSpaces = " \t\r";
    const std::size_t first = line.find_first_not_of(kSpaces);
    if (first == std::string_view::npos) continue;
    line = line.substr(first, line.find_last_not_of(kSpaces) - first + 1);
    lines.push_back({number, std::string(line)});
  }
  return lines;
}

std::vector<Line> read_lines(const std::string& path) {
  return split_lines(read_bytes(path, kMostList));
}

void write_bytes(const std::string& path, ByteView bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) fail(path, "could not be written");
}

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::vector<std::string> files_in(const std::string& folder) { return names_in(folder, false); }
std::vector<std::string> folders_in(const std::string& folder) { return names_in(folder, true); }

std::string inside(const std::string& folder, const std::string& name, const std::string& where) {
  const auto refuse = [&](const char* why) {
    fail(where, "the file name \"" + name.substr(0, 200) + "\" " + why +
                    "; it is to be relative, inside of " + folder);
  };
  if (name.empty()) refuse("is empty");
  if (name.find('\0') != std::string::npos) refuse("holds a zero byte");
  const fs::path path(name);
  if (path.is_absolute()) refuse("is absolute");
  if (std::find(path.begin(), path.end(), "..") != path.end()) refuse("leaves the folder");
  return folder + "/" + name;
}

std::string without_extension(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot == 0 || (slash != std::string::npos && dot <= slash + 1)) {
    return name;
  }
  return name.substr(0, dot);
}

}  // namespace lms::data
