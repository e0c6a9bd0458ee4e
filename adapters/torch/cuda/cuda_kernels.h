#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "adapters/torch/cuda/kernel_maker.h"
#include "adapters/torch/fused/kernels.h"

namespace lms::torch {

/// Those of a CUDA device, made by a KernelMaker.
class CudaKernels final : public Kernels {
 public:
  explicit CudaKernels(int device) : device_(device) {}

  [[nodiscard]] int multiprocessors() const noexcept override;
  [[nodiscard]] Kernel make(const char* source, const char* name,
                            std::vector<std::string> options) override;
  [[nodiscard]] bool launch(Kernel kernel, unsigned blocks, unsigned threads,
                            void** arguments) override;
  void clear(void* data, std::size_t bytes) override;
  void read(void* to, const void* data, std::size_t bytes) override;
  [[nodiscard]] float time(const std::function<void()>& queue) override;

 private:
  /// The current stream, of the device, which becomes the current one. Throws Error.
  [[nodiscard]] CUstream stream() const;

  const int device_;
  mutable std::atomic<int> multiprocessors_{-1};  ///< not asked for yet
  std::mutex mutex_;                              ///< of who makes `maker_`
  std::optional<KernelMaker> maker_;
};

}  // namespace lms::torch
