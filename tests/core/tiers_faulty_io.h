#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "tiers/file_io.h"

namespace lms::testing {

/// System calls that fail on demand. A `*_error` other than 0 makes the next call (or, with
/// `sticky`, every call) of its kind fail with it.
class FaultyIo : public FileIo {
 public:
  ssize_t pwrite(int fd, const void* data, std::size_t n, off_t offset) override {
    ++writes;
    if (writes_before_error > 0) {
      --writes_before_error;
    } else if (const int error = take(write_error)) {
      errno = error;
      return -1;
    }
    if (stuck) return 0;
    return FileIo::pwrite(fd, data, cut(n), offset);
  }
  ssize_t pread(int fd, void* data, std::size_t n, off_t offset) override {
    ++reads;
    if (const int error = take(read_error)) {
      errno = error;
      return -1;
    }
    return FileIo::pread(fd, data, cut(n), offset);
  }
  int fallocate(int fd, off_t offset, off_t n) override {
    if (const int error = take(allocate_error)) {
      errno = error;
      return -1;
    }
    return FileIo::fallocate(fd, offset, n);
  }
  Bytes disk_free(int fd) override {
    return pretended_free < 0 ? FileIo::disk_free(fd) : pretended_free.load();
  }

  std::atomic<int> write_error = 0;
  std::atomic<int> read_error = 0;
  std::atomic<int> allocate_error = 0;
  std::atomic<int> writes_before_error = 0;  // this many succeed first
  std::atomic<bool> sticky = false;
  std::atomic<bool> stuck = false;      // writes return 0
  std::atomic<Bytes> most_at_once = 0;  // short transfers; 0: whole ones
  std::atomic<Bytes> pretended_free = -1;
  std::atomic<int> writes = 0;
  std::atomic<int> reads = 0;

 private:
  int take(std::atomic<int>& error) { return sticky ? error.load() : error.exchange(0); }
  [[nodiscard]] std::size_t cut(std::size_t n) const {
    const auto most = static_cast<std::size_t>(most_at_once.load());
    return most == 0 ? n : std::min(n, most);
  }
};

}  // namespace lms::testing
