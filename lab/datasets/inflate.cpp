#include "lab/datasets/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "lab/datasets/files.h"

namespace lms::data {
namespace {

constexpr int kGzipWindow = 15 + 16;
constexpr std::size_t kMostPiece = std::size_t{1} << 30;  // zlib counts in 32 bits

}  // namespace

struct ByteSource::Stream {
  Stream() {
    if (inflateInit2(&z, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  ~Stream() { inflateEnd(&z); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  z_stream z{};
  bool ended = false;
};

ByteSource::ByteSource(ByteView file, std::string name) : file_(file), name_(std::move(name)) {
  if (file.size() >= 2 && file[0] == 0x1F && file[1] == 0x8B) stream_ = std::make_unique<Stream>();
}

ByteSource::~ByteSource() = default;

std::size_t ByteSource::read_some(std::uint8_t* out, std::size_t bytes) {
  bytes = std::min(bytes, kMostPiece);
  if (!stream_) {
    const std::size_t count = std::min(bytes, file_.size() - at_);
    if (count > 0) std::memcpy(out, file_.data() + at_, count);
    at_ += count;
    return count;
  }
  z_stream& z = stream_->z;
  z.next_out = out;
  z.avail_out = static_cast<uInt>(bytes);
  while (z.avail_out > 0 && !stream_->ended) {
    if (z.avail_in == 0) {
      const std::size_t piece = std::min(file_.size() - at_, kMostPiece);
      if (piece == 0) break;
      z.next_in = const_cast<Bytef*>(file_.data() + at_);
      z.avail_in = static_cast<uInt>(piece);
      at_ += piece;
    }
    const int result = inflate(&z, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      // A gzip file may be several, one after the other; what follows otherwise is ignored.
      const bool more = z.avail_in >= 2 && z.next_in[0] == 0x1F && z.next_in[1] == 0x8B;
      stream_->ended = !more || inflateReset(&z) != Z_OK;
      continue;
    }
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result == Z_BUF_ERROR) continue;  // more input is needed
    if (result != Z_OK) {
      fail(name_, std::string("broken gzip data: ") + (z.msg != nullptr ? z.msg : "unknown error"));
    }
  }
  return bytes - z.avail_out;
}

void ByteSource::read(void* out, std::size_t bytes) {
  auto* at = static_cast<std::uint8_t*>(out);
  while (bytes > 0) {
    const std::size_t count = read_some(at, bytes);
    if (count == 0) {
      fail(name_, "truncated: " + std::to_string(bytes) + " bytes are missing after " +
                      std::to_string(done_));
    }
    at += count;
    bytes -= count;
    done_ += count;
  }
}

void ByteSource::skip(std::size_t bytes) {
  std::array<std::uint8_t, 4096> waste{};
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, waste.size());
    read(waste.data(), piece);
    bytes -= piece;
  }
}

}  // namespace lms::data
