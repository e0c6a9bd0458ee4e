#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "adapters/torch/cuda/cuda_block.h"
#include "adapters/torch/cuda/cuda_kernels.h"
#include "adapters/torch/cuda/device_arena.h"
#include "adapters/torch/cuda/lap_timer.h"
#include "adapters/torch/cuda/native_owners.h"
#include "adapters/torch/device_manager.h"
#include "cuda/lane.h"
#include "cuda/profiler.h"

namespace lms::torch {

/// CUDA storages of one device, with pinned host memory below.
///
/// What is managed, and allocated on the device's main stream (the first that allocates), lies in
/// an arena of LMS, at addresses that LMS chooses; everything else is PyTorch's allocator's. Both
/// together keep to the limit.
///
/// Stream order, which is all that keeps the bytes right: a copy out starts after everything that
/// is queued on the streams that have used the block, and the stream that owns the memory goes on
/// only after the copy, so that the allocator may hand the memory out again at once. A copy in
/// starts after what the current stream and the memory's owner have queued (the memory may still be
/// in use there) and after the copy out; the current stream, and later every other stream that uses
/// the block, goes on only after it. Whoever owns the memory, it serves others only after the work
/// of the stream on which the program allocated the storage. The host never waits.
class CudaManager final : public DeviceManager, private Mover, private Meter, private PilotDevice {
 public:
  explicit CudaManager(int index);

  // DeviceManager
  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] Engine& engine() override { return engine_; }
  void start(const Options& settings) override;
  void stop() override;
  Block* find_or_track(EngineLock& lock, c10::StorageImpl& storage) override;
  Block* find(EngineLock& lock, c10::StorageImpl& storage) override;
  void note_use(EngineLock& lock, std::span<const Use> uses,
                const std::optional<c10::Stream>& other) override;
  void reclaim_everything() override;
  bool clear_what_failed() override;
  [[nodiscard]] bool announces_death(const Block& block) const override;
  void make_plain(c10::StorageImpl& storage) override;
  [[nodiscard]] bool records_here() override;
  void in_order(const std::function<void()>& work) override;
  [[nodiscard]] bool operators_write(const c10::DataPtr& data) const override {
    return on_device(data);
  }
  void capture_begin() override;
  void capture_end() override;
  void emulate_link(double rate) override;
  [[nodiscard]] bool capturing() const override;
  [[nodiscard]] Bytes least_limit(Bytes needed, Bytes requested) override;
  [[nodiscard]] Bytes ample_limit(Bytes requested) override;
  void operator_ended() override;
  void add_stats(std::map<std::string, std::int64_t>& stats) override;
  void reset_peak() override;

  // For the allocator bridge.

  /// Memory from the arena, or null where PyTorch's allocator is to be asked: small allocations,
  /// other streams, private pools. Throws c10::OutOfMemoryError (or Shortage).
  c10::DataPtr allocate(std::size_t bytes);
  /// Calls `allocate`, PyTorch's own allocation of `bytes`, with room made for it before, and again
  /// after a reclaim if it throws c10::OutOfMemoryError all the same.
  template <typename Result>
  Result with_room(std::size_t bytes, const std::function<Result()>& allocate);
  /// PyTorch's allocator has given `bytes` at `data` on the current stream. What is of a private
  /// pool is never managed.
  void note_allocation(void* data, Bytes bytes);
  /// `stream` uses the memory too, says the user. False: PyTorch's allocator is to be told.
  bool record_stream(const c10::DataPtr& data, cudaStream_t stream);
  /// Gives free memory of the arena back to the driver; not while a graph is captured, which no
  /// wait for the device may interrupt.
  void empty_arena();
  [[nodiscard]] const DeviceArena* arena() const { return arena_.get(); }
  void allow_peer(int peer);
  /// Most bytes that the arena and PyTorch's allocator have reserved together at one time.
  [[nodiscard]] Bytes reserved_peak() const { return reserved_peak_.load(); }
  void reset_reserved_peak();
  /// Allocations go to a private pool (a graph's, a user's) from now on / no longer.
  void begin_pool() { ++pools_; }
  void end_pool() { --pools_; }
  [[nodiscard]] bool in_pool() const { return pools_.load(std::memory_order_relaxed) > 0; }

