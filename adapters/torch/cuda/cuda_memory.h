#pragma once

#include <c10/cuda/CUDAStream.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "adapters/torch/cuda/cuda_block.h"
#include "adapters/torch/cuda/device_arena.h"
#include "adapters/torch/cuda/lap_timer.h"
#include "adapters/torch/cuda/native_owners.h"
#include "engine/engine.h"

namespace lms::torch {

class CudaManager;
struct ThreadState;

/// Where the memory of one device comes from: what is managed, and allocated on the device's main
/// stream (the first that allocates), from an arena of LMS, at addresses that LMS chooses; all else
/// from PyTorch's allocator. Both together keep to the manager's limit: room is made first.
///
/// Whoever owns memory, it serves others only after the work of the stream on which the program
/// allocated it, and of those that the program says use it. Thread-safe.
class CudaMemory final : public Meter {
 public:
  CudaMemory(CudaManager& manager, Engine& engine, c10::Device device);

  /// The manager is about to be on, for the first time or again, with PyTorch's allocator beneath
  /// the bridge and `total` bytes on the device.
  void start(Bytes limit, Bytes total);
  [[nodiscard]] CudaManager& manager() const { return manager_; }
  /// The limit was given, not found: then it is kept even where the device has more.
  void set_strict(bool strict) { strict_ = strict; }

  // Allocations

  /// Memory from the arena, or null where PyTorch's allocator is to be asked: small allocations,
  /// other streams, private pools. Throws c10::OutOfMemoryError (or Shortage).
  c10::DataPtr allocate(ThreadState& state, std::size_t bytes);
  /// Calls `allocate`, PyTorch's own allocation of `bytes`, with room made for it before, and again
  /// after a reclaim if it throws c10::OutOfMemoryError all the same.
  template <typename Result>
  Result with_room(std::size_t bytes, c10::function_ref<Result()> allocate);
  /// PyTorch's allocator has given `bytes` at `data` on the current stream. What is of a private
  /// pool is never managed.
  void note_allocation(void* data, Bytes bytes);
  /// Memory of PyTorch's allocator, if there is some and the limit allows it with nothing leaving;
  /// else null.
  c10::DataPtr take_if_free(std::size_t bytes);
  /// Allocations go to a private pool (a graph's, a user's) from now on / no longer.
  void begin_pool() { ++pools_; }
  void end_pool() { --pools_; }
  [[nodiscard]] bool in_pool() const { return pools_.load(std::memory_order_relaxed) > 0; }
  /// Gives free memory of the arena back to the driver; not while a graph is captured, which no
  /// wait for the device may interrupt.
  void empty_arena();
  void allow_peer(int peer);

  // Places in the arena

  /// Null where the device, or its driver, cannot map memory.
  [[nodiscard]] DeviceArena* arena() const { return arena_.get(); }
  /// True for the stream whose allocations the arena serves; the first to ask becomes it.
  bool serves(cudaStream_t stream);
  [[nodiscard]] cudaStream_t main_stream() const { return main_stream_; }
  [[nodiscard]] bool has_main_stream() const { return has_main_stream_; }
  /// Null if nothing more may leave and it does not fit.
  c10::DataPtr take_in_arena(Bytes bytes, BlockUid uid, Bytes wanted, bool evict);
  /// At the plan's address, or on its pages; whoever is there leaves. Null if somebody cannot.
  void* take_wanted(Bytes bytes, BlockUid uid, Bytes wanted);
  void widen_to(Bytes end);
  /// Calls `take` until it gives something; before each time but the first, an operator of another
  /// thread has let something go. What it gave last.
  template <typename Result>
  Result take_or_wait(c10::function_ref<Result()> take);
  /// Frees what lies in any device's arena.
  static void delete_in_arena(void* data);

  // Whose memory it is

  /// Of the arena, or PyTorch's allocator.
  [[nodiscard]] bool on_device(const c10::DataPtr& data) const;
  [[nodiscard]] bool is_pooled(const void* data) { return owners_.is_pooled(data); }
  [[nodiscard]] cudaStream_t owner_of(const void* data);
  /// PyTorch's allocator has given it out lately, on a stream beside the main one.
  [[nodiscard]] bool is_beside(const void* data);
  [[nodiscard]] c10::cuda::CUDAStream stream_of(cudaStream_t stream) const;
  /// `stream` uses the memory too, says the user. False: PyTorch's allocator is to be told.
  bool record_stream(const c10::DataPtr& data, cudaStream_t stream);
  /// Notes who has been said to use the memory, which the block is about to leave.
  void inherit_users(CudaBlock& block, const void* data);
  /// The block has come to memory that `owner` will use next: after whoever must be done with it.
  void claim(const CudaBlock& block, const c10::DataPtr& data, cudaStream_t owner);
  // As DeviceManager has them.
  void make_plain(c10::StorageImpl& storage);
  void used_late(c10::StorageImpl& storage);

