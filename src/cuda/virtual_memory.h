#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace lms::cuda {

/// One address range of a device, reserved once, with memory behind those parts of it that are
/// asked for, in chunks. Addresses never move while it lives. Growing and shrinking are not
/// stream-ordered: they hold as soon as the call returns. Contents of new memory are undefined.
/// Not thread-safe.
class VirtualMemory {
 public:
  /// Memory comes and goes in chunks of so many bytes.
  static constexpr Bytes granularity() { return 8 * kMiB; }

  /// Reserves `reserve` bytes of addresses (rounded up to chunks) on `device`; takes no memory.
  /// Throws Error without CUDA, or where the driver cannot do it.
  VirtualMemory(int device, Bytes reserve);

  /// Waits for the device, then gives everything back. The runtime may be gone already.
  ~VirtualMemory();

  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] Bytes mapped() const { return mapped_; }
  [[nodiscard]] Bytes reserved() const { return reserved_; }
  [[nodiscard]] int device() const { return device_; }

  /// Puts memory behind [begin, end) (rounded outwards to chunks), which this device and the
  /// allowed peers may read and write. No effect where it is. Throws OutOfMemory if the driver has
  /// not enough, Error if `end` exceeds reserved(); then nothing has changed.
  void map(Bytes begin, Bytes end);
  void grow_to(Bytes bytes) { map(0, bytes); }

  /// Gives back the chunks that lie wholly in [begin, end), after all work queued on the device is
  /// done. The caller sees to it that no work queued later, here or by peers, uses them.
  void unmap(Bytes begin, Bytes end);
  void shrink_to(Bytes bytes) { unmap(bytes, reserved_); }

  /// Lets device `peer` read and write the memory mapped now and later. Throws Error, with nothing
  /// changed, if it cannot.
  void allow(int peer);

 private:
  void release(std::size_t first, std::size_t last) noexcept;

  int device_ = 0;
  std::byte* base_ = nullptr;
  Bytes reserved_ = 0;
  bool reachable_by_network_ = false;  // ask for memory that GPUDirect RDMA can use
  std::vector<std::uint64_t> chunks_;  // the driver's handles, by address; 0: no memory there
  Bytes mapped_ = 0;
  std::vector<int> users_;  // devices that may read and write
};

}  // namespace lms::cuda
