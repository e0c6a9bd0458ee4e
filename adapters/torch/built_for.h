#pragma once

#include <torch/headeronly/version.h>

#define LMS_BUILT_FOR_TEXT(value) #value
#define LMS_BUILT_FOR_VALUE(value) LMS_BUILT_FOR_TEXT(value)

/// Puts into the library, once, what it was built for: torch_lms reads it from the file before it
/// loads it, because a library for another PyTorch fails with the loader's words. `cuda` is
/// CUDART_VERSION, or 0 for a library that works without CUDA.
#define LMS_STATE_BUILT_FOR(cuda)    \
  extern const char lms_built_for[]; \
  const char lms_built_for[] =       \
      "LMS_BUILT_FOR{torch=" TORCH_VERSION ",cuda=" LMS_BUILT_FOR_VALUE(cuda) "}"
