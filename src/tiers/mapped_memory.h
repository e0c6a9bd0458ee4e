#pragma once

#include <atomic>
#include <string>

#include "base/bytes.h"

namespace lms {

/// Private memory mapped from the system, owned: unmapped on destruction. Move-only.
class MappedMemory {
 public:
  static constexpr Bytes kPage = 4 * kKiB;
  static constexpr Bytes kHugePage = 2 * kMiB;

  MappedMemory() = default;
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;

  /// `n` bytes (> 0, a multiple of kPage) of anonymous zeros. From kHugePage on it is aligned to
  /// kHugePage and asks for huge pages. Empty, with errno set, when the system refuses.
  [[nodiscard]] static MappedMemory anonymous(Bytes n) noexcept;

  /// A shared mapping of a file's range, at an address of the system's choice. Empty, with errno
  /// set, on failure.
  [[nodiscard]] static MappedMemory of_file(int fd, Bytes offset, Bytes n) noexcept;

  /// Moves the mapping over `[address, address + size())`, replacing in one step what is mapped
  /// there: other threads see either the old bytes or the new ones. Gives up ownership on success.
  /// False, with errno set and nothing changed, on failure.
  [[nodiscard]] bool move_over(void* address) noexcept;

  /// What the system may mean by the present errno, and what would help, for messages.
  [[nodiscard]] static std::string why_refused();

  /// For tests: every further mapping is refused, as where vm.max_map_count is reached.
  static inline std::atomic<bool> refuses_all = false;

  /// Prefers memory of this NUMA node for pages not yet touched. Best effort.
  void prefer_node(int node) noexcept;

  /// Touches every page, with up to `threads` threads (0: by size).
  void touch(int threads) noexcept;

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] Bytes size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

  /// Gives up ownership.
  void* release() noexcept;

 private:
  MappedMemory(void* data, Bytes size) : data_(data), size_(size) {}

  void* data_ = nullptr;
  Bytes size_ = 0;
};

}  // namespace lms
