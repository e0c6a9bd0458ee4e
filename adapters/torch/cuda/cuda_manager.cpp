#include "adapters/torch/cuda/cuda_manager.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "adapters/torch/backends.h"
#include "adapters/torch/cuda/bridge_allocator.h"
#include "adapters/torch/cuda/native_stats.h"
#include "adapters/torch/cuda/on_device.h"
#include "adapters/torch/cuda/unused_memory.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/system_memory.h"
#include "base/node_allocator.h"
#include "cuda/device.h"

namespace lms::torch {
namespace {

SharedFreeNodes& free_blocks() {
  static auto* blocks = new SharedFreeNodes;  // storages outlive static destructors
  return *blocks;
}

}  // namespace

void* CudaBlock::operator new(std::size_t size) { return free_blocks().take(size); }

void CudaBlock::operator delete(void* block, std::size_t size) noexcept {
  free_blocks().give(block, size);
}

void CudaBlock::forgotten() noexcept {
  if (place != nullptr) {
    if (!place_given) manager_.memory_.arena()->unlink(place, this);
  } else if (!is_away(state)) {
    manager_.pilot().gone(uid);  // PyTorch's own memory dies without a word
  }
  if (auto found = manager_.blocks_.find(key);
      found != manager_.blocks_.end() && found->second == this) {
    manager_.blocks_.erase(found);
  }
}

CudaManager::CudaManager(int index)
    : DeviceManager(engine_, pilot_device_),
      device_(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)),
      kernels_(index),
      memory_(*this, engine_, device_),
      mover_(*this, engine_, memory_, device_),
      below_(*this, mover_, device_),
      pilot_device_(*this, memory_, device_),
      engine_({}, mover_, std::make_unique<LruPolicy>(), &memory_) {
  fused_ = make_fused_rules(device_, kernels_);
  pass_kernels_ = std::make_unique<PassKernels>(kernels_);
}

void CudaManager::start(const Options& settings) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  const c10::cuda::CUDAGuard guard(device_.index());
  if (on()) {
    start_with(settings, /*was_on=*/true);
    return;
  }
  process_ = getpid();
  auto& bridge = BridgeAllocator::instance();
  bridge.install();
  fraction_ = bridge.native()->getMemoryFraction(device_.index());
  try {
    start_with(settings, /*was_on=*/false);
  } catch (...) {
    on_ = false;
    mover_.stop();
    bridge.native()->setMemoryFraction(fraction_, device_.index());
    bridge.uninstall();
    throw;
  }
}

void CudaManager::start_with(const Options& settings, bool was_on) {
  auto* native = BridgeAllocator::instance().native();
  const auto [free, total] = native->getMemoryInfo(device_.index());
  const auto stats = native->getDeviceStats(device_.index());
  const Bytes reserved = current(stats.reserved_bytes);
  Bytes limit = settings.limit;
  if (limit < 0) {
    // Libraries (cuBLAS, cuDNN, NCCL) and the driver take memory beside PyTorch's.
    const Bytes margin = std::max<Bytes>(512 * kMiB, static_cast<Bytes>(total) / 64);
    const Bytes mapped = memory_.arena() != nullptr ? memory_.arena()->mapped() : 0;
    limit = std::max<Bytes>(reserved + mapped + static_cast<Bytes>(free) - margin, kLarge);
  }
  const auto bound = static_cast<Bytes>(fraction_ * static_cast<double>(total));
  if (limit > bound + 1) {  // a fraction is rarely exact
    if (settings.limit >= 0) {
      say(device_, "the limit is " + format_bytes(bound) +
                       ", as set_per_process_memory_fraction has it, not " + format_bytes(limit));
    }
    limit = bound;
  }
  const Bytes host_limit = settings.host_limit >= 0 ? settings.host_limit : default_host_limit();
  if (!was_on) {
    memory_.start(limit, static_cast<Bytes>(total));
    mover_.start(host_limit);
  } else if (settings.host_limit >= 0) {
    mover_.set_limit(host_limit);
  }
  if (!was_on || settings.host_limit >= 0) set_host_limit(host_limit);
  limit_ = limit;
  total_ = total;
  // Reserved bytes keep to the limit as well: PyTorch's allocator refuses to grow beyond it.
  native->setMemoryFraction(fraction_of(limit, total), device_.index());
  min_block_ = was_on ? std::min(min_block(), settings.min_block) : settings.min_block;
  EngineLock lock = engine_.lock();
  engine_.set_options(lock, {.limit = limit, .verify = settings.verify});
  if (settings.stress) {
    engine_.set_policy(lock, std::make_unique<EvictEverythingPolicy>(settings.drop));
  } else {
    engine_.set_policy(lock, std::make_unique<ForesightPolicy>(pilot_.foresight()));
  }
  memory_.set_strict(settings.limit >= 0);
  drops_everything_ = settings.stress && settings.drop;
  other_algorithms_ = settings.other_algorithms;
  slice_mode_ = torch::slice_mode(settings.slices);
  slice_memory_.clear();
  on_ = true;
  make_room_at_start(lock);
  lock.unlock();
  give_back_unused(device_, limit, /*first=*/!was_on);
  try {
    memory_.yield_to_native(0);
  } catch (const TierFull&) {
    // As in make_room_at_start().
  }
  memory_.update_capacity();
  pilot_.start(pilot_options(settings, limit));
  if (!was_on) {
    native->resetPeakStats(device_.index());
    lock.lock();
    engine_.reset_peak(lock);
    memory_.reset_reserved_peak();
  }
  settings_ = settings;
}

