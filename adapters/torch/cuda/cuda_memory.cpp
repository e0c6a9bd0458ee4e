#include "adapters/torch/cuda/cuda_memory.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/native_stats.h"
#include "adapters/torch/cuda/on_device.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/thread_state.h"
#include "cuda/event.h"
#include "cuda/profiler.h"

namespace lms::torch {
namespace {

/// Sizes in the arena are multiples of this, as PyTorch's are.
constexpr Bytes kUnit = 512;
/// Under smaller limits the arena's chunks of memory would be too coarse.
constexpr Bytes kLeastLimit = 64 * cuda::VirtualMemory::kUnit;
/// Operators between two looks at what PyTorch's allocator has reserved.
constexpr std::int64_t kLookEvery = 32;

void raise(std::atomic<Bytes>& most, Bytes value) {
  Bytes before = most;
  while (before < value && !most.compare_exchange_weak(before, value)) {
  }
}

constexpr std::size_t kMostDevices = 64;
/// Addresses of an arena, in units of the device's memory.
constexpr Bytes kAddresses = 16;
/// Of so much memory the arena takes larger pages: each one costs some time when it is first used.
constexpr Bytes kMostPages = 32768;

/// The memory of every manager that was ever made, for frees that know an address alone.
std::array<std::atomic<CudaMemory*>, kMostDevices>& arenas() {
  static std::array<std::atomic<CudaMemory*>, kMostDevices> table{};
  return table;
}

}  // namespace

CudaMemory::CudaMemory(CudaManager& manager, Engine& engine, c10::Device device)
    : manager_(manager), engine_(engine), device_(device), owners_(device.index()) {
  arenas().at(static_cast<std::size_t>(device.index())) = this;
}

void CudaMemory::start(Bytes limit, Bytes total) {
  native_deleter_ = BridgeAllocator::instance().native()->raw_deleter();
  if (!arena_) {
    try {
      Bytes page = cuda::VirtualMemory::kUnit;
      while (limit / page > kMostPages) page *= 2;
      arena_ = std::make_unique<DeviceArena>(device_.index(), kAddresses * total, page);
    } catch (const Error&) {
      // A device or driver without virtual memory management: PyTorch's allocator does it all.
    }
  }
  if (arena_ && !manager_.capturing()) arena_->give_back_below();  // what has died since
  owners_.start();
}

CudaMemory* CudaMemory::owner_among_all(const void* data) {
  for (const auto& entry : arenas()) {
    CudaMemory* memory = entry.load();
    if (memory != nullptr && memory->arena_ && memory->arena_->owns(data)) return memory;
  }
  return nullptr;
}

Bytes CudaMemory::in_use() const {
  return current(native_stats(device_).allocated_bytes) + (arena_ ? arena_->used() : 0);
}

Bytes CudaMemory::native_reserved() {
  const Bytes reserved = current(native_stats(device_).reserved_bytes);
  raise(native_peak_, reserved);
  raise(reserved_peak_, reserved + (arena_ ? arena_->mapped() : 0));
  return reserved;
}

void CudaMemory::note_arena_growth() {
  const Bytes mapped = arena_->mapped();
  const Bytes noted = arena_noted_.load(std::memory_order_relaxed);
  if (noted == mapped) return;
  arena_noted_.store(mapped, std::memory_order_relaxed);
  if (noted > mapped) return;
  (void)native_reserved();
  bound_native();
}

bool CudaMemory::arena_may_grow(Bytes mapped) {
  return current(native_stats(device_).reserved_bytes) + mapped <= manager_.limit() ||
         manager_.capturing();  // where nothing can give way
}

void CudaMemory::reset_reserved_peak() {
  if (arena_) arena_->reset_peak();
  reserved_peak_ = 0;
  (void)native_reserved();
}

Bytes CudaMemory::planned_room() {
  const Bytes native = std::max(native_reserved(), native_peak_.load());
  const Bytes room =
      arena_->end_for(manager_.limit() - native - slack(manager_.limit())) - arena_->base();
  return std::min(arena_->room(), room);
}

bool CudaMemory::serves(cudaStream_t stream) {
  if (!arena_ || manager_.limit() < kLeastLimit || (in_pool() && manager_.capturing()))
    return false;
  if (!has_main_stream_.load(std::memory_order_acquire)) {
    const std::lock_guard guard(main_stream_mutex_);
    if (!has_main_stream_) {
      main_stream_ = stream;
      has_main_stream_ = true;
    }
  }
  return main_stream_.load(std::memory_order_relaxed) == stream;
}

void CudaMemory::update_capacity() {
  if (!arena_) return;
  arena_->set_budget(manager_.limit() - native_reserved() - slack(manager_.limit()));
}

void CudaMemory::bound_native() {
  if (!arena_) return;
  manager_.bound_native(std::max<Bytes>(manager_.limit() - arena_->mapped(), 0));
}

c10::DataPtr CudaMemory::allocate(ThreadState& state, std::size_t n) {
  const auto bytes = static_cast<Bytes>(n);
  if (bytes < manager_.min_block() || in_pool() ||
      !serves(c10::cuda::getCurrentCUDAStream(device_.index()).stream())) {
    return {};
  }
  const Bytes size = round_up(bytes, kUnit);
  const BlockUid uid = Pilot::new_uid();
  if (state.outermost != nullptr && state.holder.engine() == nullptr) {
    EngineLock lock = engine_.lock();
    enter_engine(state, lock, engine_);
  }
  try {
    Replay* const replay = state.replay;
    const Bytes wanted = replay != nullptr   ? replay->take()
                         : state.is_beside() ? kNoAddress
                                             : manager_.pilot().allocating(uid, size);
    auto data = take_or_wait<c10::DataPtr>(
        [&] { return take_in_arena(size, uid, wanted, /*evict=*/true); });
    if (data) {
      state.note_allocation(data.get());
      return data;
    }
  } catch (const TierFull& full) {
    manager_.pilot().released(uid);
    throw_out_of_memory(manager_, {.requested = bytes, .reason = full.what()});
  }
  manager_.pilot().released(uid);
  failed_ = size;
  throw_out_of_memory(manager_, {.requested = bytes});
}

bool CudaMemory::clear_what_failed() {
  const Bytes bytes = failed_.exchange(0);
  try {
    return bytes > 0 && arena_ && clear_cheapest(bytes);
  } catch (const TierFull&) {
    return false;  // the operator's next failure says so, with its name
  }
}

/// The window may be smaller than it need be since PyTorch's allocator has once wanted more.
void CudaMemory::widen_to(Bytes end) {
  if (end > arena_->room()) update_capacity();
}

void* CudaMemory::take_wanted(Bytes bytes, BlockUid uid, Bytes wanted) {
  const Bytes size = round_up(bytes, kUnit);
  const auto may_grow = [this](Bytes mapped) { return arena_may_grow(mapped); };
  if (wanted < kScattered) {
    const Bytes address = arena_->base() + wanted;
    if (void* data = arena_->take_at(address, size, uid, may_grow)) return data;
    widen_to(wanted + size);
    return clear(address, size) ? arena_->take_at(address, size, uid, may_grow) : nullptr;
  }
  const std::vector<std::uint32_t> pages = manager_.pilot().pages_of(wanted);
  if (pages.empty()) return nullptr;
  if (void* data = arena_->take_on(pages, size, uid, may_grow)) return data;
  const Bytes page = arena_->page();
  widen_to((1 + static_cast<Bytes>(std::ranges::max(pages))) * page);
  for (std::size_t i = 0; i < pages.size();) {
    std::size_t end = i + 1;
    while (end < pages.size() && pages[end] == pages[end - 1] + 1) ++end;
    if (!clear(arena_->base() + pages[i] * page, static_cast<Bytes>(end - i) * page)) {
      return nullptr;
    }
    i = end;
  }
  return arena_->take_on(pages, size, uid, may_grow);
}

c10::DataPtr CudaMemory::take_in_arena(Bytes bytes, BlockUid uid, Bytes wanted, bool evict) {
  const Bytes size = round_up(bytes, kUnit);
  const auto whole = [&](void* data) {
    note_arena_growth();
    return c10::DataPtr{data, data, &delete_in_arena, device_};
  };
  if (wanted != kNoAddress) {
    try {
      if (void* data = take_wanted(size, uid, wanted)) return whole(data);
    } catch (const TierFull&) {
      // Elsewhere there may be room, or something that need not be copied.
    }
    ++misplaced_;
  }
  std::int64_t evicted = 0;
  bool looked = false;
  // Once the arena's end is known anew, what lies in its way there is for operator_ended() to see.
  const auto may_grow = [&](Bytes mapped) { return looked || arena_may_grow(mapped); };
  for (;;) {
    if (void* data = arena_->take(size, uid, may_grow)) {
      ++(evicted > 0 ? from_reclaim_ : from_free_list_);
      return whole(data);
    }
    if (!looked) {
      // PyTorch's allocator may have given memory back since, or may hold some that is free.
      looked = true;
      const auto stats = native_stats(device_);
      if (current(stats.reserved_bytes) - current(stats.allocated_bytes) > kSlack &&
          arena_->free() < size) {
        BridgeAllocator::instance().native()->emptyCache({0, 0});
      }
      update_capacity();
      continue;
    }
    if (!evict) return {};
    bool cleared = false;
    std::exception_ptr full;
    try {
      cleared = clear_cheapest(size);
    } catch (const TierFull&) {
      full = std::current_exception();
    }
    if (!cleared) {
      // Whatever stretch it would be, something that may not leave lies in it.
      if (void* data = arena_->take_in_pieces(size, uid, may_grow)) {
        ++from_reclaim_;
        return whole(data);
      }
      if (full) {
        // Whatever it takes to compute it again.
        EngineLock lock = engine_.lock();
        if (!engine_.give_way(lock, size)) std::rethrow_exception(full);
        continue;
      }
      // What lies outside the arena is in the way of its growth.
      EngineLock lock = engine_.lock();
      const Bytes left = engine_.reclaim(lock, size);
      lock.unlock();
      if (left == 0 && (manager_.capturing() || !arena_->give_back_below())) return {};
      BridgeAllocator::instance().native()->emptyCache({0, 0});
      update_capacity();
    }
    ++evicted;
  }
}

bool CudaMemory::clear(Bytes address, Bytes bytes) {
  EngineLock lock = engine_.lock();
  std::vector<std::pair<CudaBlock*, BlockUid>> there;
  for (CudaBlock* block : arena_->occupants(address, bytes)) there.emplace_back(block, block->uid);
  for (const auto& [block, uid] : there) {
    // The lock is let go while one leaves: the next may have gone meanwhile.
    if (engine_.knows(lock, block, uid) && !engine_.evict(lock, *block)) return false;
  }
  return true;
}

bool CudaMemory::clear_cheapest(Bytes bytes, const std::function<bool(const Block&)>& spare) {
  begin_pressure();
  EngineLock lock = engine_.lock();
  std::vector<BlockUid> stuck;  // neither is there room for them below, nor can they be dropped
  std::string full;
  bool any = false;
  for (;;) {
    const auto blocks = arena_->cheapest(bytes, [&](CudaBlock& block) {
      if (!engine_.may_evict(lock, block) || std::ranges::find(stuck, block.uid) != stuck.end()) {
        return std::numeric_limits<double>::infinity();
      }
      if (spare && !spare(block)) return std::numeric_limits<double>::infinity();
      return static_cast<double>(block.size) * engine_.cost_of_leaving(lock, block);
    });
    if (!blocks && !any && !stuck.empty()) throw TierFull(full);
    if (!blocks) return any;
    std::vector<std::pair<CudaBlock*, BlockUid>> chosen;
    for (CudaBlock* block : *blocks) chosen.emplace_back(block, block->uid);
    std::size_t next = 0;
    try {
      for (; next < chosen.size(); ++next) {
        const auto& [block, uid] = chosen[next];
        if (engine_.knows(lock, block, uid)) any = engine_.evict(lock, *block) || any;
      }
      return any;
    } catch (const TierFull& error) {
      stuck.push_back(chosen[next].second);
      full = error.what();
    }
  }
}

bool CudaMemory::make_room_ahead(Bytes bytes, const std::function<bool(const Block&)>& spare) {
  if (!arena_) return false;
  return arena_->free() >= bytes || clear_cheapest(bytes, spare);
}

void CudaMemory::yield_to_native(Bytes bytes) {
  if (!arena_ || arena_->mapped() == 0) return;
  const Bytes reserved = native_reserved();
  if (reserved + bytes + arena_->mapped() <= manager_.limit()) return;
  const Bytes budget = manager_.limit() - reserved - bytes;
  const Bytes end = arena_->end_for(budget);
  while (arena_->top() > end) {
    try {
      (void)clear(end, arena_->top() - end);
      break;
    } catch (const TierFull&) {
      EngineLock lock = engine_.lock();
      if (!engine_.give_way(lock, 1)) throw;
    }
  }
  arena_->set_budget(budget);
  empty_arena();
}

void CudaMemory::operator_ended() {
  if (!arena_ || since_look_.fetch_add(1, std::memory_order_relaxed) % kLookEvery != 0) return;
  yield_to_native(0);
}

void CudaMemory::make_plain(c10::StorageImpl& storage) {
  const void* data = storage._mutable_data_ptr_no_checks().get();
  if (!arena_ || data == nullptr || !arena_->owns(data)) return;
  const OnDevice guard(device_.index());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  const std::size_t bytes = storage.nbytes();
  auto fresh = with_room<c10::DataPtr>(
      bytes, [&] { return BridgeAllocator::instance().native()->allocate(bytes); });
  cuda::check(cudaMemcpyAsync(fresh.get(), data, bytes, cudaMemcpyDeviceToDevice, stream),
              "cudaMemcpyAsync");
  note_allocation(fresh.get(), static_cast<Bytes>(bytes));
  const cudaStream_t main = main_stream_;
  if (stream != main) cuda::Event::record(device_.index(), stream)->block(main);
  storage.set_data_ptr_noswap(std::move(fresh));  // the old place is free, and its block unknown
}

void CudaMemory::empty_arena() {
  if (!arena_ || manager_.capturing()) return;
  arena_->trim();
  arena_->give_back_below();
  bound_native();
}

void CudaMemory::allow_peer(int peer) {
  if (arena_) arena_->allow(peer);
}

// Times and figures

Bytes CudaMemory::used_by_plan() const { return arena_ ? arena_->used() - used_beside_ : -1; }

void CudaMemory::start_laps() {
  if (arena_) used_beside_ = arena_->used() - (arena_->room() - arena_->free());
  laps_.start(main_stream_);
  native_peak_ = 0;
  (void)native_reserved();
}

void CudaMemory::begin_pressure() {
  cuda::mark("reclaim");
  mark_pressed();
  manager_.pilot().wake();
}

void CudaMemory::add_stats(std::map<std::string, std::int64_t>& stats) const {
  stats["alloc.freelist"] = from_free_list_.load();
  stats["alloc.driver"] = from_driver_.load();
  stats["alloc.reclaim"] = from_reclaim_.load();
  stats["alloc.retry"] = from_retry_.load();
  stats["arena.bytes.current"] = arena_ ? arena_->used() : 0;
  stats["arena.bytes.peak"] = arena_ ? arena_->peak() : 0;
  stats["arena.reserved.current"] = arena_ ? arena_->mapped() : 0;
  stats["arena.reserved.peak"] = arena_ ? arena_->mapped_peak() : 0;
  stats["arena.joins"] = arena_ ? arena_->joins() : 0;
  stats["arena.misplaced"] = misplaced_.load();
}

}  // namespace lms::torch
