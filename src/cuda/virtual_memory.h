#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "base/bytes.h"

namespace lms::cuda {

/// One address range of a device, reserved once, with memory behind those parts of it that are
/// asked for, in chunks. Addresses never move while it lives. Growing and shrinking are not
/// stream-ordered: they hold as soon as the call returns. Contents of new memory are undefined.
/// Beyond reserved() the same chunks can be had once more, side by side in any order. Writes to one
/// address are seen at the other by kernels and copies that come later in stream order.
/// Not thread-safe.
class VirtualMemory {
 public:
  /// The smallest chunk that devices can do; chunks are multiples of it.
  static constexpr Bytes kUnit = 2 * kMiB;

  /// Reserves `reserve` bytes of addresses (rounded up to chunks) on `device`, and as many again to
  /// see chunks side by side; takes no memory. Throws Error without CUDA, or where the driver
  /// cannot do it.
  VirtualMemory(int device, Bytes reserve, Bytes chunk = 4 * kUnit);

  /// Waits for the device, then gives everything back. The runtime may be gone already.
  ~VirtualMemory();

  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] Bytes mapped() const { return mapped_; }
  /// Of these, what lies below `end`, a multiple of chunk().
  [[nodiscard]] Bytes mapped_below(Bytes end) const {
    const auto last = chunks_.begin() + end / chunk_;
    return chunk_ * std::count_if(chunks_.begin(), last, [](auto chunk) { return chunk != 0; });
  }
  /// What map() would take from the driver; both within reserved().
  [[nodiscard]] Bytes missing(Bytes begin, Bytes end) const {
    const auto first = chunks_.begin() + begin / chunk_;
    const auto last = chunks_.begin() + round_up(end, chunk_) / chunk_;
    return chunk_ * std::count(first, last, std::uint64_t{0});
  }
  [[nodiscard]] Bytes reserved() const { return reserved_; }
  /// Memory comes and goes in chunks of so many bytes.
  [[nodiscard]] Bytes chunk() const { return chunk_; }
  [[nodiscard]] bool owns(const void* data) const {
    const auto* byte = static_cast<const std::byte*>(data);
    return byte >= base_ && byte < base_ + 2 * reserved_;
  }
  [[nodiscard]] int device() const { return device_; }

  /// Puts memory behind [begin, end) (rounded outwards to chunks), which this device and the
  /// allowed peers may read and write. No effect where it is. Throws OutOfMemory if the driver has
  /// not enough, Error if `end` exceeds reserved(); then nothing has changed.
  void map(Bytes begin, Bytes end);

  /// Where (from base()) the memory of these chunks lies side by side; all of them are mapped. It
  /// stays there until one of them is given back. Throws OutOfMemory if the addresses for that have
  /// run out.
  Bytes side_by_side(const std::vector<std::uint32_t>& chunks);
  /// How often side_by_side() has had to map something.
  [[nodiscard]] std::int64_t joins() const { return joins_; }

  /// Forgets where chunks lie side by side, except what `keep` wants of those places, after all
  /// work queued on the device is done. No work queued later may use what is forgotten.
  void forget(const std::function<bool(Bytes offset)>& keep);

  /// Gives back the chunks that lie wholly in [begin, end), after all work queued on the device is
  /// done. The caller sees to it that no work queued later, here or by peers, uses them.
  void unmap(Bytes begin, Bytes end);

  /// Lets device `peer` read and write the memory mapped now and later. Throws Error, with nothing
  /// changed, if it cannot.
  void allow(int peer);

 private:
  void release(std::size_t first, std::size_t last) noexcept;
  void part(std::size_t first, std::size_t last) noexcept;
  void unmap_joined(const std::vector<std::uint32_t>& chunks, Bytes offset) noexcept;
  [[nodiscard]] Bytes addresses_for(Bytes bytes);

  int device_ = 0;
  Bytes chunk_ = 0;
  std::byte* base_ = nullptr;
  Bytes reserved_ = 0;
  bool reachable_by_network_ = false;  // ask for memory that GPUDirect RDMA can use
  std::vector<std::uint64_t> chunks_;  // the driver's handles, by address; 0: no memory there
  Bytes mapped_ = 0;
  std::vector<int> users_;                              // devices that may read and write
  std::map<std::vector<std::uint32_t>, Bytes> joined_;  // chunks -> where they lie side by side
  Bytes unused_ = 0;  // from here on no address has ever had memory side by side
  std::int64_t joins_ = 0;
};

}  // namespace lms::cuda
