#pragma once

#include <c10/core/Device.h>

#include "base/bytes.h"

namespace lms::torch {

/// Has PyTorch's allocator give back to the driver what it holds free, where that counts under the
/// limit. It keeps every segment in which something is; of a run before LMS that may be a
/// workspace of cuBLAS alone, of 32 MiB in a segment of gigabytes. `first`: LMS is being turned on,
/// so these workspaces may go as well. cuBLAS takes new ones of the same size.
///
/// Not where a CUDA graph may have been captured: it would go on using the old ones. No other
/// thread may be in an operator meanwhile if `first`.
void give_back_unused(c10::Device device, Bytes limit, bool first);

}  // namespace lms::torch