  // Room

  [[nodiscard]] Bytes in_use() const override;
  void update_capacity();
  /// PyTorch's allocator may grow to what the arena leaves of the limit, and no further: rather
  /// than that, it gives back what it holds free for other streams.
  void bound_native();
  /// Takes memory from the arena until PyTorch's allocator may take `bytes` more from the driver.
  void yield_to_native(Bytes bytes);
  // As DeviceManager has them.
  void operator_ended();
  bool clear_what_failed();
  void reclaim_everything();
  [[nodiscard]] Bytes least_limit(Bytes needed, Bytes requested);
  [[nodiscard]] Bytes ample_limit(Bytes requested);
  /// See DeviceManager.
  [[nodiscard]] std::string what_is_wasted();

  // Times and figures

  [[nodiscard]] LapTimer& laps() { return laps_; }
  /// Laps begin.
  void start_laps();
  /// `stream` goes on only after `event`; timed where laps are.
  void wait_on(cudaStream_t stream, const cuda::EventPtr& event);
  /// Bytes of the arena that a plan may count on: what PyTorch's allocator had reserved at most in
  /// the step that was timed last will be reserved again.
  Bytes planned_room();
  /// Bytes of the arena that a plan's budget counts.
  [[nodiscard]] Bytes used_by_plan() const;
  /// Allocations that did not get their planned address.
  [[nodiscard]] std::int64_t misplaced() const { return misplaced_; }
  /// Most bytes that the arena and PyTorch's allocator have reserved together at one time.
  [[nodiscard]] Bytes reserved_peak() const { return reserved_peak_.load(); }
  void reset_reserved_peak();
  /// As PilotDevice::make_room_ahead(). Takes the engine's lock itself.
  bool make_room_ahead(Bytes bytes, const std::function<bool(const Block&)>& spare);

  void add_stats(std::map<std::string, std::int64_t>& stats) const;

 private:
  bool clear(Bytes address, Bytes bytes);
  /// Nothing leaves for which `spare` is false, if it is given.
  bool clear_cheapest(Bytes bytes, const std::function<bool(const Block&)>& spare = nullptr);
  void begin_pressure();
  /// Bytes that PyTorch's allocator has reserved now.
  Bytes native_reserved();
  /// The arena may have grown.
  void note_arena_growth();
  /// Whether the limit has room for so much of the arena, and for what PyTorch's allocator has
  /// reserved: small tensors let that grow, and nobody tells the arena.
  bool arena_may_grow(Bytes mapped);
  /// As with_room(), but null where there is none.
  template <typename Result>
  Result try_with_room(Bytes bytes, c10::function_ref<Result()> allocate);
  /// No block's, and room is made for it only if there is none.
  [[nodiscard]] bool is_small(Bytes bytes) const;
  /// False: nothing more may leave, and the bytes do not fit under the limit.
  bool prepare_room(Bytes bytes);
  bool relieve(Bytes bytes, int attempt);
  bool reclaim_for(Bytes bytes, int attempt);
  static CudaMemory* owner_among_all(const void* data);

  CudaManager& manager_;
  Engine& engine_;
  const c10::Device device_;
  c10::DeleterFnPtr native_deleter_ = nullptr;
  std::unique_ptr<DeviceArena> arena_;  ///< made once, kept for what still lies in it
  std::atomic<cudaStream_t> main_stream_{nullptr};
  std::atomic<bool> has_main_stream_{false};
  std::mutex main_stream_mutex_;  ///< of who sets both; innermost
  NativeOwners owners_;
  std::atomic<bool> strict_{true};
  std::atomic<int> pools_{0};
  std::atomic<std::int64_t> since_look_{0};  ///< operators since native memory was looked at
  /// Most that PyTorch's allocator has reserved since a step was timed.
  std::atomic<Bytes> native_peak_{0};
  std::atomic<Bytes> reserved_peak_{0};
  std::atomic<Bytes> arena_noted_{0};  ///< what the arena had when reserved_peak_ was looked at
  std::atomic<Bytes> failed_{0};       ///< bytes that were last asked of the arena in vain
  LapTimer laps_;
  std::atomic<Bytes> used_beside_{0};  ///< bytes of the arena below its window, when laps began
  std::atomic<std::int64_t> from_free_list_{0}, from_driver_{0}, from_reclaim_{0}, from_retry_{0};
  std::atomic<std::int64_t> misplaced_{0};
};

}  // namespace lms::torch