 private:
  friend class CudaBlock;

  // Mover
  std::optional<Bytes> page_out(Block& block, bool clean) override;
  std::optional<Bytes> copy_below(Block& block) override;
  std::optional<Bytes> page_in(Block& block, bool ahead) override;
  bool relocate(Block& block) override;
  bool drop(Block& block, Bytes most) override;
  bool rematerialise(Block& block, const std::function<void()>& take) override;
  void drop_copy(Block& block) noexcept override;
  bool copy_matches(Block& block) override;
  // Meter
  [[nodiscard]] Bytes in_use() const override;
  // PilotDevice
  void start_laps() override;
  void begin_lap() override;
  void restart_lap() override;
  void lap() override;
  Laps finish_laps() override;
  void drop_laps() override;
  Room room() override;
  Bytes still_room(Bytes room) override;
  [[nodiscard]] std::int64_t misplaced() const override;
  [[nodiscard]] bool at_home(const Block& block) override;
  LinkModel link() override;
  void remake_ghost(BlockUid uid, const std::vector<Bytes>& addresses) override;
  void drop_ghost(BlockUid uid) override;
  void drop_ghosts() override;
  void show(Stage stage, bool begins) noexcept override;
  void say(const std::string& line) override;

  void start_with(const Options& settings, bool was_on);
  /// The memory fraction that makes PyTorch's allocator keep to `limit`.
  [[nodiscard]] double fraction_of(Bytes limit, std::size_t total) const;
  [[nodiscard]] bool may_manage(const c10::StorageImpl& storage);
  [[nodiscard]] bool on_device(const c10::DataPtr& data) const;
  /// The storage still has the memory on the device that the block stands for.
  [[nodiscard]] bool holds(const c10::StorageImpl& storage, const CudaBlock& block) const;
  [[nodiscard]] cudaStream_t owner_of(const void* data);
  void begin_pressure();

  // Lineages
  /// True if what is dropped needs the bytes behind `data`, whose storage is dying: they live on.
  bool keep_for_lineages(CudaBlock& block, BlockUid uid, c10::DataPtr data);
  void adopt(CudaBlock& block, c10::StorageImpl& made, c10::StorageImpl& storage);

  /// The storage points at where its bytes have been fetched to from now on, if they have.
  void arrive(CudaBlock& block, c10::StorageImpl& storage);
  /// Likewise every storage; `held` must outlive the lock.
  void arrive_all(EngineLock& lock, std::vector<c10::intrusive_ptr<c10::StorageImpl>>& held);

  // Streams
  /// Notes who has been said to use the memory, which the block is about to leave.
  void inherit_users(CudaBlock& block, const void* data);
  /// The block has come to memory that `owner` will use next: after whoever must be done with it.
  void claim(const CudaBlock& block, const c10::DataPtr& data, cudaStream_t owner);
  [[nodiscard]] c10::cuda::CUDAStream stream_of(cudaStream_t stream) const;

  // Copies
  /// The next user of the block's memory comes after everybody who has used it.
  void release_in_order(CudaBlock& block, const void* data);
  /// The out lane waits for everybody who has used the block, and everybody for its arrival.
  void prepare_copy_out(CudaBlock& block, const void* data);
  cuda::EventPtr copy_out(const CudaBlock& block, const HostSlot& to, const void* from);
  cuda::EventPtr copy_in(const CudaBlock& block, void* to);
  /// There is room below for copies of what is on the device.
  [[nodiscard]] bool keeps_copies() const;
  /// Bytes of the arena that a plan's budget counts.
  [[nodiscard]] Bytes used_by_plan() const;
  /// `stream` goes on only after `event`; timed where laps are.
  void wait_on(cudaStream_t stream, const cuda::EventPtr& event);