void CudaManager::set_memory_fraction(double fraction) {
  const RegistryLock lock;
  fraction_ = fraction;
  if (on()) start(settings_);
}

double CudaManager::fraction_of(Bytes limit, std::size_t total) const {
  // Half a byte more, so that PyTorch's way back to bytes does not lose the last one.
  const double fraction = (static_cast<double>(limit) + 0.5) / static_cast<double>(total);
  return std::min(fraction_.load(), fraction);
}

void CudaManager::bound_native(Bytes bytes) {
  if (!on()) return;
  auto* native = BridgeAllocator::instance().native();
  native->setMemoryFraction(fraction_of(bytes, total_), device_.index());
}

void CudaManager::stop() {
  pilot_.stop();
  const c10::cuda::CUDAGuard guard(device_.index());
  auto& bridge = BridgeAllocator::instance();
  bridge.native()->setMemoryFraction(fraction_, device_.index());
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;
  {
    EngineLock lock = engine_.lock();
    const auto options = engine_.options(lock);
    const Bytes no_limit = INT64_MAX / 2;
    engine_.set_options(lock, {.limit = no_limit, .verify = false});
    limit_ = no_limit;
    lock.unlock();
    memory_.update_capacity();
    lock.lock();
    if (const Bytes left = engine_.return_all(lock); left > 0) {
      engine_.set_options(lock, options);
      limit_ = options.limit;
      lock.unlock();
      memory_.update_capacity();
      const auto total = bridge.getMemoryInfo(device_.index()).second;
      bridge.native()->setMemoryFraction(fraction_of(options.limit, total), device_.index());
      pilot_.go_on();
      throw OutOfMemory("LMS: cannot disable on " + device_.str() + ": " + format_bytes(left) +
                        " are on the host and do not fit the device; they stay managed. Free "
                        "tensors, or move them to the CPU, and disable again");
    }
    engine_.settle(lock);
    mover_.arrive_all(lock, held);
    std::vector<Block*> all;
    engine_.for_each(lock, [&](Block& block) {
      if (!block.end_comes()) all.push_back(&block);
    });
    for (Block* block : all) engine_.remove(lock, *block);
    on_ = false;
  }
  lineages().stop();
  bridge.uninstall();
  // Copies that the last page-ins queued still read the host's memory.
  mover_.finish();
  mover_.stop();
  memory_.empty_arena();
}

// Storages

bool CudaManager::may_manage(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  // Only memory of our arena or PyTorch's own allocator: not IPC, not from_blob, not another
  // library's.
  if (data.get() == nullptr || !memory_.on_device(data) || data.get() != data.get_context())
    return false;
  return !memory_.is_pooled(data.get());
}

Block* CudaManager::find(EngineLock& /*lock*/, c10::StorageImpl& storage) {
  const auto found = blocks_.find(&storage);
  return found == blocks_.end() ? nullptr : found->second;
}

Block* CudaManager::find_or_track(EngineLock& lock, c10::StorageImpl& storage) {
  if (const auto found = blocks_.find(&storage); found != blocks_.end()) {
    CudaBlock& block = *found->second;
    const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    const bool stays = block.state == BlockState::kResident || block.state == BlockState::kFresh;
    // As nearly always: it lies in the arena where it has lain.
    if (stays && !block.ahead_of_use && data.get() == block.place && block.place != nullptr &&
        data.get_deleter() == &CudaMemory::delete_in_arena &&
        block.size == static_cast<Bytes>(storage.nbytes()) && !memory_.in_pool()) {
      return &block;
    }
    return find_or_track_again(lock, storage, &block);
  }
  const auto bytes = static_cast<Bytes>(storage.nbytes());
  if (!on() || bytes < min_block() || bytes == 0) return nullptr;
  return find_or_track_again(lock, storage, nullptr);
}

