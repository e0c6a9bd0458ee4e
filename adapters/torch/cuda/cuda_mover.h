#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "adapters/torch/cuda/cuda_block.h"
#include "adapters/torch/cuda/cuda_memory.h"
#include "cuda/lane.h"
#include "engine/mover.h"
#include "tiers/host_arena.h"

namespace lms::torch {

class CudaManager;

/// How the bytes of CUDA blocks move: to pinned host memory and back, within the arena, or away and
/// computed again.
///
/// Stream order, which is all that keeps the bytes right: a copy out starts after everything that
/// is queued on the streams that have used the block, and the stream that owns the memory goes on
/// only after the copy, so that the allocator may hand the memory out again at once. A copy in
/// starts after what the current stream and the memory's owner have queued (the memory may still be
/// in use there) and after the copy out; the current stream, and later every other stream that uses
/// the block, goes on only after it. The host never waits.
class CudaMover final : public Mover {
 public:
  CudaMover(CudaManager& manager, Engine& engine, CudaMemory& memory, c10::Device device);

  /// Host memory for `limit` bytes of blocks, until stop(), which frees it at once: copies must
  /// have ended (finish()).
  void start(Bytes limit);
  void stop() { host_.reset(); }
  void set_limit(Bytes limit) { host_->set_limit(limit); }
  /// Waits for all copies.
  void finish();
  /// Copies take so many times as long.
  void slow_down(double out, double in);

  std::optional<Bytes> page_out(Block& block, bool clean) override;
  std::optional<Bytes> copy_below(Block& block) override;
  std::optional<Bytes> page_in(Block& block, bool ahead) override;
  bool relocate(Block& block) override;
  bool drop(Block& block, Bytes most) override;
  bool drop_absent(Block& block, Bytes most) override;
  [[nodiscard]] bool drops_absent() const override { return true; }
  bool rematerialise(Block& block, const std::function<void()>& take) override;
  void drop_copy(Block& block) noexcept override;
  bool copy_matches(Block& block) override;

  /// The storage points at where its bytes have been fetched to from now on, if they have.
  void arrive(CudaBlock& block, c10::StorageImpl& storage);
  /// Likewise every storage; `held` must outlive the lock.
  void arrive_all(EngineLock& lock, std::vector<c10::intrusive_ptr<c10::StorageImpl>>& held);
  /// There is room below for copies of what is on the device.
  [[nodiscard]] bool keeps_copies() const;
  /// Room below for bytes of a block. Throws TierFull.
  HostSlot take_slot(Bytes bytes);
  [[nodiscard]] cuda::Lane& lane_in() { return *in_; }
  [[nodiscard]] cuda::Lane& lane_out() { return *out_; }
  /// Of storages whose bytes are below; the context is their block.
  static void delete_absent(void* context);

  void reset_peak() { host_->reset_peak(); }
  void add_stats(std::map<std::string, std::int64_t>& stats) const;

 private:
  /// Device memory of the block's size, in the arena or from PyTorch's allocator for `owner`. With
  /// `ahead` nothing leaves for it. Throws OutOfMemory.
  c10::DataPtr take_place(CudaBlock& block, cudaStream_t owner, bool in_arena, bool ahead);
  /// The storage still has the memory on the device that the block stands for.
  [[nodiscard]] bool holds(const c10::StorageImpl& storage, const CudaBlock& block) const;
  /// The storage points at the block's bytes below, or at nothing where they have been dropped.
  [[nodiscard]] static bool points_below(const c10::StorageImpl& storage, const CudaBlock& block);
  /// The next user of the block's memory comes after everybody who has used it.
  void release_in_order(CudaBlock& block, const void* data);
  /// All who may come to use the block's storage are among its streams, and wait for its arrival.
  void gather_users(CudaBlock& block, const void* data);
  /// Likewise; and the out lane waits for everybody who has used the block.
  void prepare_copy_out(CudaBlock& block, const void* data);
  /// As take_slot(), but for what the pilot hears.
  HostSlot acquire(Bytes bytes);
  /// Moves blocks below until `bytes` are free in one piece. False if that cannot be.
  bool gather(Bytes bytes);
  /// One that is lent to the caller. Throws TierFull, with nothing changed.
  void move_below(CudaBlock& block, c10::StorageImpl& storage);
  cuda::EventPtr copy_out(const CudaBlock& block, const HostSlot& to, const void* from);
  cuda::EventPtr copy_in(const CudaBlock& block, void* to);
  /// What has been computed again becomes the block's.
  void adopt(CudaBlock& block, c10::StorageImpl& made, c10::StorageImpl& storage);

  CudaManager& manager_;
  Engine& engine_;
  CudaMemory& memory_;
  const c10::Device device_;
  std::optional<cuda::Lane> out_;
  std::optional<cuda::Lane> in_;
  std::optional<HostArena> host_;
  std::atomic<std::int64_t> host_allocated_{0};  ///< bytes of all slots ever taken
  std::mutex gathering_;                         ///< one gathers; never with the engine's lock
  std::atomic<std::int64_t> host_moved_{0};      ///< bytes
};

}  // namespace lms::torch
