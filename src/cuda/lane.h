#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "base/bytes.h"
#include "cuda/event.h"

namespace lms::cuda {

/// One direction of a device's link: a stream of its own, on which copies run in order, beside the
/// computation. Thread-safe. Never destroyed before the process ends.
class Lane {
 public:
  /// Makes the stream on `device`, for copies from the device to the host (`out`) or back.
  Lane(int device, bool out);

  /// Queues a copy of `bytes` behind what the lane has been told to wait for, and returns the point
  /// at which it is done. The host's memory is pinned.
  EventPtr copy(void* to, const void* from, Bytes bytes);

  /// Copies queued from now on hold the lane for `factor` (>= 1) times as long as they take: what
  /// they move is moved again, in part or several times. For measurements, in the place of a
  /// slower link.
  void slow_down(double factor) { slowness_ = factor; }

  /// Copies queued from now on start after `event` (null: no effect).
  void wait_for(const EventPtr& event);

  [[nodiscard]] cudaStream_t stream() const { return stream_; }

 private:
  int device_;
  cudaMemcpyKind kind_;
  std::atomic<double> slowness_{1};
  cudaStream_t stream_ = nullptr;
};

/// Pins host memory for all CUDA devices of the process.
class Pinning final : public HostPinning {
 public:
  void pin(void* p, std::size_t n) override;
  void unpin(void* p, std::size_t n) noexcept override;
};

}  // namespace lms::cuda
