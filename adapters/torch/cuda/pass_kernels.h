#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "adapters/torch/cuda/kernel_maker.h"
#include "adapters/torch/fused/single_pass.h"

namespace lms::torch {

/// One device's kernels for single passes, each made when the first of its kind comes. If one
/// cannot be made or queued, there are none for good.
class PassKernels final : public SinglePasses {
 public:
  explicit PassKernels(int device) : device_(device) {}

  [[nodiscard]] bool available() const noexcept override;
  [[nodiscard]] bool launch(const SinglePass& pass, const void* input, const void* other,
                            void* result) noexcept override;

  /// Kernels that could not be made or queued: 0 or 1.
  [[nodiscard]] std::int64_t failures() const noexcept { return failed_ ? 1 : 0; }

 private:
  /// Throws Error.
  [[nodiscard]] CUfunction kernel_for(const SinglePass& pass, bool vectors);

  const int device_;
  std::atomic<bool> failed_{false};
  mutable std::atomic<int> multiprocessors_{-1};  ///< 0: a device for which there are no kernels
  std::mutex mutex_;                              ///< guards both below
  std::optional<KernelMaker> maker_;
  using Key = std::tuple<c10::ScalarType, SinglePass::With, c10::ScalarType, bool>;
  std::map<Key, CUfunction> kernels_;
};

}  // namespace lms::torch
