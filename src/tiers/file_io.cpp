#include "tiers/file_io.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace lms {

FileIo::~FileIo() = default;

ssize_t FileIo::pwrite(int fd, const void* data, std::size_t n, off_t offset) {
  return ::pwrite(fd, data, n, offset);
}

ssize_t FileIo::pread(int fd, void* data, std::size_t n, off_t offset) {
  return ::pread(fd, data, n, offset);
}

int FileIo::fallocate(int fd, off_t offset, off_t n) { return ::fallocate(fd, 0, offset, n); }

Bytes FileIo::disk_free(int fd) {
  struct statvfs disk {};
  if (::fstatvfs(fd, &disk) != 0) return -1;
  return static_cast<Bytes>(disk.f_bavail) * static_cast<Bytes>(disk.f_frsize);
}

}  // namespace lms