  // The arena
  /// True for the stream whose allocations the arena serves; the first to ask becomes it.
  bool serves(cudaStream_t stream);
  /// Null if nothing more may leave and it does not fit.
  c10::DataPtr take_in_arena(Bytes bytes, BlockUid uid, Bytes wanted, bool evict);
  /// At the plan's address, or on its pages; whoever is there leaves. Null if somebody cannot.
  void* take_wanted(Bytes bytes, BlockUid uid, Bytes wanted);
  bool clear(Bytes address, Bytes bytes);
  bool clear_cheapest(Bytes bytes);
  /// Bytes that PyTorch's allocator has reserved now.
  Bytes native_reserved();
  /// The arena may have grown.
  void note_arena_growth();
  /// Bytes of the arena that a plan may count on: what PyTorch's allocator had reserved at most in
  /// the step that was timed last will be reserved again.
  Bytes planned_room();
  void update_capacity();
  /// Takes memory from the arena until PyTorch's allocator may take `bytes` more from the driver.
  void yield_to_native(Bytes bytes);
  static CudaManager* owner_among_all(const void* data);

  /// Calls `take` until it gives something; before each time but the first, an operator of another
  /// thread has let something go. What it gave last.
  template <typename Result>
  Result take_or_wait(const std::function<Result()>& take);
  /// As with_room(), but null where there is none.
  template <typename Result>
  Result try_with_room(Bytes bytes, const std::function<Result()>& allocate);
  /// False: nothing more may leave, and the bytes do not fit under the limit.
  bool prepare_room(Bytes bytes);
  bool relieve(Bytes bytes, int attempt);
  static void delete_absent(void* context);
  static void delete_in_arena(void* data);

  c10::Device device_;
  c10::DeleterFnPtr native_deleter_ = nullptr;
  Engine engine_;
  std::unordered_map<c10::StorageImpl*, CudaBlock*> blocks_;  ///< guarded by the engine's lock
  std::optional<cuda::Lane> out_;
  std::optional<cuda::Lane> in_;
  std::optional<HostArena> host_;
  CudaKernels kernels_;
  std::unique_ptr<DeviceArena> arena_;  ///< made once, kept for what still lies in it
  std::atomic<cudaStream_t> main_stream_{nullptr};
  std::atomic<bool> has_main_stream_{false};
  std::mutex main_stream_mutex_;             ///< of who sets both; innermost
  std::atomic<std::int64_t> since_look_{0};  ///< operators since native memory was looked at
  /// Most that PyTorch's allocator has reserved since a step was timed.
  std::atomic<Bytes> native_peak_{0};
  std::atomic<Bytes> reserved_peak_{0};
  std::atomic<Bytes> arena_noted_{0};  ///< what the arena had when reserved_peak_ was looked at
  LapTimer laps_;
  std::atomic<Bytes> used_beside_{0};  ///< bytes of the arena below its window, when laps began
  LinkModel link_;                     ///< the planning thread's
  cuda::RangeId step_range_ = 0;       ///< guarded by the pilot's lock
  std::atomic<Bytes> failed_{0};       ///< bytes that were last asked of the arena in vain
  double fraction_before_ = 1.0;
  /// The limit was given, not found: then it is kept even where the device has more.
  std::atomic<bool> strict_{true};

  NativeOwners owners_;

  std::atomic<std::int64_t> host_allocated_{0};  ///< bytes of all slots ever taken
  std::atomic<int> pools_{0};
  std::atomic<int> captures_{0};
  std::atomic<std::int64_t> from_free_list_{0}, from_driver_{0}, from_reclaim_{0}, from_retry_{0};
  std::atomic<std::int64_t> misplaced_{0};  ///< allocations that did not get their planned address
};

}  // namespace lms::torch
