#pragma once

#include <vector>

#include "base/bytes.h"

namespace lms::cuda {

/// Number of CUDA devices that can be used here; 0 without CUDA or without a driver. Never throws.
int device_count() noexcept;

/// NUMA node that the device's link is attached to, or -1 if the system does not say.
int numa_node(int device);

/// Rates of one device's link, in GB/s (1e9), and of pinning new host memory, in GiB/s.
struct LinkRates {
  double to_host = 0;
  double to_device = 0;
  double both_each_way = 0;  ///< each direction, with both busy
  double pinning = 0;
};

/// Moves `bytes` each way through pinned memory several times (takes 2 x `bytes` on the host and on
/// the device). Throws Error where there is no such device or no memory.
LinkRates measure_link(int device, Bytes bytes);

}  // namespace lms::cuda
