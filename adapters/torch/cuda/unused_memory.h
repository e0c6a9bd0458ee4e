#pragma once

#include <c10/core/Device.h>

#include "base/bytes.h"

namespace lms::torch {

/// Has PyTorch's allocator give back to the driver what it holds free, if it holds more than the
/// limit or LMS is being turned on (`first`) and it is much. It keeps every segment in which
/// something is; of a run before LMS that may be a workspace of cuBLAS alone, of 32 MiB in a
/// segment of gigabytes. So `first` these workspaces go as well, and cuBLAS takes new ones of the
/// same size; not where a CUDA graph may have been captured, which would go on using the old ones.
///
/// Under the registry's lock. No other thread may be in an operator meanwhile if `first`.
void give_back_unused(c10::Device device, Bytes limit, bool first);

/// The size of the largest workspace that cuBLAS, once it has needed one, keeps for its thread.
Bytes most_kept_by_cublas();

}  // namespace lms::torch
