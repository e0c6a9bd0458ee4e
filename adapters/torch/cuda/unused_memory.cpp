#include "adapters/torch/cuda/unused_memory.h"

#include <ATen/cuda/MemPool.h>

#include <algorithm>
#include <cstddef>

#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/native_stats.h"

// Of <ATen/cuda/CUDAContextLight.h>, which includes all of CUDA's libraries: not everybody who
// builds has their headers.
namespace at::cuda {
void clearCublasWorkspaces();
std::size_t getChosenWorkspaceSize();
std::size_t getCUDABlasLtWorkspaceSize();
}  // namespace at::cuda

namespace lms::torch {
namespace {

/// What is worth a call of the driver: this part of the limit.
constexpr Bytes kWorth = 16;

Bytes unused(c10::Device device) {
  const auto stats = native_stats(device);
  return current(stats.reserved_bytes) - current(stats.allocated_bytes);
}

/// Each graph, and each pool, has taken a number, of one of two rows that count up from 1. Under
/// the registry's lock.
bool any_graph_or_pool() {
  static c10::CaptureId_t asked = 0;
  const c10::CaptureId_t first = ++asked;
  const c10::CaptureId_t of_users = at::cuda::MemPool::graph_pool_handle(true).second;
  const c10::CaptureId_t of_graphs = at::cuda::MemPool::graph_pool_handle(false).first;
  return of_users != first || of_graphs != first;
}

}  // namespace

void give_back_unused(c10::Device device, Bytes limit, bool first) {
  auto* const native = BridgeAllocator::instance().native();
  const Bytes worth = limit / kWorth;
  // To give back waits for the device: between two steps not without need.
  const bool much = first && unused(device) > worth;
  if (current(native_stats(device).reserved_bytes) <= limit && !much) return;
  native->emptyCache({0, 0});
  if (!first || unused(device) <= worth || any_graph_or_pool()) return;
  at::cuda::clearCublasWorkspaces();
  native->emptyCache({0, 0});
}

Bytes most_kept_by_cublas() {
  return static_cast<Bytes>(
      std::max(at::cuda::getChosenWorkspaceSize(), at::cuda::getCUDABlasLtWorkspaceSize()));
}

}  // namespace lms::torch
