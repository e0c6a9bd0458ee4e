#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <optional>

namespace lms::torch {

/// While it lives, the device is the calling thread's current one. As it nearly always is already:
/// then this asks, and does nothing, which takes a fraction of what a guard does.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex index) {
    if (c10::cuda::current_device() != index) guard_.emplace(index);
  }

 private:
  std::optional<c10::cuda::CUDAGuard> guard_;
};

}  // namespace lms::torch
