#pragma once

#include <atomic>

#include "adapters/torch/cuda/cuda_mover.h"
#include "adapters/torch/slices/below.h"

namespace lms::torch {

/// Blocks of a CUDA device in pinned host memory, read and written over the lanes.
///
/// A copy in starts after what the current stream has queued, which may still use the buffer's
/// memory, and after the block's copy out; a copy out after the kernel that is queued there. As the
/// current stream waits for each of them before it goes on to use, or to free, a buffer, buffers
/// come and go in its order alone.
class CudaBelow final : public Below {
 public:
  CudaBelow(CudaManager& manager, CudaMover& mover, c10::Device device)
      : manager_(manager), mover_(mover), device_(device) {}

  [[nodiscard]] bool copies_beside() const override { return true; }
  Made make(Bytes bytes) override;
  Copy read(Block& block, Bytes offset, void* to, Bytes bytes) override;
  Copy write(Block& block, Bytes offset, const void* from, Bytes bytes) override;
  void wait(const Copy& copy) override;
  void end(Block& block, bool written) override;

  [[nodiscard]] Bytes most_kept_by_libraries() const override;
  bool begin(Block& block, bool writes) override;
  c10::DataPtr allocate(Bytes bytes) override;
  Block* adopt(c10::StorageImpl& storage) override;

 private:
  struct Allocated;
  static void delete_allocated(void* context);
  /// Kernels find it at the address that the host has.
  bool addressable(const void* data);
  CudaBlock& add(c10::StorageImpl& storage, HostSlot slot, Bytes bytes);
  [[nodiscard]] cudaStream_t current() const;

  CudaManager& manager_;
  CudaMover& mover_;
  const c10::Device device_;
  std::atomic<int> addressable_{-1};  ///< -1: not known yet
};

}  // namespace lms::torch
