// Memory from PyTorch's own allocator, room made for it, and the limits that would do.

#include <cuda_runtime_api.h>

#include <algorithm>

#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/cuda_manager.h"
#include "adapters/torch/cuda/native_stats.h"
#include "adapters/torch/thread_state.h"
#include "cuda/profiler.h"

namespace lms::torch {
namespace {

/// To allocate again, after relieve().
constexpr int kAttempts = 3;

}  // namespace

template <typename Result>
Result CudaMemory::take_or_wait(c10::function_ref<Result()> take) {
  PinHolder* who = nullptr;
  bool waited = false;
  const auto end_wait = [&] {
    if (!waited) return;
    EngineLock lock = engine_.lock(who);
    engine_.end_wait(lock);
  };
  const auto wait = [&](std::uint64_t before) {
    who = may_wait_as();
    if (who == nullptr) return false;
    EngineLock lock = engine_.lock(who);
    if (engine_.changes() != before) return true;
    waited = true;
    return engine_.wait_for_others(lock);
  };
  try {
    // take() looks for room without the lock: what others let go meanwhile it may have missed.
    std::uint64_t before = engine_.changes();
    Result result = take();
    while (!result && wait(before)) {
      before = engine_.changes();
      result = take();
    }
    end_wait();
    return result;
  } catch (...) {
    end_wait();
    throw;
  }
}

template c10::DataPtr CudaMemory::take_or_wait<c10::DataPtr>(c10::function_ref<c10::DataPtr()>);

c10::DataPtr CudaMemory::take_if_free(std::size_t size) {
  const auto bytes = static_cast<Bytes>(size);
  if (in_use() + round_up(bytes, 512) > manager_.limit()) return {};
  try {
    auto data = BridgeAllocator::instance().native()->allocate(size);
    note_allocation(data.get(), bytes);
    return data;
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

bool CudaMemory::is_small(Bytes bytes) const {
  return bytes < std::min(kLarge, manager_.min_block());
}

bool CudaMemory::prepare_room(Bytes bytes) {
  EngineLock lock = engine_.lock();
  if (!engine_.make_room(lock, round_up(bytes, 512)) && strict_) return false;
  lock.unlock();
  // The bytes fit under the limit; but the allocator may hold its free ones in pieces, and may not
  // take more from the driver. Then evict one block whose place is large enough.
  const auto stats = native_stats(device_);
  const Bytes segment = round_up(bytes, kSegmentUnit);
  const auto fits = [&] {
    return current(stats.reserved_bytes) + segment + (arena_ ? arena_->mapped() : 0) <=
           manager_.limit();
  };
  if (!fits()) {
    std::size_t largest = 1;
    BridgeAllocator::instance().cacheInfo(device_.index(), &largest);
    if (static_cast<Bytes>(largest) >= bytes) return true;
    yield_to_native(segment);
    if (fits()) return true;
    lock.lock();
    (void)engine_.reclaim_one(lock, bytes, 2 * bytes);
  }
  return true;
}

bool CudaMemory::relieve(Bytes bytes, int attempt) {
  if (!reclaim_for(bytes, attempt)) return false;
  yield_to_native(round_up(bytes, kSegmentUnit));
  return true;
}

bool CudaMemory::reclaim_for(Bytes bytes, int attempt) {
  cuda::mark("reclaim", bytes);
  EngineLock lock = engine_.lock();
  Bytes left = 0;
  switch (attempt) {
    case 0:
      left = engine_.reclaim_one(lock, bytes, 2 * bytes);
      return left > 0 || engine_.reclaim(lock, bytes) > 0;
    case 1:
      return engine_.reclaim(lock, std::max(2 * bytes, manager_.limit() / 8)) > 0;
    default:
      (void)engine_.reclaim(lock, INT64_MAX);
      lock.unlock();
      if (manager_.capturing()) return true;  // what follows waits for the device
      BridgeAllocator::instance().emptyCache({0, 0});
      // What may not leave keeps the memory below it in the arena.
      if (arena_ && arena_->mapped() - arena_->used() >= bytes) {
        arena_->move_window();
        arena_->trim();
        update_capacity();
      }
      return true;
  }
}

template <typename Result>
Result CudaMemory::with_room(std::size_t size, c10::function_ref<Result()> allocate) {
  const auto bytes = static_cast<Bytes>(size);
  if (bytes == 0 || (in_pool() && manager_.capturing())) return allocate();
  if (is_small(bytes)) {
    try {
      return allocate();
    } catch (const c10::OutOfMemoryError&) {
      // Room is made below.
    }
  }
  try {
    if (Result result = take_or_wait<Result>([&] { return try_with_room(bytes, allocate); })) {
      return result;
    }
  } catch (const TierFull& full) {
    throw_out_of_memory(manager_, {.requested = bytes, .reason = full.what()});
  }
  throw_out_of_memory(manager_, {.requested = bytes});
}

template <typename Result>
Result CudaMemory::try_with_room(Bytes bytes, c10::function_ref<Result()> take) {
  const auto allocate = [&] {
    bound_native();
    return take();
  };
  {
    if (is_small(bytes)) {
      try {
        return allocate();
      } catch (const c10::OutOfMemoryError&) {
        // Goes on below.
      }
    } else {
      const auto evictions = [&] {
        EngineLock lock = engine_.lock();
        return engine_.stats(lock).evictions;
      };
      const std::int64_t evicted = evictions();
      const auto before = native_stats(device_).num_device_alloc;
      if (!prepare_room(bytes)) return {};
      try {
        Result result = allocate();
        const bool grown = native_stats(device_).num_device_alloc != before;
        if (grown) update_capacity();
        const bool reclaimed = evictions() != evicted;
        ++(reclaimed ? from_reclaim_ : grown ? from_driver_ : from_free_list_);
        return result;
      } catch (const c10::OutOfMemoryError&) {
        // Fragmentation, or memory that others hold.
      }
    }
    ++from_retry_;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (!relieve(bytes, attempt)) continue;
      try {
        Result result = allocate();
        update_capacity();
        return result;
      } catch (const c10::OutOfMemoryError&) {
        // The next attempt frees more.
      }
    }
  }
  return {};
}

template c10::DataPtr CudaMemory::with_room<c10::DataPtr>(std::size_t,
                                                          c10::function_ref<c10::DataPtr()>);
template void* CudaMemory::with_room<void*>(std::size_t, c10::function_ref<void*()>);

void CudaMemory::reclaim_everything() {
  try {
    EngineLock lock = engine_.lock();
    (void)engine_.reclaim(lock, INT64_MAX);
  } catch (const TierFull&) {
    // The operator's next failure says so, with its name.
  }
  (void)cudaGetLastError();  // the driver's own "out of memory" is not to be found by others
  BridgeAllocator::instance().emptyCache({0, 0});
}

Bytes CudaMemory::least_limit(Bytes needed, Bytes requested) {
  // PyTorch's allocator takes memory from the driver in segments: 2 MiB for small allocations, 20
  // for those below 10, else in steps of 2. What is reserved after a reclaim is in use.
  constexpr Bytes kSmallLimit = kMiB;
  constexpr Bytes kMediumLimit = 10 * kMiB;
  constexpr Bytes kMediumSegment = 20 * kMiB;
  const Bytes segment = requested < kSmallLimit    ? kSegmentUnit
                        : requested < kMediumLimit ? kMediumSegment
                                                   : round_up(requested, kSegmentUnit);
  const Bytes reserved = current(native_stats(device_).reserved_bytes);
  const Bytes native = reserved + (arena_ ? arena_->used() : 0) + segment;
  if (!arena_ || requested < manager_.min_block()) return std::max(needed, native);
  // The arena takes memory in chunks, and leaves slack(limit) of what is not reserved.
  const Bytes chunks = reserved + round_up(arena_->used() + requested, arena_->page());
  return std::max({needed, native, chunks + slack(chunks + kSlack)});
}

std::string CudaMemory::what_is_wasted() {
  constexpr Bytes kMuch = 8;  // what is this part of the limit is worth a word
  const auto stats = native_stats(device_);
  const Bytes reserved = current(stats.reserved_bytes);
  const Bytes used = current(stats.allocated_bytes);
  if ((reserved - used) * kMuch >= manager_.limit()) {
    return "PyTorch's allocator holds " + format_bytes(reserved) + ", of which " +
           format_bytes(used) +
           " are in use, and gives no segment back in which something is. Where that is cuBLAS's "
           "workspaces, and no CUDA graph has been captured, "
           "torch._C._cuda_clearCublasWorkspaces() and torch.cuda.empty_cache() help. ";
  }
  // What the operator has made so far is among them; without an arena what it uses as well.
  const Bytes unmanaged = arena_ ? used + arena_->untracked() : 0;
  if (unmanaged * kMuch < manager_.limit()) return {};
  return format_bytes(unmanaged) +
         " of the limit are in use that LMS cannot move: tensors below min_block, or that no "
         "operator has used yet, what one that runs has made so far, memory of other streams, "
         "workspaces of libraries. ";
}

Bytes CudaMemory::ample_limit(Bytes requested) {
  // Whatever lies in pieces now: a segment more, or a stretch of new pages behind all the others,
  // and what is left to PyTorch's allocator of a limit that much larger.
  const Bytes page = arena_ ? arena_->page() : kSegmentUnit;
  const Bytes growth = round_up(std::max<Bytes>(requested, 10 * kSegmentUnit), page) + page;
  return manager_.limit() + growth + slack(manager_.limit() + growth + kSlack) -
         slack(manager_.limit());
}

}  // namespace lms::torch
