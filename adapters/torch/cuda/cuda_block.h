#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>

#include "adapters/torch/operators/call.h"
#include "cuda/event.h"
#include "engine/block.h"
#include "tiers/host_arena.h"

namespace lms::torch {

class CudaManager;

/// The bytes behind one CUDA storage. The storage's own DataPtr tells where they are: on the device
/// it is PyTorch's, as allocated; while absent, and until somebody uses what has been fetched
/// ahead, it points at the pinned host copy, so that kernels which LMS cannot see read and write
/// the right bytes over the bus.
class CudaBlock final : public StorageBlock {
 public:
  CudaBlock(CudaManager& manager, c10::StorageImpl& storage, Bytes size)
      : StorageBlock(size),
        key(&storage),
        storage(c10::weak_intrusive_ptr<c10::StorageImpl>(
            c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage))),
        manager_(manager) {}
  ~CudaBlock() override {
    if (slot) slot.release(last_copy());
  }

  // They come and go with every tensor: their memory is kept.
  static void* operator new(std::size_t size);
  static void operator delete(void* block, std::size_t size) noexcept;

  /// While `ahead` is there, its storage's end (delete_absent) still needs the block.
  [[nodiscard]] bool alive() const override { return !storage.expired() || ahead_of_use; }
  /// Its storage pointed below, and delete_absent() is about to be called, or is waiting.
  [[nodiscard]] bool end_comes() const override {
    return storage.expired() && (ahead_of_use || is_away(state) || state == BlockState::kArriving);
  }
  void forgotten() noexcept override;
  [[nodiscard]] CudaManager& manager() const { return manager_; }

  /// The last copy from or to the slot, after which its memory may serve others.
  [[nodiscard]] const cuda::EventPtr& last_copy() const { return slot_used; }

  [[nodiscard]] bool used_on(cudaStream_t stream) const {
    return std::ranges::find(streams, stream) != streams.end();
  }
  void record(cudaStream_t stream) {
    if (std::ranges::find(recorded, stream) == recorded.end()) recorded.push_back(stream);
  }

  c10::StorageImpl* key;
  /// Also keeps the address of the storage from being used again.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  HostSlot slot;
  cuda::EventPtr copied_out;  ///< the copy below is complete
  cuda::EventPtr copied_in;   ///< the bytes on the device are complete; null if never absent
  cuda::EventPtr slot_used;   ///< the later of the two
  /// A copy out may still be reading the bytes on the device: whoever writes them waits.
  cuda::EventPtr being_copied;
  /// Where the bytes have been fetched to, as long as nobody has used them there, and their storage
  /// still points at the copy, which no flag mentions. Guarded by the engine's lock.
  c10::DataPtr ahead;
  bool ahead_of_use = false;  ///< there is `ahead`
  void* place = nullptr;      ///< the bytes' place in the arena; null if they are elsewhere
  bool place_given = false;   ///< it is free again, as the block dies
  /// Streams that have used the device bytes since they came; each has waited for copied_in.
  c10::SmallVector<cudaStream_t, 2> streams;
  /// The stream on which the program allocated the storage: its work comes before the death,
  /// wherever the bytes are by then.
  cudaStream_t home = nullptr;
  /// Streams whose work comes before the death as well, says the program (record_stream): known of
  /// the memory (DeviceArena::Stay, or PyTorch's allocator) while the bytes have some, and kept
  /// here when they leave it.
  c10::SmallVector<cudaStream_t, 2> recorded;

 private:
  CudaManager& manager_;
};

}  // namespace lms::torch
