#pragma once

// Every difference between the PyTorch releases that LMS supports, in one place.

#include <torch/headeronly/version.h>

#define LMS_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||      \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !LMS_TORCH_AT_LEAST(2, 11)
#error "LMS needs PyTorch 2.11 or newer"
#endif
