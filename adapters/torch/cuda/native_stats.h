#pragma once

#include <algorithm>

#include "adapters/torch/cuda/bridge_allocator.h"

namespace lms::torch {

/// Smaller allocations come from PyTorch's pool of small blocks, and are let through.
inline constexpr Bytes kLarge = kMiB;
/// PyTorch takes memory from the driver in multiples of this.
inline constexpr Bytes kSegmentUnit = 2 * kMiB;
/// What PyTorch's allocator may grow by, for small allocations, before the arena is told: at most.
inline constexpr Bytes kSlack = 16 * kMiB;
/// The same under a limit.
inline Bytes slack(Bytes limit) { return std::min(kSlack, limit / 64); }

inline Bytes current(const c10::CachingAllocator::StatArray& stat) {
  return stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

inline Bytes peak(const c10::CachingAllocator::StatArray& stat) {
  return stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

/// What PyTorch's own allocator says, without the arena.
inline c10::CachingDeviceAllocator::DeviceStats native_stats(c10::Device device) {
  return BridgeAllocator::instance().native()->getDeviceStats(device.index());
}

}  // namespace lms::torch
