#include "adapters/torch/cuda/cuda_kernels.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "cuda/event.h"

namespace lms::torch {

int CudaKernels::multiprocessors() const noexcept {
  if (multiprocessors_ < 0) multiprocessors_ = multiprocessors_for_replays(device_);
  return multiprocessors_;
}

CUstream CudaKernels::stream() const {
  // The driver, unlike the runtime, does nothing in a thread that has not chosen a device.
  if (cudaSetDevice(device_) != cudaSuccess) throw Error("CUDA: the device cannot be chosen");
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream();
}

Kernels::Kernel CudaKernels::make(const char* source, const char* name,
                                  std::vector<std::string> options) {
  (void)stream();
  {
    const std::lock_guard guard(mutex_);
    if (!maker_) maker_.emplace();
  }
  return reinterpret_cast<Kernel>(maker_->make(source, name, std::move(options)));
}

bool CudaKernels::launch(Kernel kernel, unsigned blocks, unsigned threads, void** arguments) {
  return maker_->launch(reinterpret_cast<CUfunction>(kernel), blocks, threads, stream(), arguments);
}

void CudaKernels::clear(void* data, std::size_t bytes) {
  cuda::check(cudaMemsetAsync(data, 0, bytes, stream()), "cudaMemsetAsync");
}

void CudaKernels::read(void* to, const void* data, std::size_t bytes) {
  const CUstream current = stream();
  cuda::check(cudaMemcpyAsync(to, data, bytes, cudaMemcpyDeviceToHost, current), "cudaMemcpyAsync");
  cuda::check(cudaStreamSynchronize(current), "cudaStreamSynchronize");
}

float CudaKernels::time(const std::function<void()>& queue) {
  const CUstream current = stream();
  const auto make_event = [] {
    cudaEvent_t event = nullptr;
    cuda::check(cudaEventCreate(&event), "cudaEventCreate");
    return std::unique_ptr<CUevent_st, cudaError_t (*)(cudaEvent_t)>(event, &cudaEventDestroy);
  };
  const auto begin = make_event();
  const auto end = make_event();
  // The first run pays for loading the kernel.
  for (int i = 0; i < 2; ++i) {
    cuda::check(cudaEventRecord(begin.get(), current), "cudaEventRecord");
    queue();
    cuda::check(cudaEventRecord(end.get(), current), "cudaEventRecord");
  }
  cuda::check(cudaEventSynchronize(end.get()), "cudaEventSynchronize");
  float ms = 0;
  cuda::check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime");
  return ms;
}

}  // namespace lms::torch
