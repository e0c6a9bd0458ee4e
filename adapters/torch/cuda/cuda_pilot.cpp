// What planning asks of a CUDA device.

#include <c10/cuda/CUDAGuard.h>

#include <cstdio>

#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/native_stats.h"
#include "adapters/torch/registry.h"

namespace lms::torch {

void CudaManager::begin_pressure() {
  mark_pressed();
  pilot_.wake();
}

void CudaManager::wait_on(cudaStream_t stream, const cuda::EventPtr& event) {
  laps_.wait(stream, *event);
}

cuda::EventPtr CudaManager::copy_out(void* to, const void* from, Bytes bytes) {
  return out_->copy(to, from, bytes);
}

cuda::EventPtr CudaManager::copy_in(void* to, const void* from, Bytes bytes) {
  return in_->copy(to, from, bytes);
}

void CudaManager::start_laps() {
  const c10::cuda::CUDAGuard guard(device_.index());
  laps_.start(main_stream_);
}

void CudaManager::lap() { laps_.lap(); }

std::vector<double> CudaManager::finish_laps() {
  const c10::cuda::CUDAGuard guard(device_.index());
  return laps_.finish();
}

PilotDevice::Room CudaManager::room() {
  if (!arena_) throw Error("this device cannot map memory to addresses");
  if (!serves(main_stream_)) throw Error("so small a limit is left to PyTorch's allocator");
  const c10::cuda::CUDAGuard guard(device_.index());
  {
    // Everything comes back where the plan wants it; what cannot leave is left behind.
    EngineLock lock = engine_.lock();
    (void)engine_.reclaim(lock, INT64_MAX);
  }
  BridgeAllocator::instance().native()->emptyCache({0, 0});
  arena_->move_window();
  update_capacity();
  return {.arena = arena_->room(), .addresses = true};
}

LinkModel CudaManager::link() { return {}; }

void CudaManager::say(const std::string& line) {
  std::fprintf(stderr, "LMS (%s): %s\n", device_.str().c_str(), line.c_str());
}

}  // namespace lms::torch
