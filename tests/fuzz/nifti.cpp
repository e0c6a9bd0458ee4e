#include "lab/datasets/nifti.h"

#include <cmath>
#include <cstdlib>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lms::data;
  fuzz::refusable([&] {
    const Volume volume =
        decode_nifti({data, size}, "nifti", {.voxels = 1 << 20, .extensions = 1 << 20});
    if (std::ssize(volume.voxels) != volume.shape[0] * volume.shape[1] * volume.shape[2]) {
      std::abort();
    }
    for (const float value : volume.voxels) {
      if (!std::isfinite(value)) std::abort();
    }
  });
  return 0;
}
