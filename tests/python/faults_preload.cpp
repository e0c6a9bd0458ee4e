// Preloaded into a process: has system calls fail that LMS's library makes, and no others.
//
// All such calls are counted as one sequence. fault_arm(k, kind) chooses what happens to the k-th
// from then on.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>

namespace {

enum Kind {
  kNone,
  kError,  // one call fails
  kDead,   // all fail from then on
  kFull,   // nothing can be written or allocated any more, in the file
  kTight,  // nothing can be mapped any more
  kShort,  // one transfer moves a page, if it is one of more
  kKill,   // the process dies
};
enum class What { kRead, kWrite, kAllocate, kMap };

std::atomic<long> at{0};
std::atomic<int> kind{kNone};
std::atomic<long> calls{0};

bool is_ours(const void* caller) {
  Dl_info info{};
  return dladdr(caller, &info) != 0 && info.dli_fname != nullptr &&
         std::strstr(info.dli_fname, "liblms_torch") != nullptr;
}

/// The errno with which this call fails; 0: it does not. `part`: it is to be a short one.
int verdict(const void* caller, What what, bool* part = nullptr) {
  if (!is_ours(caller)) return 0;
  const long now = ++calls;
  if (kind == kNone || now < at) return 0;
  const int error = what == What::kMap ? ENOMEM : what == What::kAllocate ? ENOSPC : EIO;
  switch (kind) {
    case kError:
      return now == at ? error : 0;
    case kDead:
      return error;
    case kFull:
      return what == What::kWrite || what == What::kAllocate ? ENOSPC : 0;
    case kTight:
      return what == What::kMap ? ENOMEM : 0;
    case kShort:
      if (part != nullptr) *part = now == at;
      return 0;
    case kKill:
      ::kill(::getpid(), SIGKILL);
      return 0;
    default:
      return 0;
  }
}

template <typename F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

constexpr size_t kPage = 4096;
size_t cut(size_t n, bool part) { return part && n > kPage ? kPage : n; }

}  // namespace

extern "C" {

void fault_arm(long k, int which) {
  kind = kNone;
  calls = 0;
  at = k;
  kind = which;
}
long fault_calls() { return calls; }

ssize_t pwrite(int fd, const void* data, size_t n, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  bool part = false;
  if (const int error = verdict(__builtin_return_address(0), What::kWrite, &part)) {
    errno = error;
    return -1;
  }
  return real(fd, data, cut(n, part), offset);
}

ssize_t pread(int fd, void* data, size_t n, off_t offset) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  bool part = false;
  if (const int error = verdict(__builtin_return_address(0), What::kRead, &part)) {
    errno = error;
    return -1;
  }
  return real(fd, data, cut(n, part), offset);
}

int fallocate(int fd, int mode, off_t offset, off_t n) {
  static const auto real = next<int (*)(int, int, off_t, off_t)>("fallocate");
  if (const int error = verdict(__builtin_return_address(0), What::kAllocate)) {
    errno = error;
    return -1;
  }
  return real(fd, mode, offset, n);
}

int ftruncate(int fd, off_t n) noexcept {
  static const auto real = next<int (*)(int, off_t)>("ftruncate");
  if (const int error = verdict(__builtin_return_address(0), What::kAllocate)) {
    errno = error;
    return -1;
  }
  return real(fd, n);
}

void* mmap(void* address, size_t n, int protection, int flags, int fd, off_t offset) noexcept {
  static const auto real = next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
  if (const int error = verdict(__builtin_return_address(0), What::kMap)) {
    errno = error;
    return MAP_FAILED;
  }
  return real(address, n, protection, flags, fd, offset);
}

void* mremap(void* old, size_t before, size_t after, int flags, ...) noexcept {
  static const auto real = next<void* (*)(void*, size_t, size_t, int, void*)>("mremap");
  va_list arguments;
  va_start(arguments, flags);
  void* const address = (flags & MREMAP_FIXED) != 0 ? va_arg(arguments, void*) : nullptr;
  va_end(arguments);
  if (const int error = verdict(__builtin_return_address(0), What::kMap)) {
    errno = error;
    return MAP_FAILED;
  }
  return real(old, before, after, flags, address);
}

}  // extern "C"
