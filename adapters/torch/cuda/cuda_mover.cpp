// How the bytes of a CUDA block move.

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/registry.h"

namespace lms::torch {

using cuda::Event;

void CudaManager::delete_absent(void* context) {
  auto* block = static_cast<CudaBlock*>(context);
  auto& manager = block->manager_;
  try {
    // A kernel that LMS cannot see may still be reading the copy over the bus, on this stream.
    const c10::cuda::CUDAGuard guard(manager.device_.index());
    const auto stream = c10::cuda::getCurrentCUDAStream(manager.device_.index()).stream();
    if (block->copied_out) block->copied_out->block(stream);
    block->copied_in = Event::record(manager.device_.index(), stream);
  } catch (const std::exception&) {
    // The runtime is being torn down: nothing runs any more.
  }
  EngineLock lock = manager.engine_.lock();
  manager.engine_.remove(lock, *block);
}

std::optional<Bytes> CudaManager::page_out(Block& base, bool clean) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage) return std::nullopt;
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != native_deleter_ || data.get() == nullptr ||
      static_cast<Bytes>(storage->nbytes()) != block.size) {
    return std::nullopt;
  }
  mark_pressed();
  const int index = device_.index();
  const c10::cuda::CUDAGuard guard(device_.index());
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  const cudaStream_t owner = owner_of(data.get());
  Bytes copied = 0;
  if (clean) {
    // What other streams still read must not be handed out by the owner's pool.
    for (cudaStream_t stream : block.streams) {
      if (stream != owner) Event::record(index, stream)->block(owner);
    }
  } else {
    HostSlot slot = arena_->acquire(block.size);
    host_allocated_ += round_up(block.size, HostArena::kAlignment);
    if (!block.used_on(current)) block.streams.push_back(current);
    if (!block.used_on(owner)) block.streams.push_back(owner);
    for (cudaStream_t stream : block.streams) out_->wait_for(Event::record(index, stream));
    block.copied_out = out_->copy(slot.data(), data.get(), block.size);
    for (cudaStream_t stream : block.streams) block.copied_out->block(stream);
    block.slot = std::move(slot);
    copied = block.size;
  }
  block.copied_in.reset();
  block.streams.clear();
  storage->set_data_ptr_noswap({block.slot.data(), &block, &delete_absent, device_});
  return copied;
}

std::optional<Bytes> CudaManager::page_in(Block& base, bool keep_copy) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage) return std::nullopt;
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &delete_absent || data.get_context() != &block) return std::nullopt;
  if (capturing()) {
    throw Error("LMS: a graph capture uses a tensor of " + format_bytes(block.size) +
                " that is not on the device and does not fit there; raise the limit, or free "
                "memory before the capture");
  }
  const int index = device_.index();
  const c10::cuda::CUDAGuard guard(device_.index());
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  c10::DataPtr fresh =
      c10::cuda::CUDACachingAllocator::get()->allocate(static_cast<std::size_t>(block.size));
  in_->wait_for(Event::record(index, current));
  in_->wait_for(block.copied_out);
  block.copied_in = in_->copy(fresh.get(), block.slot.data(), block.size);
  block.copied_in->block(current);
  block.streams = {current};

  c10::DataPtr absent = storage->set_data_ptr(std::move(fresh));
  absent.release_context();  // the storage lives on; only its address has changed
  const auto host = arena_->stats();
  block.has_copy = keep_copy && host.used <= host.limit / 4 * 3;
  if (!block.has_copy) block.slot.release(block.copied_in);
  return block.size;
}

void CudaManager::drop_copy(Block& base) noexcept {
  auto& block = static_cast<CudaBlock&>(base);
  block.slot.release(block.last_copy());
}

bool CudaManager::copy_matches(Block& base) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage || !block.slot) return true;
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != native_deleter_ ||
      static_cast<Bytes>(storage->nbytes()) != block.size) {
    return true;
  }
  const c10::cuda::CUDAGuard guard(device_.index());
  HostSlot slot = arena_->acquire(block.size);
  for (cudaStream_t stream : block.streams) {
    out_->wait_for(Event::record(device_.index(), stream));
  }
  out_->copy(slot.data(), data.get(), block.size)->wait();
  return std::memcmp(slot.data(), block.slot.data(), static_cast<std::size_t>(block.size)) == 0;
}

}  // namespace lms::torch
