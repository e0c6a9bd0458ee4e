#pragma once

#include "adapters/torch/cuda/forwarding_allocator.h"

namespace lms::torch {

/// Stands in for PyTorch's CUDA allocator while some CUDA device is managed: makes room before an
/// allocation, and tries again after a reclaim. The memory itself is PyTorch's, with its own
/// deleter, so that everything else about it stays as it was.
class BridgeAllocator final : public ForwardingAllocator {
 public:
  /// The one instance. Storages remember their allocator, so it lives for ever; while it is not
  /// installed, and on devices that are not managed, it only passes on.
  static BridgeAllocator& instance();

  /// Takes the place of PyTorch's allocator / gives it back. Counts; not thread-safe.
  void install();
  void uninstall();

  c10::DataPtr allocate(size_t n) override;
  void* raw_alloc(size_t n) override;
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override;
  void emptyCache(Pool pool) override;
  /// With what lies in the arena counted as allocated and reserved.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Index device) override;
  void resetPeakStats(Index device) override;
  /// The user's own: LMS lowers the fraction underneath.
  double getMemoryFraction(Index device) override;
  void setMemoryFraction(double fraction, Index device) override;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void enablePeerAccess(Index from, Index to) override;
  void beginAllocateToPool(Index device, Pool pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(Index device, Pool pool) override;

 private:
  int installed_ = 0;
};

}  // namespace lms::torch
