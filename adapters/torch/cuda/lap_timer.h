#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/event.h"

namespace lms::torch {

/// Times the operators of one stream: laps from mark to mark, less the time for which the stream
/// stood still for copies. Events are recorded only while it runs. Thread-safe.
class LapTimer {
 public:
  ~LapTimer();

  /// Begins anew, on `stream`.
  void start(cudaStream_t stream);
  void lap();
  [[nodiscard]] bool running() const { return running_.load(std::memory_order_relaxed); }
  /// As event.block(stream), timed.
  void wait(cudaStream_t stream, const cuda::Event& event);
  /// Milliseconds of each lap. Waits for the last one; stops.
  std::vector<double> finish();

 private:
  cudaEvent_t mark();

  std::mutex mutex_;
  std::atomic<bool> running_{false};
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> free_;
  std::vector<cudaEvent_t> laps_;  ///< the start, then the end of each
  struct Wait {
    std::size_t lap;
    cudaEvent_t begin, end;
  };
  std::vector<Wait> waits_;
};

}  // namespace lms::torch
