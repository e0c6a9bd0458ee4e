#include "trace/gz_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace lms {
namespace {

/// What went wrong, from zlib or, where it has nothing to say, from the system.
std::string reason(gzFile file) {
  int code = Z_OK;
  const char* text = gzerror(file, &code);
  if (code == Z_ERRNO || text == nullptr || *text == '\0') return std::strerror(errno);
  return text;
}

class GzFile {
 public:
  GzFile(const std::string& path, const char* mode) : file_(gzopen(path.c_str(), mode)) {}
  ~GzFile() {
    if (file_ != nullptr) gzclose(file_);
  }
  GzFile(const GzFile&) = delete;
  GzFile& operator=(const GzFile&) = delete;
  GzFile(GzFile&&) = delete;
  GzFile& operator=(GzFile&&) = delete;

  [[nodiscard]] gzFile get() const { return file_; }
  int close() {
    const gzFile file = file_;
    file_ = nullptr;
    return gzclose(file);
  }

 private:
  gzFile file_;
};

}  // namespace

std::string read_gz_file(const std::string& path) {
  GzFile file(path, "rb");
  if (file.get() == nullptr) {
    throw Error("cannot open " + path + ": " + std::strerror(errno));
  }
  std::string text;
  std::array<char, std::size_t{1} << 16U> piece;
  int n = 0;
  while ((n = gzread(file.get(), piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(n));
  }
  if (n < 0) throw Error("cannot read " + path + ": " + reason(file.get()));
  if (file.close() != Z_OK) throw Error("cannot read " + path + ": it is cut off");
  return text;
}

void write_gz_file(const std::string& path, const std::string& text) {
  GzFile file(path, path.ends_with(".gz") ? "wb9" : "wbT");
  if (file.get() == nullptr) {
    throw Error("cannot write " + path + ": " + std::strerror(errno));
  }
  std::string failure;
  for (std::size_t done = 0; done < text.size() && failure.empty();) {
    const auto piece =
        static_cast<unsigned>(std::min<std::size_t>(text.size() - done, std::size_t{INT_MAX}));
    const int n = gzwrite(file.get(), text.data() + done, piece);
    if (n <= 0) failure = reason(file.get());
    done += static_cast<std::size_t>(std::max(n, 0));
  }
  if (file.close() != Z_OK && failure.empty()) failure = std::strerror(errno);
  if (!failure.empty()) {
    std::remove(path.c_str());
    throw Error("cannot write " + path + ": " + failure);
  }
}

}  // namespace lms
