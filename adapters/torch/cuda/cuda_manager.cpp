#include "adapters/torch/cuda/cuda_manager.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "adapters/torch/backends.h"
#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/system_memory.h"
#include "adapters/torch/thread_state.h"
#include "cuda/device.h"

namespace lms::torch {
namespace {

/// Smaller allocations come from PyTorch's pool of small blocks, and are let through.
constexpr Bytes kLarge = kMiB;
/// PyTorch takes memory from the driver in multiples of this.
constexpr Bytes kSegmentUnit = 2 * kMiB;

using c10::CachingAllocator::StatType;

Bytes current(const c10::CachingAllocator::StatArray& stat) {
  return stat[static_cast<std::size_t>(StatType::AGGREGATE)].current;
}

Bytes peak(const c10::CachingAllocator::StatArray& stat) {
  return stat[static_cast<std::size_t>(StatType::AGGREGATE)].peak;
}

auto native_stats(c10::Device device) {
  return BridgeAllocator::instance().getDeviceStats(device.index());
}

}  // namespace

void CudaBlock::forgotten() noexcept {
  if (auto found = manager_.blocks_.find(key);
      found != manager_.blocks_.end() && found->second == this) {
    manager_.blocks_.erase(found);
  }
}

CudaManager::CudaManager(int index)
    : device_(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)),
      engine_({}, *this, std::make_unique<LruPolicy>(), this) {}

void CudaManager::start(const Settings& settings) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  const c10::cuda::CUDAGuard guard(device_.index());
  auto& bridge = BridgeAllocator::instance();
  const bool was_on = on();
  if (!was_on) bridge.install();
  auto* native = bridge.native();
  const auto [free, total] = native->getMemoryInfo(device_.index());
  const auto stats = native->getDeviceStats(device_.index());
  const Bytes reserved = current(stats.reserved_bytes);
  Bytes limit = settings.limit;
  if (limit < 0) {
    // Libraries (cuBLAS, cuDNN, NCCL) and the driver take memory beside PyTorch's.
    const Bytes margin = std::max<Bytes>(512 * kMiB, static_cast<Bytes>(total) / 64);
    limit = std::max<Bytes>(reserved + static_cast<Bytes>(free) - margin, kLarge);
  }
  const Bytes host_limit =
      settings.host_limit >= 0 ? settings.host_limit : available_memory() / 5 * 4;
  if (!was_on) {
    fraction_before_ = native->getMemoryFraction(device_.index());
    native_deleter_ = native->raw_deleter();
    if (!out_) out_.emplace(device_.index());
    if (!in_) in_.emplace(device_.index());
    arena_.emplace(
        HostArena::Options{.limit = host_limit, .numa_node = cuda::numa_node(device_.index())},
        std::make_shared<cuda::Pinning>());
    std::lock_guard facts(facts_mutex_);
    segments_.clear();
    owners_.clear();
    for (const auto& segment : native->snapshot({0, 0}, false).segments) {
      if (segment.device != device_.index() || segment.stream == nullptr) continue;
      segments_.push_back({segment.address, segment.address + segment.total_size,
                           static_cast<cudaStream_t>(segment.stream)});
    }
  } else if (settings.host_limit >= 0) {
    arena_->set_limit(host_limit);
  }
  if (!was_on || settings.host_limit >= 0) host_limit_ = host_limit;
  limit_ = limit;
  // Reserved bytes keep to the limit as well: PyTorch's allocator refuses to grow beyond it.
  native->setMemoryFraction(fraction_of(limit, total), device_.index());
  min_block_ = was_on ? std::min(min_block(), settings.min_block) : settings.min_block;
  EngineLock lock = engine_.lock();
  engine_.set_options(lock, {.limit = limit, .verify = settings.verify});
  if (settings.stress) {
    engine_.set_policy(lock, std::make_unique<EvictEverythingPolicy>());
  } else {
    engine_.set_policy(lock, std::make_unique<LruPolicy>());
  }
  strict_ = settings.limit >= 0;
  on_ = true;
  engine_.make_room(lock, 0);
  lock.unlock();
  if (reserved > limit) native->emptyCache({0, 0});
  if (!was_on) {
    native->resetPeakStats(device_.index());
    lock.lock();
    engine_.reset_peak(lock);
  }
}

