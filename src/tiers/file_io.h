#pragma once

#include <sys/types.h>

#include <cstddef>

#include "base/bytes.h"

namespace lms {

/// The system calls through which a FileStore moves and allocates bytes: a seam for fault
/// injection. The conventions are those of the system calls: -1 and errno on failure, short counts
/// allowed. The base class is the real thing. Must be thread-safe.
class FileIo {
 public:
  FileIo() = default;
  FileIo(const FileIo&) = delete;
  FileIo& operator=(const FileIo&) = delete;
  virtual ~FileIo();

  virtual ssize_t pwrite(int fd, const void* data, std::size_t n, off_t offset);
  virtual ssize_t pread(int fd, void* data, std::size_t n, off_t offset);
  virtual int fallocate(int fd, off_t offset, off_t n);
  /// What an ordinary user may still allocate on the file's disk; -1 when that cannot be told.
  virtual Bytes disk_free(int fd);
};

}  // namespace lms