Block* CudaManager::find_or_track_again(EngineLock& lock, c10::StorageImpl& storage,
                                        CudaBlock* known) {
  const auto bytes = static_cast<Bytes>(storage.nbytes());
  if (known != nullptr) {
    CudaBlock& block = *known;
    const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    const bool below = is_away(block.state) || block.ahead_of_use;
    const bool mine =
        below ? data.get_deleter() == &CudaMover::delete_absent : memory_.on_device(data);
    const bool in_place = below || block.place == nullptr || block.place == data.get();
    if (is_moving(block.state) || (block.size == bytes && mine && in_place)) {
      if (memory_.in_pool() && capturing() && !block.kept) engine_.keep(lock, block);
      return &block;
    }
    // resize_() and its like have given the storage other memory.
    forget(lock, storage, block);
  }
  if (!on() || bytes < min_block() || bytes == 0 || !may_manage(storage)) return nullptr;
  if (memory_.in_pool() && capturing()) return nullptr;
  auto& block = static_cast<CudaBlock&>(
      engine_.add(lock, std::make_unique<CudaBlock>(*this, storage, bytes)));
  blocks_.emplace(&storage, &block);
  void* data = storage._mutable_data_ptr_no_checks().get();
  block.home = memory_.owner_of(data);
  if (DeviceArena* const arena = memory_.arena(); arena != nullptr && arena->owns(data)) {
    block.place = data;
    block.uid = arena->track(data, &block);
  } else {
    block.beside = memory_.is_beside(data);
  }
  if (block.uid == 0) block.uid = Pilot::new_uid();
  return &block;
}

CudaBlock& CudaManager::add_lent(EngineLock& lock, std::unique_ptr<CudaBlock> block) {
  c10::StorageImpl* const storage = block->key;
  auto& added = static_cast<CudaBlock&>(engine_.add_lent(lock, std::move(block)));
  blocks_.emplace(storage, &added);
  return added;
}

void CudaManager::forget(EngineLock& lock, c10::StorageImpl& storage, CudaBlock& block) {
  engine_.remove(lock, block);
  blocks_.erase(&storage);
}

void CudaManager::memory_goes(c10::StorageImpl& storage) {
  // Other memory may lie at the same address, as large: it would be taken for the old block's.
  EngineLock lock = engine_.lock();
  const auto found = blocks_.find(&storage);
  if (found == blocks_.end()) return;
  CudaBlock& block = *found->second;
  // What has come ahead of its use says so as what is away does.
  if (announces_death(block) || block.ahead_of_use || block.state != BlockState::kResident) return;
  forget(lock, storage, block);
}

void CudaManager::note_use(EngineLock& /*lock*/, std::span<const Use> uses,
                           const std::optional<c10::Stream>& other) {
  // capture_begin() has waited for every copy, and nothing is fetched since.
  if (memory_.in_pool() && capturing()) return;
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  std::optional<cudaStream_t> second;
  if (other && other->device() == device_) second = c10::cuda::CUDAStream(*other).stream();
  for (const Use& use : uses) {
    auto& block = static_cast<CudaBlock&>(*use.block);
    const auto note = [&](cudaStream_t stream) {
      if (block.used_on(stream)) return;
      if (block.copied_in) memory_.wait_on(stream, block.copied_in);
      block.streams.push_back(stream);
    };
    note(current);
    if (second) note(*second);
    if (block.ahead_of_use) {
      mover_.arrive(block, *block.key);
      // Until now kernels that LMS cannot see may have read the copy on this stream.
      const OnDevice guard(device_.index());
      block.slot_used = cuda::Event::record(device_.index(), current);
      block.has_copy = block.copy_valid = mover_.keeps_copies();
      if (!block.has_copy) mover_.drop_copy(block);
    }
    if (use.writes && block.has_copy) {
      // Whoever else came first has only read.
      mover_.drop_copy(block);
      block.has_copy = block.copy_valid = false;
    }
    // Who says that a second stream uses the block (record_stream) does not write it here and now:
    // the next writer may come on a stream that does not wait for this one.
    if (use.writes && block.being_copied && !second) {
      memory_.wait_on(current, block.being_copied);
      block.being_copied.reset();
    }
  }
}

