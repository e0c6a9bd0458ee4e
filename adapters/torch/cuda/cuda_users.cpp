// Whose memory is whose: the streams that use it, and what they have done before it is free.

#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <optional>

#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/cuda_memory.h"
#include "adapters/torch/cuda/on_device.h"
#include "adapters/torch/replay/lineages.h"
#include "cuda/event.h"

namespace lms::torch {

bool CudaMemory::record_stream(const c10::DataPtr& data, cudaStream_t stream) {
  if (data.get_deleter() == &CudaMover::delete_absent) {
    EngineLock lock = engine_.lock();
    static_cast<CudaBlock*>(data.get_context())->record(stream);
    return true;
  }
  if (arena_ && arena_->owns(data.get())) {
    arena_->add_user(data.get(), stream);
    return true;
  }
  owners_.add_user(data.get(), stream);
  return false;
}

void CudaMemory::inherit_users(CudaBlock& block, const void* data) {
  if (block.place != nullptr) {
    for (const cudaStream_t stream : arena_->users_of(block.place)) block.record(stream);
    return;
  }
  for (const cudaStream_t stream : owners_.take_users(data)) block.record(stream);
}

c10::cuda::CUDAStream CudaMemory::stream_of(cudaStream_t stream) const {
  return stream == nullptr ? c10::cuda::getDefaultCUDAStream(device_.index())
                           : c10::cuda::getStreamFromExternal(stream, device_.index());
}

void CudaMemory::claim(const CudaBlock& block, const c10::DataPtr& data, cudaStream_t owner) {
  const auto add = [&](cudaStream_t stream) {
    if (stream == owner) return;
    if (block.place != nullptr) {
      arena_->add_user(block.place, stream);
    } else {
      BridgeAllocator::instance().native()->recordStream(data, stream_of(stream));
    }
  };
  add(block.home);
  for (const cudaStream_t stream : block.recorded) add(stream);
}

void CudaMemory::used_late(c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (data.get_deleter() != native_deleter_ || owner_of(data.get()) == main_stream_) return;
  BridgeAllocator::instance().native()->recordStream(data, stream_of(main_stream_));
}

void CudaMemory::note_allocation(void* data, Bytes bytes) {
  const bool pooled = in_pool();
  if (!pooled && bytes < manager_.min_block()) return;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  owners_.allocated(data, stream, pooled, /*large=*/bytes >= manager_.min_block());
}

cudaStream_t CudaMemory::owner_of(const void* data) {
  return arena_ && arena_->owns(data) ? main_stream_.load() : owners_.owner_of(data);
}

bool CudaMemory::is_beside(const void* data) {
  return has_main_stream_.load(std::memory_order_acquire) &&
         owners_.is_beside(data, main_stream_.load());
}

bool CudaMemory::on_device(const c10::DataPtr& data) const {
  const auto deleter = data.get_deleter();
  return deleter == native_deleter_ || deleter == &delete_in_arena;
}

void CudaMemory::delete_in_arena(void* data) {
  CudaMemory* memory = owner_among_all(data);
  if (memory == nullptr) return;
  CudaManager& manager = memory->manager_;
  const auto stay = memory->arena_->look(data);
  if (!stay) return;
  const auto give = [&](const cuda::EventPtr& being_copied) {
    try {
      std::optional<OnDevice> guard;
      if (stay->arriving || being_copied || !stay->users.empty()) {
        guard.emplace(memory->device_.index());
      }
      const cudaStream_t main = memory->main_stream_;
      // The main stream's next user of these addresses comes after everybody. Another thread may be
      // that user as soon as they are given back.
      for (const cuda::EventPtr& copy : {stay->arriving, being_copied}) {
        if (copy) memory->wait_on(main, copy);
      }
      for (const cudaStream_t stream : stay->users) {
        if (stream != main) cuda::Event::record(memory->device_.index(), stream)->block(main);
      }
    } catch (const std::exception&) {
      // The runtime is being torn down: nothing runs any more.
    }
    memory->laps_.note(memory->used_by_plan());
    memory->arena_->give(data);
  };
  if (stay->block == nullptr) {
    give(nullptr);
  } else {
    EngineLock lock = memory->engine_.lock();
    bool known = memory->engine_.knows(lock, stay->block, stay->uid);
    if (known && manager.lineages().any() && stay->block->origin) {
      lock.unlock();
      if (manager.keep_for_lineages(*stay->block, stay->uid,
                                    {data, data, &delete_in_arena, memory->device_})) {
        return;
      }
      lock.lock();
      known = memory->engine_.knows(lock, stay->block, stay->uid);
    }
    // A copy that has been begun ahead may still be reading the bytes.
    give(known ? stay->block->being_copied : nullptr);
    // Whoever waits for room hears of it when it is there.
    if (known) {
      stay->block->place_given = true;
      memory->engine_.remove(lock, *stay->block);
    }
  }
  manager.pilot().released(stay->uid);
  if (manager.on() || memory->arena_->used() > 0) return;
  try {
    memory->empty_arena();
  } catch (const std::exception&) {
    // As above.
  }
}

void CudaMemory::wait_on(cudaStream_t stream, const cuda::EventPtr& event) {
  if (!laps_.running()) {
    event->block(stream);
    return;
  }
  const OnDevice guard(device_.index());  // events for times are its own
  laps_.wait(stream, *event);
}

}  // namespace lms::torch
