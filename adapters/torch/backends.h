#pragma once

#include <memory>
#include <string>
#include <vector>

#include "adapters/torch/device_manager.h"

namespace lms::torch {

/// CPU tensors under a RAM budget, with a file below.
std::unique_ptr<DeviceManager> make_cpu_manager();

/// CUDA tensors of one device, with pinned host memory below. Throws BadSetting where this build,
/// or this machine, has no CUDA.
std::unique_ptr<DeviceManager> make_cuda_manager(int index);
/// Number of CUDA devices that can be managed here; 0 where there is no CUDA.
int cuda_device_count() noexcept;
/// The device that "cuda" means on the calling thread.
int current_cuda_device();
/// CUDA version that LMS was built for, or "".
std::string cuda_build_version();

/// GB/s device→host, host→device, each way with both at once, and GiB/s of pinning new memory.
std::vector<double> measure_cuda_link(int index, Bytes bytes);

}  // namespace lms::torch