void CudaManager::emulate_link(double rate) {
  if (!on()) throw BadSetting("LMS: " + device_.str() + " is not managed");
  double slow_out = 1;
  double slow_in = 1;
  if (rate > 0) {
    const auto own = cuda::measure_link(device_.index(), 64 * kMiB);
    slow_out = own.to_host * 1e9 / rate;
    slow_in = own.to_device * 1e9 / rate;
    if (slow_out < 1 || slow_in < 1) {
      throw BadSetting("LMS: the link of " + device_.str() + " moves " +
                       std::to_string(own.to_host) + " GB/s to the host and " +
                       std::to_string(own.to_device) +
                       " GB/s to the device, and can only be made slower");
    }
  }
  mover_.slow_down(slow_out, slow_in);
}

// Computing again

bool CudaManager::is_in_order() {
  return memory_.serves(c10::cuda::getCurrentCUDAStream(device_.index()).stream());
}

bool CudaManager::records_here() { return is_in_order() && !capturing(); }

void CudaManager::in_order(const std::function<void()>& work) {
  const auto index = device_.index();
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream(index).stream();
  const cudaStream_t main = memory_.main_stream();
  if (current == main || !memory_.has_main_stream()) {
    work();
    return;
  }
  const c10::cuda::CUDAGuard here(index);
  cuda::Event::record(index, current)->block(main);
  {
    const c10::cuda::CUDAStreamGuard guard(memory_.stream_of(main));
    work();
  }
  cuda::Event::record(index, main)->block(current);
}

bool CudaManager::announces_death(const Block& block) const {
  // PyTorch's own memory dies without a word.
  return static_cast<const CudaBlock&>(block).place != nullptr || is_away(block.state);
}

bool CudaManager::keep_for_lineages(CudaBlock& block, BlockUid uid, c10::DataPtr data) {
  Lineages::Trash trash;  // destroyed after the lock is let go
  EngineLock lock = engine_.lock();
  if (!engine_.knows(lock, &block, uid) || !lineages().keep_bytes(block, trash)) {
    (void)data.release_context();
    return false;
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(block.size), std::move(data),
      c10::cuda::CUDACachingAllocator::get(), /*resizable=*/false);
  give(block, *storage);
  trash.origins.push_back(lineages().keep(block, std::move(storage)));
  return true;
}

void CudaManager::give(CudaBlock& block, c10::StorageImpl& storage) {
  blocks_.erase(block.key);
  block.key = &storage;
  block.storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
  blocks_.emplace(block.key, &block);
}

void CudaManager::rename(EngineLock& lock, c10::StorageImpl& from, c10::StorageImpl& to) {
  if (Block* const block = find(lock, from)) give(static_cast<CudaBlock&>(*block), to);
}

// Graph captures

bool CudaManager::capturing() const {
  return captures_.load(std::memory_order_relaxed) > 0 ||
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

void CudaManager::capture_begin() {
  const c10::cuda::CUDAGuard guard(device_.index());
  lineages().expose_small();
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;
  {
    EngineLock lock = engine_.lock();
    // What does not fit stays absent; the capture fails, with words, if it needs that.
    (void)engine_.return_all(lock);
    engine_.pause(lock);
    engine_.settle(lock);  // another thread's block may be on its way
    mover_.arrive_all(lock, held);
  }
  mover_.finish();
  ++captures_;
}

void CudaManager::capture_end() {
  --captures_;
  EngineLock lock = engine_.lock();
  engine_.resume(lock);
}

// Figures

void CudaManager::add_stats(std::map<std::string, std::int64_t>& stats) {
  // With what lies in the arena, see BridgeAllocator::getDeviceStats.
  const auto native = on() ? BridgeAllocator::instance().getDeviceStats(device_.index())
                           : c10::CachingDeviceAllocator::DeviceStats{};
  const auto& allocated =
      native.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  stats["device.bytes.current"] = allocated.current;
  stats["device.bytes.peak"] = allocated.peak;
  stats["device.bytes.allocated"] = allocated.allocated;
  stats["device.bytes.freed"] = allocated.freed;
  stats["device.reserved.current"] = current(native.reserved_bytes);
  stats["device.reserved.peak"] = peak(native.reserved_bytes);
  memory_.add_stats(stats);
  mover_.add_stats(stats);
  std::int64_t& failures = stats["replays.fused_failed"];
  for (const auto& rule : fused_) failures += rule->failures();
}

void CudaManager::reset_peak() {
  {
    EngineLock lock = engine_.lock();
    engine_.reset_peak(lock);
  }
  if (!on()) return;
  BridgeAllocator::instance().resetPeakStats(device_.index());
  mover_.reset_peak();
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
