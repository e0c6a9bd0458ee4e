// Memory from the arena, and who uses it.

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/native_stats.h"
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

}  // namespace

Bytes CudaManager::in_use() const {
  return current(native_stats(device_).allocated_bytes) + (arena_ ? arena_->used() : 0);
}

Bytes CudaManager::native_reserved() {
  const Bytes reserved = current(native_stats(device_).reserved_bytes);
  raise(native_peak_, reserved);
  raise(reserved_peak_, reserved + (arena_ ? arena_->mapped() : 0));
  return reserved;
}

void CudaManager::note_arena_growth() {
  if (arena_noted_.exchange(arena_->mapped(), std::memory_order_relaxed) < arena_->mapped()) {
    (void)native_reserved();
  }
}

void CudaManager::reset_reserved_peak() {
  if (arena_) arena_->reset_peak();
  reserved_peak_ = 0;
  (void)native_reserved();
}

Bytes CudaManager::planned_room() {
  const Bytes native = std::max(native_reserved(), native_peak_.load());
  const Bytes room = arena_->end_for(limit() - native - slack(limit())) - arena_->base();
  return std::min(arena_->room(), room);
}

bool CudaManager::serves(cudaStream_t stream) {
  if (!arena_ || limit() < kLeastLimit || (in_pool() && capturing())) return false;
  if (!has_main_stream_.load(std::memory_order_acquire)) {
    const std::lock_guard guard(main_stream_mutex_);
    if (!has_main_stream_) {
      main_stream_ = stream;
      has_main_stream_ = true;
    }
  }
  return main_stream_.load(std::memory_order_relaxed) == stream;
}

void CudaManager::update_capacity() {
  if (!arena_) return;
  arena_->set_budget(limit() - native_reserved() - slack(limit()));
}

c10::DataPtr CudaManager::allocate(std::size_t n) {
  const auto bytes = static_cast<Bytes>(n);
  if (bytes < min_block() || in_pool() ||
      !serves(c10::cuda::getCurrentCUDAStream(device_.index()).stream())) {
    return {};
  }
  const Bytes size = round_up(bytes, kUnit);
  const BlockUid uid = Pilot::new_uid();
  if (thread_state().outermost != nullptr && thread_state().holder.engine() == nullptr) {
    EngineLock lock = engine_.lock();
    enter_engine(lock, engine_);
  }
  try {
    Replay* const replay = thread_state().replay;
    const Bytes wanted = replay != nullptr ? replay->take() : pilot_.allocating(uid, size);
    auto data = take_or_wait<c10::DataPtr>(
        [&] { return take_in_arena(size, uid, wanted, /*evict=*/true); });
    if (data) return data;
  } catch (const TierFull& full) {
    pilot_.released(uid);
    throw_out_of_memory(*this, bytes, full.what());
  }
  pilot_.released(uid);
  failed_ = size;
  throw_out_of_memory(*this, bytes, "");
}

bool CudaManager::clear_what_failed() {
  const Bytes bytes = failed_.exchange(0);
  try {
    return bytes > 0 && arena_ && clear_cheapest(bytes);
  } catch (const TierFull&) {
    return false;  // the operator's next failure says so, with its name
  }
}

void* CudaManager::take_wanted(Bytes bytes, BlockUid uid, Bytes wanted) {
  const Bytes size = round_up(bytes, kUnit);
  if (wanted < kScattered) {
    const Bytes address = arena_->base() + wanted;
    if (void* data = arena_->take_at(address, size, uid)) return data;
    return clear(address, size) ? arena_->take_at(address, size, uid) : nullptr;
  }
  const std::vector<std::uint32_t> pages = pilot_.pages_of(wanted);
  if (pages.empty()) return nullptr;
  if (void* data = arena_->take_on(pages, size, uid)) return data;
  const Bytes page = arena_->page();
  for (std::size_t i = 0; i < pages.size();) {
    std::size_t end = i + 1;
    while (end < pages.size() && pages[end] == pages[end - 1] + 1) ++end;
    if (!clear(arena_->base() + pages[i] * page, static_cast<Bytes>(end - i) * page)) {
      return nullptr;
    }
    i = end;
  }
  return arena_->take_on(pages, size, uid);
}

