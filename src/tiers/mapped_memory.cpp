#include "tiers/mapped_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/text_file.h"

namespace lms {
namespace {

// From <linux/mempolicy.h> and newer <sys/mman.h>, so that neither libnuma nor new headers are
// needed.
constexpr int kMpolPreferred = 1;
constexpr int kMadvPopulateWrite = 23;
constexpr int kMaxNodes = 1024;
constexpr Bytes kTouchPerThread = 64 * kMiB;
constexpr int kMaxTouchThreads = 8;

bool refused() noexcept {
  if (!MappedMemory::refuses_all) return false;
  errno = ENOMEM;
  return true;
}

void touch_range(char* begin, Bytes n) noexcept {
  if (::madvise(begin, static_cast<std::size_t>(n), kMadvPopulateWrite) == 0) return;
  for (Bytes at = 0; at < n; at += MappedMemory::kPage) {
    *static_cast<volatile char*>(begin + at) = 0;
  }
}

}  // namespace

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedMemory MappedMemory::anonymous(Bytes n) noexcept {
  if (refused()) return {};
  const bool huge = n >= kHugePage;
  const Bytes slack = huge ? kHugePage : 0;
  void* raw = ::mmap(nullptr, static_cast<std::size_t>(n + slack), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return {};
  auto* begin = static_cast<char*>(raw);
  if (huge) {
    const auto misalignment =
        static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(begin)) % kHugePage;
    const Bytes head = misalignment == 0 ? 0 : kHugePage - misalignment;
    if (head > 0) ::munmap(begin, static_cast<std::size_t>(head));
    begin += head;
    if (slack > head) ::munmap(begin + n, static_cast<std::size_t>(slack - head));
    ::madvise(begin, static_cast<std::size_t>(n), MADV_HUGEPAGE);
  }
  return {begin, n};
}

MappedMemory MappedMemory::of_file(int fd, Bytes offset, Bytes n) noexcept {
  if (refused()) return {};
  void* p = ::mmap(nullptr, static_cast<std::size_t>(n), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                   static_cast<off_t>(offset));
  if (p == MAP_FAILED) return {};
  return {p, n};
}

bool MappedMemory::move_over(void* address) noexcept {
  if (refused()) return false;
  const auto n = static_cast<std::size_t>(size_);
  // The kernel replaces the target under its map lock, after it has checked what could fail.
  if (::mremap(data_, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) return false;
  release();
  return true;
}

std::string MappedMemory::why_refused() {
  const int error = errno;
  std::string text = std::strerror(error);
  if (error != ENOMEM) return text;
  auto most = read_text_file("/proc/sys/vm/max_map_count").value_or("");
  while (!most.empty() && most.back() == '\n') most.pop_back();
  return text + "; if there is memory, this process has as many mappings as vm.max_map_count (" +
         (most.empty() ? "unknown" : most) +
         ") allows: raise it, or have fewer and larger tensors managed (min_block)";
}

void MappedMemory::prefer_node(int node) noexcept {
  if (node < 0 || node >= kMaxNodes) return;
  constexpr int kBits = CHAR_BIT * sizeof(unsigned long);  // NOLINT(google-runtime-int): the ABI
  std::array<unsigned long, kMaxNodes / kBits> mask{};     // NOLINT(google-runtime-int)
  mask.at(static_cast<std::size_t>(node / kBits)) = 1UL << (node % kBits);
  ::syscall(SYS_mbind, data_, static_cast<std::size_t>(size_), kMpolPreferred, mask.data(),
            kMaxNodes + 1, 0);
}

void MappedMemory::touch(int threads) noexcept {
  if (size_ == 0) return;
  if (threads <= 0) {
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    threads = static_cast<int>(std::min<Bytes>(size_ / kTouchPerThread, kMaxTouchThreads));
    threads = std::min(threads, cores);
  }
  threads = std::max(threads, 1);
  const Bytes share = round_up((size_ + threads - 1) / threads, kHugePage);
  auto* begin = static_cast<char*>(data_);
  std::vector<std::thread> helpers;
  Bytes at = share;
  try {
    for (; at < size_; at += share) {
      helpers.emplace_back(touch_range, begin + at, std::min(share, size_ - at));
    }
  } catch (const std::exception&) {
    // No more threads: this one does the rest.
    touch_range(begin + at, size_ - at);
  }
  touch_range(begin, std::min(share, size_));
  for (auto& helper : helpers) helper.join();
}

void* MappedMemory::release() noexcept {
  size_ = 0;
  return std::exchange(data_, nullptr);
}

}  // namespace lms
