#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "adapters/torch/cuda/cuda_block.h"
#include "adapters/torch/device_manager.h"
#include "cuda/lane.h"

namespace lms::torch {

/// CUDA storages of one device, with pinned host memory below.
///
/// Stream order, which is all that keeps the bytes right: a copy out starts after everything that
/// is queued on the streams that have used the block, and the stream that owns the memory goes on
/// only after the copy, so that the allocator may hand the memory out again at once. A copy in
/// starts after what the current stream has queued (the memory may still be in use there) and after
/// the copy out; the current stream, and later every other stream that uses the block, goes on only
/// after it. The host never waits.
class CudaManager final : public DeviceManager, private Mover, private Meter {
 public:
  explicit CudaManager(int index);

  // DeviceManager
  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] Engine& engine() override { return engine_; }
  void start(const Settings& settings) override;
  void stop() override;
  Block* find_or_track(EngineLock& lock, c10::StorageImpl& storage) override;
  Block* find(EngineLock& lock, c10::StorageImpl& storage) override;
  void note_use(EngineLock& lock, std::span<const Use> uses,
                const std::optional<c10::Stream>& other) override;
  void reclaim_everything() override;
  void capture_begin() override;
  void capture_end() override;
  [[nodiscard]] bool capturing() const override;
  [[nodiscard]] Bytes least_limit(Bytes needed, Bytes requested) override;
  void add_stats(std::map<std::string, std::int64_t>& stats) override;
  void reset_peak() override;

  // For the allocator bridge.

  /// Calls `allocate`, PyTorch's own allocation of `bytes`, with room made for it before, and again
  /// after a reclaim if it throws c10::OutOfMemoryError all the same.
  template <typename Result>
  Result with_room(std::size_t bytes, const std::function<Result()>& allocate);
  /// Memory at `data` was allocated on `stream`.
  void note_allocation(void* data, cudaStream_t stream);
  /// Allocations go to a private pool (a graph's, a user's) from now on / no longer.
  void begin_pool() { ++pools_; }
  void end_pool() { --pools_; }
  [[nodiscard]] bool in_pool() const { return pools_.load(std::memory_order_relaxed) > 0; }
  /// Memory of a private pool is never managed.
  void exclude(void* data);

 private:
  friend class CudaBlock;

  // Mover
  std::optional<Bytes> page_out(Block& block, bool clean) override;
  std::optional<Bytes> page_in(Block& block, bool keep_copy) override;
  void drop_copy(Block& block) noexcept override;
  bool copy_matches(Block& block) override;
  // Meter
  [[nodiscard]] Bytes in_use() const override;

  /// The memory fraction that makes PyTorch's allocator keep to `limit`.
  [[nodiscard]] double fraction_of(Bytes limit, std::size_t total) const;
  [[nodiscard]] bool may_manage(const c10::StorageImpl& storage);
  [[nodiscard]] cudaStream_t owner_of(const void* data);
  /// False: nothing more may leave, and the bytes do not fit under the limit.
  bool prepare_room(Bytes bytes);
  bool relieve(Bytes bytes, int attempt);
  static void delete_absent(void* context);

  c10::Device device_;
  c10::DeleterFnPtr native_deleter_ = nullptr;
  Engine engine_;
  std::unordered_map<c10::StorageImpl*, CudaBlock*> blocks_;  ///< guarded by the engine's lock
  std::optional<cuda::Lane> out_;
  std::optional<cuda::Lane> in_;
  std::optional<HostArena> arena_;
  double fraction_before_ = 1.0;
  /// The limit was given, not found: then it is kept even where the device has more.
  std::atomic<bool> strict_{true};

  std::mutex facts_mutex_;                                ///< guards the three below; innermost
  std::unordered_map<const void*, cudaStream_t> owners_;  ///< allocations off the default stream
  struct Segment {
    std::uintptr_t begin, end;
    cudaStream_t stream;
  };
  std::vector<Segment> segments_;             ///< off the default stream, from before start()
  std::unordered_set<const void*> excluded_;  ///< memory of private pools

  std::atomic<std::int64_t> host_allocated_{0};  ///< bytes of all slots ever taken
  std::atomic<int> pools_{0};
  std::atomic<int> captures_{0};
  std::atomic<std::int64_t> from_free_list_{0}, from_driver_{0}, from_reclaim_{0}, from_retry_{0};
};

}  // namespace lms::torch
