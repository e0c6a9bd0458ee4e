#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "adapters/torch/backends.h"
#include "adapters/torch/cpu/cpu_below.h"
#include "adapters/torch/cpu/cpu_mover.h"
#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/slices/run_in_place.h"
#include "adapters/torch/system_memory.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

class CpuManager;

/// Frees what CpuAllocator::allocate() returned. The context is the pointer itself, as users of raw
/// allocations (oneDNN) insist, so the block is found by its address.
void delete_memory(void* data);

/// Takes PyTorch's place as CPU allocator: large allocations become blocks, the rest is passed on.
/// Once LMS is off, everything is.
class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(CpuManager& manager) : manager_(manager) {}

  c10::DataPtr allocate(std::size_t bytes) override;
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &delete_memory; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  c10::Allocator* native = nullptr;

 private:
  CpuManager& manager_;
};

class CpuManager final : public DeviceManager, private PilotDevice {
 public:
  CpuManager()
      : DeviceManager(engine_, *this),
        mover_(*this, [this](c10::StorageImpl& made, CpuBlock& to) { return adopt(made, to); }),
        engine_({}, mover_, std::make_unique<LruPolicy>()),
        allocator_(*this),
        below_(*this, mover_, blocks_, {&delete_memory, &allocator_}) {
    pthread_atfork([] { instance->before_fork(); }, [] { instance->after_fork(); },
                   [] { instance->in_child(); });
    instance = this;
  }

  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }
  [[nodiscard]] Engine& engine() override { return engine_; }
  [[nodiscard]] bool manages() const override { return on() && !forked_; }

  void start(const Options& settings) override {
    const Bytes limit = settings.limit >= 0 ? settings.limit : default_host_limit();
    const bool was_on = on();
    if (forked_ && was_on) {
      throw BadSetting(
          "LMS: this process was forked while LMS managed cpu, and reads what it has inherited "
          "where "
          "that lies; call torch_lms.disable() here first, which brings all of it into this "
          "process's memory, or fork before torch_lms.enable()");
    }
    if (!was_on) {
      const std::string directory =
          settings.directory.empty() ? default_directory() : settings.directory;
      const Bytes host_limit =
          settings.host_limit >= 0 ? settings.host_limit : default_file_limit(directory);
      FileStore::Options options;
      options.directory = directory;
      options.limit = host_limit;
      mover_.store = std::make_unique<FileStore>(options);
      set_host_limit(host_limit);
    } else if (settings.host_limit >= 0) {
      mover_.store->set_limit(settings.host_limit);
      set_host_limit(settings.host_limit);
    }
    // Blocks that were managed under a smaller minimum are absent, perhaps: look for them still.
    min_block_ = was_on ? std::min(min_block(), settings.min_block) : settings.min_block;
    limit_ = limit;
    drops_everything_ = settings.stress && settings.drop;
    other_algorithms_ = settings.other_algorithms;
    slice_mode_ = torch::slice_mode(settings.slices);
    slice_memory_.clear();
    EngineLock lock = engine_.lock();
    if (forked_.exchange(false)) engine_.resume(lock);  // a child that begins anew
    engine_.set_options(lock, {.limit = limit, .verify = settings.verify});
    if (settings.stress) {
      engine_.set_policy(lock, std::make_unique<EvictEverythingPolicy>(settings.drop));
    } else {
      engine_.set_policy(lock, std::make_unique<ForesightPolicy>(pilot_.foresight()));
    }
    if (!was_on) {
      if (c10::GetCPUAllocator() != &allocator_) {
        allocator_.native = c10::GetCPUAllocator();
        c10::SetCPUAllocator(&allocator_);
      }
      on_ = true;
    }
    make_room_at_start(lock);
    if (!was_on) engine_.reset_peak(lock);
    lock.unlock();
    pilot_.start(pilot_options(settings, limit));
  }

  void stop() override {
    pilot_.stop();
    EngineLock lock = engine_.lock();
    const Bytes absent = engine_.stats(lock).below.current;
    const Bytes available = available_memory();
    if (absent > available) {
      lock.unlock();
      pilot_.go_on();
      throw OutOfMemory("LMS: cannot disable on cpu: " + format_bytes(absent) +
                        " are in the file and only " + format_bytes(available) +
                        " of memory are available; free tensors first");
    }
    const Engine::Options options = engine_.options(lock);
    engine_.set_options(lock, {.limit = INT64_MAX / 2, .verify = false});
    if (const Bytes left = engine_.return_all(lock); left > 0) {
      engine_.set_options(lock, options);
      lock.unlock();
      pilot_.go_on();
      throw OutOfMemory("LMS: cannot disable on cpu: " + format_bytes(left) +
                        " could not be brought back from the file");
    }
    engine_.settle(lock);
    // What is kept, or used by another thread's operator, where it lies in the file stays there.
    engine_.for_each(lock, [&](Block& block) {
      if (block.state == BlockState::kResident && block.pins == 0) mover_.fetch(block);
    });
    engine_.drop_copies(lock, INT64_MAX);
    lineages().stop();
    on_ = false;
    // Raw allocations are freed by whichever allocator is in place then: while some of ours live,
    // it is this one, which passes on what is not.
    if (blocks_.empty()) c10::SetCPUAllocator(allocator_.native);
    mover_.store.reset();
  }

  [[nodiscard]] bool operators_write(const c10::DataPtr& /*data*/) const override {
    return false;  // numpy's array of a tensor may be older than enable()
  }

  Block* find_or_track(EngineLock& lock, c10::StorageImpl& storage) override {
    return find(lock, storage);
  }

  Block* find(EngineLock& /*lock*/, c10::StorageImpl& storage) override {
    // A forked child moves nothing: what is absent it reads where it lies, in the file. But what it
    // has found dropped it computes, and then it must not write unheard what that is computed from.
    if (forked_ && !computes_) return nullptr;
    const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
    if (data.get_deleter() != &delete_memory) return nullptr;
    const auto found = blocks_.find(data.get());
    return found == blocks_.end() ? nullptr : found->second;
  }

  void note_use(EngineLock& /*lock*/, std::span<const Use> /*uses*/,
                const std::optional<c10::Stream>& /*other*/) override {}

  [[nodiscard]] Bytes room_of(Bytes bytes) const override {
    return bytes < min_block() ? 0 : round_up(bytes, FileStore::kAlignment);
  }

  [[nodiscard]] Below* below() override { return forked_ ? nullptr : &below_; }

  void reclaim_everything() override {
    try {
      EngineLock lock = engine_.lock();
      engine_.reclaim(lock, INT64_MAX);
    } catch (const TierFull&) {
      // The operator's next failure says so, with its name.
    }
  }

  void add_stats(std::map<std::string, std::int64_t>& stats) override {
    stats["alloc.freelist"] = 0;
    stats["alloc.driver"] = from_driver_.load();
    stats["alloc.reclaim"] = from_reclaim_.load();
    stats["alloc.retry"] = 0;
    if (!mover_.store) return;
    const auto file = mover_.store->stats();
    stats["file.bytes.current"] = file.used;
    stats["file.bytes.peak"] = file.peak_used;
    stats["file.bytes.allocated"] = file.written;
    stats["file.bytes.freed"] = file.written - file.used;
    stats["file.bytes.reserved"] = file.reserved;
  }

  void reset_peak() override {
    EngineLock lock = engine_.lock();
    engine_.reset_peak(lock);
    if (mover_.store) mover_.store->reset_peak();
  }

  c10::DataPtr allocate(std::size_t bytes) {
    const Bytes size = round_up(static_cast<Bytes>(bytes), FileStore::kAlignment);
    if (!on() || forked_ || bytes == 0 || static_cast<Bytes>(bytes) < min_block()) {
      return allocator_.native->allocate(bytes);
    }
    if (auto data = allocate_in_place(*this, static_cast<Bytes>(bytes), /*refused=*/false)) {
      return data;
    }
    bool fits = false;
    std::string reason;
    {
      EngineLock lock = engine_.lock(may_wait_as());
      enter_engine(lock, engine_);
      const std::int64_t before = engine_.stats(lock).evictions;
      try {
        fits = engine_.reserve(lock, size);
      } catch (const TierFull& full) {
        reason = full.what();
      }
      ++(engine_.stats(lock).evictions == before ? from_driver_ : from_reclaim_);
    }
    if (!fits) {
      if (auto data = allocate_in_place(*this, static_cast<Bytes>(bytes), /*refused=*/true)) {
        return data;
      }
      throw_out_of_memory(*this, {.requested = size, .reason = reason});
    }
    std::unique_ptr<CpuBlock> block;
    try {
      block =
          std::make_unique<CpuBlock>(blocks_, PagedRegion::make(static_cast<Bytes>(bytes)), size);
    } catch (...) {
      EngineLock lock = engine_.lock();
      engine_.unreserve(lock, size);
      throw;
    }
    void* data = block->region.data();
    block->uid = Pilot::new_uid();
    if (thread_state().in_step()) (void)pilot_.allocating(block->uid, size);
    EngineLock lock = engine_.lock();
    blocks_.emplace(data, static_cast<CpuBlock*>(&engine_.add(lock, std::move(block))));
    return {data, data, &delete_memory, c10::kCPU};
  }

  void free(void* data) {
    Lineages::Trash trash;  // destroyed after the lock is let go
    PagedRegion unused;
    {
      EngineLock lock = engine_.lock();
      if ((unused = below_.take(lock, data))) return;
      if (const auto found = blocks_.find(data); found != blocks_.end()) {
        if (lineages().any() && keep_for_lineages(data, *found->second, trash)) return;
        pilot_.released(found->second->uid);
        engine_.remove(lock, *found->second);
        return;
      }
    }
    allocator_.native->raw_deleter()(data);
  }

  /// The memory of a pinned storage that nobody else has moves to a dropped block's address. False
  /// if it cannot.
  bool adopt(c10::StorageImpl& made, CpuBlock& block) {
    EngineLock lock = engine_.lock();
    auto* const other = static_cast<CpuBlock*>(find(lock, made));
    if (other == nullptr) return false;
    const void* const address = other->region.data();
    if (!block.region.renew_with(other->region)) return false;
    blocks_.erase(address);
    engine_.remove(lock, *other);
    (void)made.set_data_ptr({nullptr, c10::kCPU}).release_context();
    return true;
  }

  static inline CpuManager* instance = nullptr;  ///< callbacks of C have no context

 private:
  // PilotDevice
  void start_laps() override { mover_.timer.start(); }
  void lap() override { mover_.timer.lap(); }
  void restart_lap() override { mover_.timer.restart_lap(); }
  void drop_laps() override { mover_.timer.drop(); }
  Laps finish_laps() override { return mover_.timer.finish(); }
  Room room(bool /*first*/) override { return {.arena = limit(), .addresses = false}; }
  LinkModel link() override { return mover_.timer.link(); }
  void remake_ghost(BlockUid uid, const std::vector<Bytes>& addresses) override {
    lineages().remake_ghost(uid, addresses);
  }
  void drop_ghost(BlockUid uid) override { lineages().drop_ghost(uid); }
  void drop_ghosts() override { lineages().drop_ghosts(); }
  void defer_updates(const std::vector<BlockUid>& written) override { deferred().choose(written); }
  void say(const std::string& line) override { torch::say(c10::kCPU, line); }

  /// True if what is dropped needs the bytes of a storage that is dying.
  bool keep_for_lineages(void* data, CpuBlock& block, Lineages::Trash& trash) {
    if (!lineages().keep_bytes(block, trash)) return false;
    trash.origins.push_back(lineages().keep(
        block, c10::make_intrusive<c10::StorageImpl>(
                   c10::StorageImpl::use_byte_size_t(), c10::SymInt(block.region.size()),
                   c10::DataPtr{data, data, &delete_memory, c10::kCPU}, &allocator_,
                   /*resizable=*/false)));
    return true;
  }

  void before_fork() {
    deferred().before_fork();
    lock_registry();
    fork_lock_.reset(new EngineLock(engine_.lock()));
    // What the child finds it reads where it lies, by whatever code.
    (void)engine_.rematerialise_all(*fork_lock_);
    engine_.settle(*fork_lock_);
    engine_.for_each(*fork_lock_, [&](Block& block) {
      // Not what another thread's operator may be writing where it lies.
      const bool still = block.state == BlockState::kResident && block.pins == 0 && !block.kept;
      // If there is no memory the child sees what the parent writes.
      if (mover_.store && still) mover_.fetch(block);
    });
    lineages().before_fork();
    pilot_.before_fork();
    mover_.timer.before_fork();
    slice_memory_.before_fork();
    counted_versions_.before_fork();
    if (mover_.store) mover_.store->on_fork_prepare();
  }
  void after_fork() {
    if (mover_.store) mover_.store->on_fork_parent();
    counted_versions_.after_fork();
    slice_memory_.after_fork();
    mover_.timer.after_fork();
    pilot_.after_fork();
    lineages().after_fork();
    fork_lock_.reset();
    unlock_registry();
    deferred().after_fork();
  }
  void in_child() {
    // The child reads what the parent had, and manages nothing.
    if (mover_.store) mover_.store->on_fork_child();
    engine_.for_each(*fork_lock_,
                     [](Block& block) { static_cast<CpuBlock&>(block).region.isolate_in_child(); });
    below_.isolate_in_child();
    counted_versions_.after_fork();
    slice_memory_.after_fork();
    mover_.timer.after_fork();
    pilot_.in_child();
    lineages().after_fork();
    engine_.in_child(*fork_lock_);
    engine_.set_options(*fork_lock_, {.limit = INT64_MAX / 2, .verify = false});
    engine_.pause(*fork_lock_);
    forked_ = true;
    computes_ = engine_.stats(*fork_lock_).dropped.current > 0;
    if (!computes_) lineages().abandon();
    drops_everything_ = false;
    fork_lock_.reset();
    unlock_registry();
    deferred().after_fork();
  }

  CpuMover mover_;
  Engine engine_;
  CpuBlocks blocks_;
  CpuAllocator allocator_;
  CpuBelow below_;
  std::unique_ptr<EngineLock> fork_lock_;
  std::atomic<bool> forked_{false};    ///< a child, which has not been enabled itself
  std::atomic<bool> computes_{false};  ///< such a child, and something was dropped at the fork
  std::atomic<std::int64_t> from_driver_{0};
  std::atomic<std::int64_t> from_reclaim_{0};
};

void delete_memory(void* data) { CpuManager::instance->free(data); }

c10::DataPtr CpuAllocator::allocate(std::size_t bytes) { return manager_.allocate(bytes); }

}  // namespace

std::unique_ptr<DeviceManager> make_cpu_manager() { return std::make_unique<CpuManager>(); }

}  // namespace lms::torch
