#include "base/text_file.h"

#include <array>
#include <cstdio>
#include <memory>

namespace lms {

// C's files, not streams: this code is loaded into processes that may hold another libstdc++, whose
// locales and ours would be mixed.
std::optional<std::string> read_text_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             &std::fclose);
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> piece;
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), file.get())) {
    text.append(piece.data(), n);
  }
  return text;
}

}  // namespace lms