c10::DataPtr CudaManager::take_in_arena(Bytes bytes, BlockUid uid, Bytes wanted, bool evict) {
  const Bytes size = round_up(bytes, kUnit);
  const auto whole = [&](void* data) {
    note_arena_growth();
    return c10::DataPtr{data, data, &delete_in_arena, device_};
  };
  if (wanted != kNoAddress) {
    if (void* data = take_wanted(size, uid, wanted)) return whole(data);
    ++misplaced_;
  }
  std::int64_t evicted = 0;
  for (bool looked = false;;) {
    if (void* data = arena_->take(size, uid)) {
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
      if (void* data = arena_->take_in_pieces(size, uid)) {
        ++from_reclaim_;
        return whole(data);
      }
      if (full) {
        // Whatever it takes to compute it again.
        EngineLock lock = engine_.lock();
        if (engine_.drop_any(lock) == 0) std::rethrow_exception(full);
        continue;
      }
      // What lies outside the arena is in the way of its growth.
      EngineLock lock = engine_.lock();
      const Bytes left = engine_.reclaim(lock, size);
      lock.unlock();
      if (left == 0) return {};
      BridgeAllocator::instance().native()->emptyCache({0, 0});
      update_capacity();
    }
    ++evicted;
  }
}

bool CudaManager::clear(Bytes address, Bytes bytes) {
  EngineLock lock = engine_.lock();
  std::vector<std::pair<CudaBlock*, BlockUid>> there;
  for (CudaBlock* block : arena_->occupants(address, bytes)) there.emplace_back(block, block->uid);
  for (const auto& [block, uid] : there) {
    // The lock is let go while one leaves: the next may have gone meanwhile.
    if (engine_.knows(lock, block, uid) && !engine_.evict(lock, *block)) return false;
  }
  return true;
}

bool CudaManager::clear_cheapest(Bytes bytes) {
  begin_pressure();
  EngineLock lock = engine_.lock();
  const auto now = static_cast<double>(engine_.clock(lock));
  std::vector<BlockUid> stuck;  // neither is there room for them below, nor can they be dropped
  std::string full;
  bool any = false;
  for (;;) {
    const auto blocks = arena_->cheapest(bytes, [&](CudaBlock& block) {
      if (!engine_.may_evict(lock, block) || std::ranges::find(stuck, block.uid) != stuck.end()) {
        return std::numeric_limits<double>::infinity();
      }
      // Least recently used first, and what need not be copied before what must.
      const double age = now - static_cast<double>(block.last_use) + 1;
      return static_cast<double>(block.size) * (block.copy_valid ? 0.5 : 1.0) / age;
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

void CudaManager::yield_to_native(Bytes bytes) {
  if (!arena_ || arena_->mapped() == 0) return;
  const Bytes reserved = native_reserved();
  if (reserved + bytes + arena_->mapped() <= limit()) return;
  const Bytes budget = limit() - reserved - bytes;
  const Bytes end = arena_->end_for(budget);
  if (arena_->top() > end) (void)clear(end, arena_->top() - end);
  arena_->set_budget(budget);
  empty_arena();
}

void CudaManager::operator_ended() {
  if (!arena_ || since_look_.fetch_add(1, std::memory_order_relaxed) % kLookEvery != 0) return;
  yield_to_native(0);
}

bool CudaManager::record_stream(const c10::DataPtr& data, cudaStream_t stream) {
  if (data.get_deleter() == &delete_absent) {
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

void CudaManager::inherit_users(CudaBlock& block, const void* data) {
  if (block.place != nullptr) {
    for (const cudaStream_t stream : arena_->users_of(block.place)) block.record(stream);
    return;
  }
  for (const cudaStream_t stream : owners_.take_users(data)) block.record(stream);
}

c10::cuda::CUDAStream CudaManager::stream_of(cudaStream_t stream) const {
  return stream == nullptr ? c10::cuda::getDefaultCUDAStream(device_.index())
                           : c10::cuda::getStreamFromExternal(stream, device_.index());
}

void CudaManager::claim(const CudaBlock& block, const c10::DataPtr& data, cudaStream_t owner) {
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

void CudaManager::make_plain(c10::StorageImpl& storage) {
  const void* data = storage._mutable_data_ptr_no_checks().get();
  if (!arena_ || data == nullptr || !arena_->owns(data)) return;
  const c10::cuda::CUDAGuard guard(device_.index());
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

void CudaManager::empty_arena() {
  if (arena_ && !capturing()) arena_->trim();
}

void CudaManager::allow_peer(int peer) {
  if (arena_) arena_->allow(peer);
}

}  // namespace lms::torch
