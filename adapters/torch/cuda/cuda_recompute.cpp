// How the bytes of a CUDA block go without a copy, and are computed again.

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"

namespace lms::torch {

void CudaManager::remake_ghost(BlockUid uid, const std::vector<Bytes>& addresses) {
  const c10::cuda::CUDAGuard guard(device_.index());
  in_order([&] { lineages().remake_ghost(uid, addresses); });
}

bool CudaManager::records_here() {
  return !capturing() && serves(c10::cuda::getCurrentCUDAStream(device_.index()).stream());
}

void CudaManager::in_order(const std::function<void()>& work) {
  const auto index = device_.index();
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(index).stream();
  const cudaStream_t main = main_stream_;
  if (current == main || !has_main_stream_) {
    work();
    return;
  }
  const c10::cuda::CUDAGuard here(index);
  cuda::Event::record(index, current)->block(main);
  {
    const c10::cuda::CUDAStreamGuard guard(stream_of(main));
    work();
  }
  cuda::Event::record(index, main)->block(current);
}

void CudaManager::drop_ghost(BlockUid uid) { lineages().drop_ghost(uid); }

void CudaManager::drop_ghosts() { lineages().drop_ghosts(); }

bool CudaManager::announces_death(const Block& block) const {
  // PyTorch's own memory dies without a word.
  return static_cast<const CudaBlock&>(block).place != nullptr || is_away(block.state);
}

bool CudaManager::drop(Block& base, Bytes most) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage || !holds(*storage, block) || block.place == nullptr || capturing()) return false;
  if (!lineages().drop(block, most)) return false;
  const cuda::ScopedRange range("drop", block.size);
  mark_pressed();
  pilot_.wake();
  const c10::cuda::CUDAGuard guard(device_.index());
  inherit_users(block, block.place);
  release_in_order(block, block.place);
  if (block.slot) block.slot.release(block.last_copy());
  block.copied_in.reset();
  block.being_copied.reset();
  block.streams.clear();
  arena_->disown(std::exchange(block.place, nullptr));
  storage->set_data_ptr_noswap({nullptr, &block, &delete_absent, device_});
  return true;
}

bool CudaManager::rematerialise(Block& base, const std::function<void()>& /*take*/) {
  auto& block = static_cast<CudaBlock&>(base);
  auto storage = block.storage.lock();
  if (!storage) return false;
  {
    const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
    if (data.get_deleter() != &delete_absent || data.get_context() != &block) return false;
  }
  if (capturing()) {
    throw Error("LMS: a graph capture uses a tensor of " + format_bytes(block.size) +
                " that would have to be computed again");
  }
  const cuda::ScopedRange range("rematerialise", block.size);
  const c10::cuda::CUDAGuard guard(device_.index());
  in_order([&] {
    const Lineages::Made made = lineages().remake(block, pilot_.addresses_for(block));
    adopt(block, *made.storage, *storage);
  });
  lineages().made(block);
  return true;
}

void CudaManager::adopt(CudaBlock& block, c10::StorageImpl& made, c10::StorageImpl& storage) {
  EngineLock lock = engine_.lock();
  void* const data = made._mutable_data_ptr_no_checks().get();
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  block.streams = {current};
  if (const auto found = blocks_.find(&made); found != blocks_.end()) {
    // The kernel's parts have used it; it was a block of its own.
    CudaBlock& other = *found->second;
    block.streams = other.streams;
    other.place = nullptr;
    engine_.remove(lock, other);
    blocks_.erase(&made);
  }
  // Whoever uses them on another stream waits until they have been computed.
  block.copied_in = cuda::Event::record(device_.index(), current);
  if (arena_->owns(data)) {
    block.place = data;
    arena_->hand_over(data, block);
  }
  claim(block, made._mutable_data_ptr_no_checks(), current);
  c10::DataPtr dropped = storage.set_data_ptr(made.set_data_ptr({nullptr, device_}));
  dropped.release_context();  // the storage lives on; only its address has changed
}

bool CudaManager::keep_for_lineages(CudaBlock& block, BlockUid uid, c10::DataPtr data) {
  Lineages::Trash trash;  // destroyed after the lock is let go
  EngineLock lock = engine_.lock();
  if (!engine_.knows(lock, &block, uid) || !lineages().keep_bytes(block, trash)) {
    (void)data.release_context();
    return false;
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(block.size), std::move(data),
      c10::cuda::CUDACachingAllocator::get(), /*resizable=*/false);
  blocks_.erase(block.key);
  block.key = storage.get();
  block.storage = c10::weak_intrusive_ptr<c10::StorageImpl>(storage);
  blocks_.emplace(block.key, &block);
  trash.origins.push_back(lineages().keep(block, std::move(storage)));
  return true;
}

}  // namespace lms::torch
