// Host memory in one piece, where what is free lies in many: blocks below move there.

#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <utility>

#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/cuda_mover.h"
#include "adapters/torch/cuda/on_device.h"

namespace lms::torch {

using cuda::Event;

HostSlot CudaMover::acquire(Bytes bytes) {
  const auto counted = [&](HostSlot slot) {
    host_allocated_ += host_slot_bytes(bytes);
    return slot;
  };
  try {
    return counted(host_->acquire(bytes));
  } catch (const TierFull&) {
    if (const auto host = host_->stats(); host.limit - host.used < bytes) throw;
  }
  const std::lock_guard lock(gathering_);
  try {
    return counted(host_->acquire(bytes));  // another has gathered meanwhile
  } catch (const TierFull&) {
    if (!gather(bytes)) throw;
  }
  return counted(host_->acquire(bytes));
}

bool CudaMover::gather(Bytes bytes) {
  if (manager_.capturing()) return false;
  const auto each = [&](EngineLock& lock, auto visit) {
    engine_.for_each(lock, [&](Block& base) {
      auto& block = static_cast<CudaBlock&>(base);
      if (block.state != BlockState::kAbsent || block.pins > 0 || block.died || !block.slot) return;
      visit(block);
    });
  };
  std::vector<HostRange> movable;
  {
    EngineLock lock = engine_.lock();
    each(lock, [&](CudaBlock& block) {
      movable.push_back({block.slot.data(), block.slot.size()});
    });
  }
  const HostGathering gathering = host_->gather(bytes, movable);
  if (!gathering) return false;

  struct Moving {
    CudaBlock* block;
    c10::intrusive_ptr<c10::StorageImpl> storage;
  };
  std::vector<Moving> moving;
  std::vector<Use> uses;
  {
    EngineLock lock = engine_.lock();
    each(lock, [&](CudaBlock& block) {
      if (!gathering.contains(block.slot.data())) return;
      auto storage = block.storage.lock();
      if (!storage) return;
      moving.push_back({&block, std::move(storage)});
      uses.push_back({&block, false});
    });
    engine_.lend(lock, uses);  // all are absent: nothing is waited for
  }
  const auto end = [&] {
    moving.clear();  // whose storage has nobody else comes for the engine's lock
    EngineLock lock = engine_.lock();
    engine_.give_back_as_it_was(lock, uses);
  };
  try {
    for (const Moving& one : moving) move_below(*one.block, *one.storage);
  } catch (const TierFull&) {
    end();  // too many pieces, or others have been faster
    return false;
  } catch (...) {
    end();
    throw;
  }
  end();
  return true;
}

void CudaMover::move_below(CudaBlock& block, c10::StorageImpl& storage) {
  if (!points_below(storage, block)) return;
  const int index = device_.index();
  const OnDevice guard(index);
  HostSlot slot = host_->acquire(block.size);
  // Kernels that LMS cannot see may be working on it where it lies.
  const auto after = [&](cudaStream_t stream) { Event::record(index, stream)->wait(); };
  after(c10::cuda::getCurrentCUDAStream(device_.index()).stream());
  after(block.home);
  for (const cudaStream_t stream : block.recorded) after(stream);
  if (block.copied_out) block.copied_out->wait();
  if (block.slot_used) block.slot_used->wait();
  std::memcpy(slot.data(), block.slot.data(), static_cast<std::size_t>(block.size));
  c10::DataPtr before = storage.set_data_ptr({slot.data(), &block, &delete_absent, device_});
  before.release_context();  // the storage lives on; only its address has changed
  block.slot.release(nullptr);
  block.slot = std::move(slot);
  host_moved_ += block.size;
}

}  // namespace lms::torch
