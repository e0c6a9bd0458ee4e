// Counts what one library takes from the heap, for tests of LMS's steady state: every operator new
// of the process comes here, and the caller's address says whose it is.

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

namespace {

std::atomic<bool> counting{false};

struct Callers {
  std::mutex mutex;
  std::string library;
  std::map<std::ptrdiff_t, long> calls;  // by their place in the library
};
Callers& callers() {
  static auto* all = new Callers;
  return *all;
}
thread_local bool inside = false;

void note(const void* caller) {
  if (inside) return;
  inside = true;
  Dl_info where{};
  if (dladdr(caller, &where) != 0 && where.dli_fname != nullptr) {
    const std::lock_guard guard(callers().mutex);
    if (std::strstr(where.dli_fname, callers().library.c_str()) != nullptr) {
      const auto offset = static_cast<const char*>(caller) - static_cast<char*>(where.dli_fbase);
      ++callers().calls[offset];
    }
  }
  inside = false;
}

void* take(std::size_t size, std::size_t alignment, const void* caller) {
  if (counting.load(std::memory_order_relaxed)) note(caller);
  if (size == 0) size = 1;
  void* const memory =
      alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  return memory;
}

void* take_or_throw(std::size_t size, std::size_t alignment, const void* caller) {
  void* const memory = take(size, alignment, caller);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

#define LMS_CALLER __builtin_return_address(0)
constexpr std::size_t kUsual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

void* operator new(std::size_t size) { return take_or_throw(size, kUsual, LMS_CALLER); }
void* operator new[](std::size_t size) { return take_or_throw(size, kUsual, LMS_CALLER); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return take_or_throw(size, static_cast<std::size_t>(alignment), LMS_CALLER);
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return take_or_throw(size, static_cast<std::size_t>(alignment), LMS_CALLER);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return take(size, kUsual, LMS_CALLER);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return take(size, kUsual, LMS_CALLER);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

extern "C" {
/// From now on what the library takes whose file's name contains `library` is counted.
void model_cuda_count_allocations(const char* library) {
  {
    const std::lock_guard guard(callers().mutex);
    callers().library = library;
    callers().calls.clear();
  }
  counting = true;
}
/// No longer: how often it has, and into `text` from where, an address of the library a line.
long model_cuda_allocations(char* text, std::size_t size) {
  counting = false;
  const std::lock_guard guard(callers().mutex);
  std::string lines;
  long sum = 0;
  for (const auto& [caller, count] : callers().calls) {
    char line[64];
    std::snprintf(line, sizeof(line), "%ld from 0x%tx\n", count, caller);
    lines += line;
    sum += count;
  }
  std::snprintf(text, size, "%s", lines.c_str());
  return sum;
}
}