double CudaManager::fraction_of(Bytes limit, std::size_t total) const {
  // Half a byte more, so that PyTorch's way back to bytes does not lose the last one.
  const double fraction = (static_cast<double>(limit) + 0.5) / static_cast<double>(total);
  return std::min(fraction_before_, fraction);
}

void CudaManager::stop() {
  const c10::cuda::CUDAGuard guard(device_.index());
  auto& bridge = BridgeAllocator::instance();
  bridge.native()->setMemoryFraction(fraction_before_, device_.index());
  {
    EngineLock lock = engine_.lock();
    const auto options = engine_.options(lock);
    const Bytes no_limit = INT64_MAX / 2;
    engine_.set_options(lock, {.limit = no_limit, .verify = false});
    limit_ = no_limit;
    if (const Bytes left = engine_.return_all(lock); left > 0) {
      engine_.set_options(lock, options);
      limit_ = options.limit;
      const auto total = bridge.getMemoryInfo(device_.index()).second;
      bridge.native()->setMemoryFraction(fraction_of(options.limit, total), device_.index());
      throw OutOfMemory("LMS: cannot disable on " + device_.str() + ": " + format_bytes(left) +
                        " are on the host and do not fit the device; they stay managed. Free "
                        "tensors, or move them to the CPU, and disable again");
    }
    std::vector<Block*> all;
    engine_.for_each(lock, [&](Block& block) { all.push_back(&block); });
    for (Block* block : all) engine_.remove(lock, *block);
    on_ = false;
  }
  bridge.uninstall();
  // Copies that the last page-ins queued still read the arena.
  cuda::check(cudaStreamSynchronize(in_->stream()), "cudaStreamSynchronize");
  cuda::check(cudaStreamSynchronize(out_->stream()), "cudaStreamSynchronize");
  arena_.reset();
}

// Storages

bool CudaManager::may_manage(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  // Only memory of PyTorch's own allocator: not IPC, not from_blob, not another library's.
  if (data.get() == nullptr || data.get_deleter() != native_deleter_ ||
      data.get() != data.get_context()) {
    return false;
  }
  std::lock_guard facts(facts_mutex_);
  return !excluded_.contains(data.get());
}

Block* CudaManager::find(EngineLock& /*lock*/, c10::StorageImpl& storage) {
  const auto found = blocks_.find(&storage);
  return found == blocks_.end() ? nullptr : found->second;
}

Block* CudaManager::find_or_track(EngineLock& lock, c10::StorageImpl& storage) {
  const auto bytes = static_cast<Bytes>(storage.nbytes());
  if (const auto found = blocks_.find(&storage); found != blocks_.end()) {
    CudaBlock& block = *found->second;
    const bool moving = block.state == BlockState::kLeaving || block.state == BlockState::kArriving;
    const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    const c10::DeleterFnPtr mine =
        block.state == BlockState::kAbsent ? &delete_absent : native_deleter_;
    if (moving || (block.size == bytes && data.get_deleter() == mine)) {
      if (in_pool() && capturing() && !block.kept) engine_.keep(lock, block);
      return &block;
    }
    // resize_() and its like have given the storage other memory.
    engine_.remove(lock, block);
    blocks_.erase(&storage);
  }
  if (!on() || bytes < min_block() || bytes == 0 || !may_manage(storage)) return nullptr;
  if (in_pool() && capturing()) return nullptr;
  auto& block = static_cast<CudaBlock&>(
      engine_.add(lock, std::make_unique<CudaBlock>(*this, storage, bytes)));
  blocks_.emplace(&storage, &block);
  return &block;
}

void CudaManager::note_use(EngineLock& /*lock*/, std::span<const Use> uses,
                           const std::optional<c10::Stream>& other) {
  if (in_pool() && capturing()) return;  // capture_begin() has waited for every copy
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  std::optional<cudaStream_t> second;
  if (other && other->device() == device_) second = c10::cuda::CUDAStream(*other).stream();
  for (const Use& use : uses) {
    auto& block = static_cast<CudaBlock&>(*use.block);
    for (const cudaStream_t stream : {current, second.value_or(current)}) {
      if (block.used_on(stream)) continue;
      if (block.copied_in) block.copied_in->block(stream);
      block.streams.push_back(stream);
    }
  }
}

