// Device facts where there is no CUDA.

#include "base/error.h"
#include "cuda/device.h"

namespace lms::cuda {

int device_count() noexcept { return 0; }

int numa_node(int /*device*/) { return -1; }

LinkRates measure_link(int /*device*/, Bytes /*bytes*/) {
  throw Error("this build of LMS has no CUDA, so there is no link to measure");
}

}  // namespace lms::cuda
