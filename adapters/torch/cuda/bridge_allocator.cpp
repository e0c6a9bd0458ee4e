#include "adapters/torch/cuda/bridge_allocator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/slices/run_in_place.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

/// Of a device that is managed; else null.
CudaMemory* memory_of(c10::DeviceIndex index) {
  auto* const manager = static_cast<CudaManager*>(active_manager({c10::DeviceType::CUDA, index}));
  return manager != nullptr ? &manager->memory() : nullptr;
}

}  // namespace

BridgeAllocator& BridgeAllocator::instance() {
  static auto* bridge = new BridgeAllocator;
  return *bridge;
}

void BridgeAllocator::install() {
  if (installed_++ > 0) return;
  native_ = c10::cuda::CUDACachingAllocator::get();
  c10::cuda::CUDACachingAllocator::allocator.store(this);
  c10::SetAllocator(c10::DeviceType::CUDA, this);
}

void BridgeAllocator::uninstall() {
  if (--installed_ > 0) return;
  c10::cuda::CUDACachingAllocator::allocator.store(native_);
  c10::SetAllocator(c10::DeviceType::CUDA, native_);
}

c10::DataPtr BridgeAllocator::allocate(size_t n) {
  CudaMemory* memory = n == 0 ? nullptr : memory_of(c10::cuda::current_device());
  if (memory == nullptr) return native_->allocate(n);
  const auto bytes = static_cast<Bytes>(n);
  CudaManager& manager = memory->manager();
  ThreadState& state = thread_state();
  if (state.in_place != nullptr) {
    if (auto data = allocate_in_place(manager, bytes, /*refused=*/false)) return data;
  }
  try {
    if (auto data = memory->allocate(state, n)) return data;
    auto data = memory->with_room<c10::DataPtr>(n, [&] { return native_->allocate(n); });
    memory->note_allocation(data.get(), bytes);
    return data;
  } catch (const c10::Error& error) {
    if (!is_shortage(error)) throw;
    if (auto data = allocate_in_place(manager, bytes, /*refused=*/true)) return data;
    throw;
  }
}

void* BridgeAllocator::raw_alloc(size_t n) {
  CudaMemory* memory = n == 0 ? nullptr : memory_of(c10::cuda::current_device());
  if (memory == nullptr) return native_->raw_alloc(n);
  return memory->with_room<void*>(n, [&] { return native_->raw_alloc(n); });
}

void* BridgeAllocator::raw_alloc_with_stream(size_t n, cudaStream_t stream) {
  CudaMemory* memory = n == 0 ? nullptr : memory_of(c10::cuda::current_device());
  if (memory == nullptr) return native_->raw_alloc_with_stream(n, stream);
  return memory->with_room<void*>(n, [&] { return native_->raw_alloc_with_stream(n, stream); });
}

void BridgeAllocator::emptyCache(Pool pool) {
  native_->emptyCache(pool);
  for (Index device = 0; device < c10::cuda::device_count(); ++device) {
    if (CudaMemory* memory = memory_of(device)) memory->empty_arena();
  }
}

c10::CachingDeviceAllocator::DeviceStats BridgeAllocator::getDeviceStats(Index device) {
  auto stats = native_->getDeviceStats(device);
  CudaMemory* memory = memory_of(device);
  if (memory == nullptr || memory->arena() == nullptr) return stats;
  const DeviceArena& arena = *memory->arena();
  // The two have their peaks at different times; and nothing is in use that is not reserved.
  const auto together = [most = memory->reserved_peak()](Bytes native, Bytes ours) {
    return std::max(native, std::min(native + ours, most));
  };
  using c10::CachingAllocator::StatType;
  for (const StatType type : {StatType::AGGREGATE, StatType::LARGE_POOL}) {
    const auto index = static_cast<std::size_t>(type);
    for (auto* stat : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*stat)[index].current += arena.used();
      (*stat)[index].peak = together((*stat)[index].peak, arena.peak());
      (*stat)[index].allocated += arena.taken();
      (*stat)[index].freed += arena.taken() - arena.used();
    }
    stats.reserved_bytes[index].current += arena.mapped();
    auto& most_reserved = stats.reserved_bytes[index].peak;
    most_reserved = together(most_reserved, arena.mapped_peak());
  }
  return stats;
}

void BridgeAllocator::resetPeakStats(Index device) {
  native_->resetPeakStats(device);
  if (CudaMemory* memory = memory_of(device)) memory->reset_reserved_peak();
}

double BridgeAllocator::getMemoryFraction(Index device) {
  CudaMemory* memory = memory_of(device);
  return memory != nullptr ? memory->manager().memory_fraction()
                           : native_->getMemoryFraction(device);
}

void BridgeAllocator::setMemoryFraction(double fraction, Index device) {
  native_->setMemoryFraction(fraction, device);  // it says what is no fraction
  if (CudaMemory* memory = memory_of(device)) memory->manager().set_memory_fraction(fraction);
}

void BridgeAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  CudaMemory* memory = memory_of(stream.device_index());
  if (memory != nullptr && memory->record_stream(data, stream.stream())) return;
  native_->recordStream(data, stream);
}

void BridgeAllocator::enablePeerAccess(Index from, Index to) {
  native_->enablePeerAccess(from, to);
  if (CudaMemory* memory = memory_of(to)) memory->allow_peer(from);
}

void BridgeAllocator::beginAllocateToPool(Index device, Pool pool,
                                          std::function<bool(cudaStream_t)> filter) {
  if (CudaMemory* memory = memory_of(device)) memory->begin_pool();
  native_->beginAllocateToPool(device, pool, std::move(filter));
}

void BridgeAllocator::endAllocateToPool(Index device, Pool pool) {
  native_->endAllocateToPool(device, pool);
  if (CudaMemory* memory = memory_of(device)) memory->end_pool();
}

}  // namespace lms::torch
