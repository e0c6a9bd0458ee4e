#include "adapters/torch/cuda/cuda_below.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/unused_memory.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

using cuda::Event;

cudaStream_t CudaBelow::current() const {
  return c10::cuda::getCurrentCUDAStream(device_.index()).stream();
}

Below::Made CudaBelow::make(Bytes bytes) {
  Engine& engine = manager_.engine();
  HostSlot slot = take_below(engine, bytes, [&] { return mover_.take_slot(bytes); });
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes), c10::DataPtr{nullptr, device_},
      c10::cuda::CUDACachingAllocator::get(), /*resizable=*/true);
  CudaBlock& block = add(*storage, std::move(slot), bytes);
  return {std::move(storage), &block};
}

CudaBlock& CudaBelow::add(c10::StorageImpl& storage, HostSlot slot, Bytes bytes) {
  auto made = std::make_unique<CudaBlock>(manager_, storage, bytes);
  made->slot = std::move(slot);
  made->home = current();
  made->uid = Pilot::new_uid();
  EngineLock lock = manager_.engine().lock(may_wait_as());
  CudaBlock& block = manager_.add_lent(lock, std::move(made));
  storage.set_data_ptr_noswap({block.slot.data(), &block, &CudaMover::delete_absent, device_});
  return block;
}

Below::Copy CudaBelow::read(Block& base, Bytes offset, void* to, Bytes bytes) {
  auto& block = static_cast<CudaBlock&>(base);
  const c10::cuda::CUDAGuard guard(device_.index());
  cuda::Lane& lane = mover_.lane_in();
  lane.wait_for(Event::record(device_.index(), current()));
  lane.wait_for(block.copied_out);
  return lane.copy(to, static_cast<const char*>(block.slot.data()) + offset, bytes);
}

Below::Copy CudaBelow::write(Block& base, Bytes offset, const void* from, Bytes bytes) {
  auto& block = static_cast<CudaBlock&>(base);
  const c10::cuda::CUDAGuard guard(device_.index());
  cuda::Lane& lane = mover_.lane_out();
  lane.wait_for(Event::record(device_.index(), current()));
  // A block that has just left is copied by this lane; one that was read before, by the other.
  lane.wait_for(block.slot_used);
  return lane.copy(static_cast<char*>(block.slot.data()) + offset, from, bytes);
}

void CudaBelow::wait(const Copy& copy) {
  if (!copy) return;
  const c10::cuda::CUDAGuard guard(device_.index());
  static_cast<const Event*>(copy.get())->block(current());
}

void CudaBelow::end(Block& base, bool written) {
  auto& block = static_cast<CudaBlock&>(base);
  const c10::cuda::CUDAGuard guard(device_.index());
  // On another stream kernels may still be reading it where it lies.
  if (block.slot_used) block.slot_used->block(current());
  block.slot_used = Event::record(device_.index(), current());
  if (written) block.copied_out = block.slot_used;
}

// Where kernels work on what lies here

struct CudaBelow::Allocated {
  CudaBelow& below;
  HostSlot slot;
};

void CudaBelow::delete_allocated(void* context) {
  const std::unique_ptr<Allocated> allocated(static_cast<Allocated*>(context));
  try {
    const int index = allocated->below.device_.index();
    const c10::cuda::CUDAGuard guard(index);
    allocated->slot.release(Event::record(index, allocated->below.current()));
  } catch (const std::exception&) {
    // The runtime is being torn down: nothing runs any more.
  }
}

bool CudaBelow::addressable(const void* data) {
  if (addressable_ < 0) {
    const c10::cuda::CUDAGuard guard(device_.index());
    cudaPointerAttributes attributes{};
    const auto code = cudaPointerGetAttributes(&attributes, data);
    if (code != cudaSuccess) (void)cudaGetLastError();
    addressable_ = code == cudaSuccess && attributes.devicePointer == data ? 1 : 0;
  }
  return addressable_ > 0;
}

bool CudaBelow::begin(Block& base, bool writes) {
  auto& block = static_cast<CudaBlock&>(base);
  if (!addressable(block.slot.data())) return false;
  const c10::cuda::CUDAGuard guard(device_.index());
  if (block.copied_out) block.copied_out->block(current());
  // A copy that has come back from it may still be reading it.
  if (writes && block.slot_used) block.slot_used->block(current());
  return true;
}

Bytes CudaBelow::most_kept_by_libraries() const { return most_kept_by_cublas(); }

c10::DataPtr CudaBelow::allocate(Bytes bytes) {
  HostSlot slot = take_below(manager_.engine(), bytes, [&] { return mover_.take_slot(bytes); });
  if (!addressable(slot.data())) return {};
  void* const data = slot.data();
  return {data, new Allocated{*this, std::move(slot)}, &delete_allocated, device_};
}

Block* CudaBelow::adopt(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (data.get_deleter() != &delete_allocated) return nullptr;
  const c10::cuda::CUDAGuard guard(device_.index());
  const std::unique_ptr<Allocated> allocated(static_cast<Allocated*>(data.release_context()));
  return &add(storage, std::move(allocated->slot), static_cast<Bytes>(storage.nbytes()));
}

}  // namespace lms::torch
