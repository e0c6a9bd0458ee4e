#pragma once

#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/node_allocator.h"
#include "cuda/event.h"
#include "cuda/virtual_memory.h"
#include "steps/step_log.h"
#include "tiers/address_map.h"

namespace lms::torch {

class CudaBlock;

/// One arena of device memory in which LMS itself says where everything lies: what is managed, and
/// allocated on the device's main stream. Physical memory comes behind addresses when they are
/// first taken, and stays within a budget. Reuse is ordered by the main stream alone.
///
/// Everything new goes into a window of addresses, [base(), base() + room()). What cannot move
/// would fragment it for good; addresses are plenty, so move_window() leaves it behind and begins
/// anew above it.
///
/// Thread-safe; its lock is innermost.
class DeviceArena {
 public:
  /// Memory comes in pages of `page` bytes (a multiple of VirtualMemory::kUnit).
  DeviceArena(int device, Bytes reserve, Bytes page);

  /// Where something lies, and whose it is.
  struct Stay {
    Bytes address = 0;
    Bytes size = 0;
    /// Of what is scattered: the stretches that its pages make, at most one of them in part.
    std::vector<std::pair<Bytes, Bytes>> pieces;
    BlockUid uid = 0;                         ///< 0: has left, or nobody's
    CudaBlock* block = nullptr;               ///< guarded by the engine's lock; null: not tracked
    cuda::EventPtr arriving;                  ///< a copy in that the main stream has not waited for
    c10::SmallVector<cudaStream_t, 2> users;  ///< other streams to wait for when it goes
  };

  /// Asked before more physical memory is taken, with the sum that would then be mapped. Called
  /// with the arena's lock.
  using MayGrow = c10::function_ref<bool(Bytes)>;

  /// Takes exactly these addresses, or returns null.
  void* take_at(Bytes address, Bytes size, BlockUid uid, MayGrow may_grow);
  /// Takes these pages of the window (page n begins at base() + n * page()), in this order, or
  /// returns null.
  void* take_on(const std::vector<std::uint32_t>& pages, Bytes size, BlockUid uid,
                MayGrow may_grow);
  /// Takes the best fit, or returns null.
  void* take(Bytes size, BlockUid uid, MayGrow may_grow);
  /// Takes free pages of the window, wherever they are, or returns null: for what no free stretch
  /// is long enough for.
  void* take_in_pieces(Bytes size, BlockUid uid, MayGrow may_grow);
  /// What whoever frees it must know; nothing if nothing lies there.
  struct Leaving {
    BlockUid uid;
    CudaBlock* block;
    cuda::EventPtr arriving;
    c10::SmallVector<cudaStream_t, 2> users;
  };
  std::optional<Leaving> look(const void* data);
  /// Frees. From now on the main stream may write there: its waits must have been queued.
  void give(const void* data);

  [[nodiscard]] bool owns(const void* data) const { return memory_.owns(data); }
  [[nodiscard]] Bytes page() const { return memory_.chunk(); }
  /// Whether it lies there: from an address of the window on, or on these of its pages.
  [[nodiscard]] bool lies_at(const void* data, Bytes address);
  [[nodiscard]] bool lies_on(const void* data, const std::vector<std::uint32_t>& pages);
  /// set_block(), and what has been taken there as; 0 if nothing lies there.
  BlockUid track(const void* data, CudaBlock* block);
  void set_block(const void* data, CudaBlock* block);
  /// From now on it is another's.
  void hand_over(const void* data, CudaBlock& block);
  /// set_block(data, nullptr), if it is that block's.
  void unlink(const void* data, const CudaBlock* block) noexcept;
  void set_arriving(const void* data, cuda::EventPtr event);
  void add_user(const void* data, cudaStream_t stream);
  [[nodiscard]] c10::SmallVector<cudaStream_t, 2> users_of(const void* data);
  /// The bytes leave, but their block lives on: give() will not tell whose they were.
  void disown(const void* data);

