#include "adapters/torch/cuda/bridge_allocator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "adapters/torch/cuda/cuda_manager.h"

namespace lms::torch {
namespace {

CudaManager* manager_on(c10::DeviceIndex index) {
  return static_cast<CudaManager*>(active_manager({c10::DeviceType::CUDA, index}));
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
  CudaManager* manager = n == 0 ? nullptr : manager_on(c10::cuda::current_device());
  if (manager == nullptr) return native_->allocate(n);
  auto data = manager->with_room<c10::DataPtr>(n, [&] { return native_->allocate(n); });
  if (manager->in_pool()) manager->exclude(data.get());
  if (static_cast<Bytes>(n) >= manager->min_block()) {
    manager->note_allocation(data.get(),
                             c10::cuda::getCurrentCUDAStream(manager->device().index()).stream());
  }
  return data;
}

void* BridgeAllocator::raw_alloc(size_t n) {
  CudaManager* manager = n == 0 ? nullptr : manager_on(c10::cuda::current_device());
  if (manager == nullptr) return native_->raw_alloc(n);
  return manager->with_room<void*>(n, [&] { return native_->raw_alloc(n); });
}

void* BridgeAllocator::raw_alloc_with_stream(size_t n, cudaStream_t stream) {
  CudaManager* manager = n == 0 ? nullptr : manager_on(c10::cuda::current_device());
  if (manager == nullptr) return native_->raw_alloc_with_stream(n, stream);
  return manager->with_room<void*>(n, [&] { return native_->raw_alloc_with_stream(n, stream); });
}

void BridgeAllocator::beginAllocateToPool(Index device, Pool pool,
                                          std::function<bool(cudaStream_t)> filter) {
  if (CudaManager* manager = manager_on(device)) manager->begin_pool();
  native_->beginAllocateToPool(device, pool, std::move(filter));
}

void BridgeAllocator::endAllocateToPool(Index device, Pool pool) {
  native_->endAllocateToPool(device, pool);
  if (CudaManager* manager = manager_on(device)) manager->end_pool();
}

}  // namespace lms::torch
