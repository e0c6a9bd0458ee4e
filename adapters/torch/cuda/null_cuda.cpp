// The CUDA backend of builds without CUDA.

#include "adapters/torch/backends.h"
#include "adapters/torch/built_for.h"

LMS_STATE_BUILT_FOR(0);

namespace lms::torch {

std::unique_ptr<DeviceManager> make_cuda_manager(int /*index*/) {
  throw BadSetting("LMS: this build has no CUDA; only device=\"cpu\" can be managed");
}

int cuda_device_count() noexcept { return 0; }

int current_cuda_device() { return 0; }

std::string cuda_build_version() { return ""; }

std::vector<double> measure_cuda_link(int /*index*/, Bytes /*bytes*/) {
  throw BadSetting("LMS: this build has no CUDA, so there is no link to measure");
}

}  // namespace lms::torch