  /// Something in the window is no block's.
  [[nodiscard]] bool holds_untracked();
  /// Bytes that are no block's, wherever they lie: of libraries, and of tensors that no operator
  /// has used yet.
  [[nodiscard]] Bytes untracked();
  /// The tracked blocks with bytes in [address, address + size).
  std::vector<CudaBlock*> occupants(Bytes address, Bytes size);
  /// The blocks to evict for `size` contiguous bytes, cheapest by `cost` (infinite: may not leave;
  /// null for what is not tracked, which may not). Nothing if no window can be cleared.
  std::optional<std::vector<CudaBlock*>> cheapest(Bytes size,
                                                  const std::function<double(CudaBlock&)>& cost);

  /// Limits physical memory to `bytes`, or to what is in use if that is more.
  void set_budget(Bytes bytes);
  /// Where the window would have to end under such a budget.
  [[nodiscard]] Bytes end_for(Bytes budget);
  /// If anything lies in the window: the window begins anew above it, and memory behind addresses
  /// below that nobody uses is given back. Waits for the device if there is any.
  void move_window();
  /// Gives memory below the window back behind which nothing lies any more. False: there was none.
  /// Waits for the device if there is any.
  bool give_back_below();
  /// Gives physical memory of the window above what is in use back to the driver. Waits for the
  /// device if there is any.
  void trim();
  /// Lets another device's kernels and copies reach the memory.
  void allow(int peer);

  [[nodiscard]] Bytes used() const { return used_.load(std::memory_order_relaxed); }
  [[nodiscard]] Bytes peak() const { return peak_.load(std::memory_order_relaxed); }
  [[nodiscard]] Bytes mapped() const { return mapped_.load(std::memory_order_relaxed); }
  [[nodiscard]] Bytes mapped_peak() const { return mapped_peak_.load(std::memory_order_relaxed); }
  /// How often pages have had to be mapped side by side.
  [[nodiscard]] std::int64_t joins() const { return joins_.load(std::memory_order_relaxed); }
  [[nodiscard]] Bytes base() const { return base_.load(std::memory_order_relaxed); }
  [[nodiscard]] Bytes room();  ///< bytes of the window
  [[nodiscard]] Bytes free();  ///< bytes of the window that nobody has taken
  [[nodiscard]] Bytes top();   ///< end of the highest address in use
  [[nodiscard]] Bytes taken() const { return taken_.load(std::memory_order_relaxed); }
  void reset_peak();

 private:
  void wall_off();
  void* put_on(const std::vector<std::uint32_t>& pages, Bytes size, BlockUid uid, MayGrow may_grow);
  [[nodiscard]] std::vector<std::uint32_t> free_pages(Bytes size);
  void* register_stay(Bytes address, Bytes size, BlockUid uid, MayGrow may_grow);
  void* register_at(Bytes address, Bytes size, BlockUid uid);
  bool back(Bytes address, Bytes size, MayGrow may_grow);
  Bytes side_by_side(const std::vector<std::uint32_t>& chunks);
  Stay* stay_in(Bytes address);
  void set_end(Bytes end);
  void note_mapped();
  [[nodiscard]] Bytes offset_of(const void* data) const {
    return static_cast<const std::byte*>(data) - memory_.base();
  }
  Stay* find(const void* data);

  std::mutex mutex_;
  cuda::VirtualMemory memory_;
  AddressMap map_;
  PooledMap<Bytes, Stay> stays_;       ///< by address
  PooledMap<Bytes, Bytes> in_pieces_;  ///< of a piece: its stay's address
  std::vector<Bytes> walls_;           ///< taken below the window, so that nothing goes there
  Bytes below_ = 0;                    ///< physical bytes below the window
  std::atomic<Bytes> base_{0};
  std::atomic<Bytes> used_{0}, peak_{0}, mapped_{0}, mapped_peak_{0};
  std::atomic<std::int64_t> joins_{0};
  std::atomic<Bytes> taken_{0};  ///< bytes of everything ever taken
};

}  // namespace lms::torch
