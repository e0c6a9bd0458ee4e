// How the bytes of a CUDA block go without a copy, and are computed again.

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/on_device.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/thread_state.h"
#include "cuda/profiler.h"

namespace lms::torch {

using cuda::Event;

bool CudaMover::drop(Block& base, Bytes most) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage || !holds(*storage, block) || block.place == nullptr || manager_.capturing())
    return false;
  if (!manager_.lineages().drop(block, most)) return false;
  const cuda::ScopedRange range("drop", block.size);
  mark_pressed();
  manager_.pilot().wake();
  const OnDevice guard(device_.index());
  memory_.inherit_users(block, block.place);
  release_in_order(block, block.place);
  if (block.slot) block.slot.release(block.last_copy());
  block.copied_in.reset();
  block.being_copied.reset();
  block.streams.clear();
  memory_.arena()->disown(std::exchange(block.place, nullptr));
  storage->set_data_ptr_noswap({nullptr, &block, &delete_absent, device_});
  return true;
}

bool CudaMover::drop_absent(Block& base, Bytes most) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage || !points_below(*storage, block) || !block.slot || manager_.capturing()) {
    return false;
  }
  // Somebody may be writing there, unheard.
  if (any_unseen_calls()) return false;
  const cuda::ScopedRange range("drop below", block.size);
  const int index = device_.index();
  const OnDevice guard(index);
  if (!manager_.lineages().drop(block, most)) return false;
  try {
    // A kernel that LMS cannot see may still be at work on the copy over the bus.
    if (block.slot_used) block.slot_used->block(block.home);
    const auto after = [&](cudaStream_t stream) {
      if (stream != block.home) Event::record(index, stream)->block(block.home);
    };
    after(c10::cuda::getCurrentCUDAStream(index).stream());
    for (const cudaStream_t stream : block.recorded) after(stream);
    block.slot_used = Event::record(index, block.home);
  } catch (...) {
    manager_.lineages().made(block);
    throw;
  }
  c10::DataPtr copy = storage->set_data_ptr({nullptr, &block, &delete_absent, device_});
  copy.release_context();  // the storage lives on; only its address has changed
  block.slot.release(block.last_copy());
  return true;
}

bool CudaMover::rematerialise(Block& base, const std::function<void()>& /*take*/) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage) return false;
  if (!points_below(*storage, block)) return false;
  if (manager_.capturing()) {
    throw Error("LMS: a graph capture uses a tensor of " + format_bytes(block.size) +
                " that would have to be computed again");
  }
  const cuda::ScopedRange range("rematerialise", block.size);
  const OnDevice guard(device_.index());
  manager_.in_order([&] {
    const Lineages::Made made =
        manager_.lineages().remake(block, manager_.pilot().addresses_for(block));
    adopt(block, *made.storage, *storage);
  });
  manager_.lineages().made(block);
  return true;
}

void CudaMover::adopt(CudaBlock& block, c10::StorageImpl& made, c10::StorageImpl& storage) {
  EngineLock lock = engine_.lock();
  void* const data = made._mutable_data_ptr_no_checks().get();
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  block.streams = {current};
  if (auto* const other = static_cast<CudaBlock*>(manager_.find(lock, made))) {
    // The kernel's parts have used it; it was a block of its own.
    block.streams = other->streams;
    other->place = nullptr;
    manager_.forget(lock, made, *other);
  }
  // Whoever uses them on another stream waits until they have been computed.
  block.copied_in = Event::record(device_.index(), current);
  if (memory_.arena()->owns(data)) {
    block.place = data;
    memory_.arena()->hand_over(data, block);
  }
  memory_.claim(block, made._mutable_data_ptr_no_checks(), current);
  c10::DataPtr dropped = storage.set_data_ptr(made.set_data_ptr({nullptr, device_}));
  dropped.release_context();  // the storage lives on; only its address has changed
}

}  // namespace lms::torch