void CudaManager::note_allocation(void* data, cudaStream_t stream) {
  std::lock_guard facts(facts_mutex_);
  if (stream != nullptr) {
    owners_[data] = stream;
  } else if (!owners_.empty()) {
    owners_.erase(data);
  }
}

cudaStream_t CudaManager::owner_of(const void* data) {
  std::lock_guard facts(facts_mutex_);
  if (const auto found = owners_.find(data); found != owners_.end()) return found->second;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  for (const Segment& segment : segments_) {
    if (address >= segment.begin && address < segment.end) return segment.stream;
  }
  return nullptr;
}

void CudaManager::exclude(void* data) {
  std::lock_guard facts(facts_mutex_);
  excluded_.insert(data);
}

// Graph captures

bool CudaManager::capturing() const {
  return captures_.load(std::memory_order_relaxed) > 0 ||
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

void CudaManager::capture_begin() {
  const c10::cuda::CUDAGuard guard(device_.index());
  {
    EngineLock lock = engine_.lock();
    // What does not fit stays absent; the capture fails, with words, if it needs that.
    (void)engine_.return_all(lock);
    engine_.pause(lock);
  }
  cuda::check(cudaStreamSynchronize(in_->stream()), "cudaStreamSynchronize");
  cuda::check(cudaStreamSynchronize(out_->stream()), "cudaStreamSynchronize");
  ++captures_;
}

void CudaManager::capture_end() {
  --captures_;
  EngineLock lock = engine_.lock();
  engine_.resume(lock);
}

// Memory

Bytes CudaManager::in_use() const { return current(native_stats(device_).allocated_bytes); }

bool CudaManager::prepare_room(Bytes bytes) {
  EngineLock lock = engine_.lock();
  if (!engine_.make_room(lock, round_up(bytes, 512)) && strict_) return false;
  lock.unlock();
  // The bytes fit under the limit; but the allocator may hold its free ones in pieces, and may not
  // take more from the driver. Then evict one block whose place is large enough.
  const auto stats = native_stats(device_);
  if (current(stats.reserved_bytes) + round_up(bytes, kSegmentUnit) > limit()) {
    std::size_t largest = 1;
    BridgeAllocator::instance().cacheInfo(device_.index(), &largest);
    lock.lock();
    if (static_cast<Bytes>(largest) < bytes) (void)engine_.reclaim_one(lock, bytes, 2 * bytes);
    return true;
  }
  lock.lock();
  return true;
}

bool CudaManager::relieve(Bytes bytes, int attempt) {
  EngineLock lock = engine_.lock();
  Bytes left = 0;
  switch (attempt) {
    case 0:
      left = engine_.reclaim_one(lock, bytes, 2 * bytes);
      return left > 0 || engine_.reclaim(lock, bytes) > 0;
    case 1:
      return engine_.reclaim(lock, std::max(2 * bytes, limit() / 8)) > 0;
    case 2:
      (void)engine_.reclaim(lock, INT64_MAX);
      lock.unlock();
      BridgeAllocator::instance().emptyCache({0, 0});
      return true;
    default:
      return false;
  }
}

template <typename Result>
Result CudaManager::with_room(std::size_t size, const std::function<Result()>& allocate) {
  const auto bytes = static_cast<Bytes>(size);
  if (in_pool() && capturing()) return allocate();
  try {
    if (bytes < std::min(kLarge, min_block())) {
      try {
        return allocate();
      } catch (const c10::OutOfMemoryError&) {
        // Goes on below.
      }
    } else {
      std::int64_t evictions = 0;
      {
        EngineLock lock = engine_.lock();
        evictions = engine_.stats(lock).evictions;
      }
      const auto before = native_stats(device_).num_device_alloc;
      if (!prepare_room(bytes)) throw_out_of_memory(*this, bytes, "");
      try {
        Result result = allocate();
        EngineLock lock = engine_.lock();
        if (engine_.stats(lock).evictions != evictions) {
          ++from_reclaim_;
        } else {
          lock.unlock();
          ++(native_stats(device_).num_device_alloc != before ? from_driver_ : from_free_list_);
          lock.lock();
        }
        return result;
      } catch (const c10::OutOfMemoryError&) {
        // Fragmentation, or memory that others hold.
      }
    }
    ++from_retry_;
    for (int attempt = 0; relieve(bytes, attempt); ++attempt) {
      try {
        return allocate();
      } catch (const c10::OutOfMemoryError&) {
        // The next attempt frees more.
      }
    }
  } catch (const TierFull& full) {
    throw_out_of_memory(*this, bytes, full.what());
  }
  throw_out_of_memory(*this, bytes, "");
}

template c10::DataPtr CudaManager::with_room<c10::DataPtr>(std::size_t,
                                                           const std::function<c10::DataPtr()>&);
template void* CudaManager::with_room<void*>(std::size_t, const std::function<void*()>&);

void CudaManager::reclaim_everything() {
  try {
    EngineLock lock = engine_.lock();
    (void)engine_.reclaim(lock, INT64_MAX);
  } catch (const TierFull&) {
    // The operator's next failure says so, with its name.
  }
  (void)cudaGetLastError();  // the driver's own "out of memory" is not to be found by others
  BridgeAllocator::instance().emptyCache({0, 0});
}

Bytes CudaManager::least_limit(Bytes needed, Bytes requested) {
  // PyTorch's allocator takes memory from the driver in segments: 2 MiB for small allocations, 20
  // for those below 10, else in steps of 2. What is reserved after a reclaim is in use.
  constexpr Bytes kSmallLimit = kMiB;
  constexpr Bytes kMediumLimit = 10 * kMiB;
  constexpr Bytes kMediumSegment = 20 * kMiB;
  const Bytes segment = requested < kSmallLimit    ? kSegmentUnit
                        : requested < kMediumLimit ? kMediumSegment
                                                   : round_up(requested, kSegmentUnit);
  return std::max(needed, current(native_stats(device_).reserved_bytes) + segment);
}

// Figures

void CudaManager::add_stats(std::map<std::string, std::int64_t>& stats) {
  const auto native = on() ? native_stats(device_) : c10::CachingDeviceAllocator::DeviceStats{};
  const auto& allocated = native.allocated_bytes[static_cast<std::size_t>(StatType::AGGREGATE)];
  stats["device.bytes.current"] = allocated.current;
  stats["device.bytes.peak"] = allocated.peak;
  stats["device.bytes.allocated"] = allocated.allocated;
  stats["device.bytes.freed"] = allocated.freed;
  stats["device.reserved.current"] = current(native.reserved_bytes);
  stats["device.reserved.peak"] = peak(native.reserved_bytes);
  stats["alloc.freelist"] = from_free_list_.load();
  stats["alloc.driver"] = from_driver_.load();
  stats["alloc.reclaim"] = from_reclaim_.load();
  stats["alloc.retry"] = from_retry_.load();
  stats["host.bytes.allocated"] = stats["host.bytes.freed"] = host_allocated_.load();
  if (!arena_) return;
  const auto host = arena_->stats();
  stats["host.bytes.current"] = host.used;
  stats["host.bytes.peak"] = host.peak_used;
  stats["host.bytes.freed"] -= host.used;
  stats["host.bytes.reserved"] = host.reserved;
  stats["host.pending"] = host.pending;
  stats["host.segments"] = host.segments;
}

void CudaManager::reset_peak() {
  {
    EngineLock lock = engine_.lock();
    engine_.reset_peak(lock);
  }
  if (!on()) return;
  BridgeAllocator::instance().resetPeakStats(device_.index());
  arena_->reset_peak();
}

// Backend

std::unique_ptr<DeviceManager> make_cuda_manager(int index) {
  const int count = cuda_device_count();
  if (index < 0 || index >= count) {
    throw BadSetting("LMS: there is no device cuda:" + std::to_string(index) + "; " +
                     (count == 0 ? std::string("no CUDA device can be used here")
                                 : "valid are cuda:0 to cuda:" + std::to_string(count - 1)));
  }
  return std::make_unique<CudaManager>(index);
}

int cuda_device_count() noexcept { return cuda::device_count(); }

int current_cuda_device() { return cuda_device_count() > 0 ? c10::cuda::current_device() : 0; }

std::string cuda_build_version() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

std::vector<double> measure_cuda_link(int index, Bytes bytes) {
  const auto rates = cuda::measure_link(index, bytes);
  return {rates.to_host, rates.to_device, rates.both_each_way, rates.pinning};
}

}  // namespace lms::torch
