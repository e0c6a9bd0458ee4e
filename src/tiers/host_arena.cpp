#include "tiers/host_arena.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tiers/host_segments.h"
#include "tiers/mapped_memory.h"

namespace lms {
namespace {

struct Pending {
  char* data;
  Bytes size;
  FencePtr fence;
};

using Segments = HostSegments::Owned;

}  // namespace

HostPinning::~HostPinning() = default;
void HostPinning::pin(void* /*p*/, std::size_t /*n*/) {}
void HostPinning::unpin(void* /*p*/, std::size_t /*n*/) noexcept {}

Fence::~Fence() = default;

class HostArena::Impl {
 public:
  Impl(Options options, std::shared_ptr<HostPinning> pinning)
      : options_(checked(std::move(options))),
        pinning_(std::move(pinning)),
        segments_(options_.step) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    // A device may still be copying into released slots.
    for (auto& pending : pending_) wait_quietly(*pending.fence);
  }

  static HostSlot acquire(const std::shared_ptr<Impl>& self, Bytes n) {
    if (n < 0) throw BadSetting("host arena: a negative size was asked for");
    HostSlot slot;
    slot.data_ = self->obtain(n);
    slot.size_ = n;
    slot.impl_ = self;
    self->warn_once();
    return slot;
  }

  void release(void* data, Bytes n, FencePtr fence) noexcept {
    const Bytes size = host_slot_bytes(n);
    Segments gone;
    {
      const std::lock_guard lock(mutex_);
      used_ -= size;
      ++returns_;
      if (fence) {
        pending_bytes_ += size;
        pending_.push_back({static_cast<char*>(data), size, std::move(fence)});
      } else {
        segments_.put_back(static_cast<char*>(data), size);
        if (reserved_ > options_.limit) segments_.take_idle(reserved_ - options_.limit, gone);
      }
    }
    give_back(gone);
  }

  static HostGathering gather(const std::shared_ptr<Impl>& self, Bytes n,
                              std::span<const HostRange> movable) {
    HostGathering gathering;
    const std::lock_guard lock(self->mutex_);
    const Bytes room = self->options_.limit - self->reserved_;
    for (HostSegment* segment : self->segments_.to_empty(host_slot_bytes(n) - room, movable)) {
      segment->closed = true;
      gathering.segments_.push_back({segment->data(), segment->size()});
    }
    gathering.impl_ = self;
    return gathering;
  }

  void open(std::span<const HostRange> segments) noexcept {
    const std::lock_guard lock(mutex_);
    for (const HostRange& segment : segments) segments_.of(segment.data).closed = false;
  }

  [[nodiscard]] Stats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_locked();
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_used_ = used_;
  }

  void set_limit(Bytes limit) {
    if (limit < 0) throw BadSetting("host arena: the limit must not be negative");
    std::vector<FencePtr> done;
    Segments gone;
    {
      const std::lock_guard lock(mutex_);
      recycle(done);
      options_.limit = round_down(limit, kAlignment);
      warned_ = false;
      if (reserved_ > options_.limit) segments_.take_idle(reserved_ - options_.limit, gone);
    }
    give_back(gone);
  }

  void trim() noexcept {
    std::vector<FencePtr> done;
    Segments gone;
    {
      const std::lock_guard lock(mutex_);
      try {
        recycle(done);
      } catch (const std::exception&) {
        // A fence that cannot be asked keeps its memory.
      }
      segments_.take_idle(std::numeric_limits<Bytes>::max(), gone);
    }
    give_back(gone);
  }

 private:
  static Options checked(Options options) {
    if (options.limit < 0) throw BadSetting("host arena: the limit must not be negative");
    if (options.step <= 0) throw BadSetting("host arena: the step must be positive");
    options.limit = round_down(options.limit, kAlignment);
    options.step = round_up(options.step, kAlignment);
    return options;
  }

  /// Whether idle segments may be given back for one of another size.
  enum class Anew : std::uint8_t { kNo, kYes };

  char* obtain(Bytes n) {
    if (n > std::numeric_limits<Bytes>::max() - kAlignment) throw_full(n);
    const Bytes size = host_slot_bytes(n);
    std::size_t patience = 0;  // others may go on releasing
    for (bool first = true;; first = false) {
      std::uint64_t seen = 0;
      {
        std::vector<FencePtr> done;
        const std::lock_guard lock(mutex_);
        if (char* data = take_suiting(size)) return data;
        recycle(done);
        if (char* data = take_suiting(size)) return data;
        seen = returns_;
        if (first) patience = pending_.size();
      }
      if (char* data = grow(size, Anew::kNo)) return data;
      if (patience > 0) {
        --patience;
        if (const FencePtr fence = fence_worth_waiting_for(size)) {
          fence->wait();
          continue;
        }
      }
      if (char* data = grow(size, Anew::kYes)) return data;
      FencePtr oldest;
      {
        const std::lock_guard lock(mutex_);
        if (!pending_.empty()) {
          oldest = pending_.front().fence;
          ++fence_waits_;
        } else if (returns_ != seen) {
          continue;
        }
      }
      if (!oldest) throw_full(size);
      oldest->wait();
    }
  }

  // The oldest of a segment that may hold `size` bytes in one piece once its slots have returned.
  FencePtr fence_worth_waiting_for(Bytes size) {
    const std::lock_guard lock(mutex_);
    std::map<const HostSegment*, Bytes> returning;
    for (const Pending& one : pending_) returning[&segments_.of(one.data)] += one.size;
    for (const Pending& one : pending_) {
      const HostSegment& segment = segments_.of(one.data);
      if (segment.closed || segment.free.free_bytes() + returning[&segment] < size) continue;
      ++fence_waits_;
      return one.fence;
    }
    return nullptr;
  }

  // Returns the fences of what it recycled, to be dropped by the caller without the lock.
  void recycle(std::vector<FencePtr>& done) {
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (!it->fence->done()) {
        ++it;
        continue;
      }
      done.push_back(std::move(it->fence));
      pending_bytes_ -= it->size;
      segments_.put_back(it->data, it->size);
      ++returns_;
      it = pending_.erase(it);
    }
  }

  char* count(char* data, Bytes size) {
    if (data == nullptr) return nullptr;
    used_ += size;
    peak_used_ = std::max(peak_used_, used_);
    return data;
  }
  char* take_suiting(Bytes size) { return count(segments_.take_suiting(size), size); }
  char* take_any(Bytes size) { return count(segments_.take_any(size), size); }

  // Segments that were taken out stay counted as reserved until they have been unmapped.
  void give_back(Segments& gone) noexcept {
    if (gone.empty()) return;
    Bytes size = 0;
    for (const auto& [data, segment] : gone) size += segment->size();
    gone.clear();
    const std::lock_guard lock(mutex_);
    reserved_ -= size;
  }

  // Maps a segment and takes `size` bytes from it, if the limit allows one of a whole step; else
  // takes them from any that has them; null when none has, and none can be mapped.
  char* grow(Bytes size, Anew anew) {
    const std::lock_guard growing(grow_mutex_);
    Segments gone;
    {
      const std::lock_guard lock(mutex_);
      // Another thread may have grown it while this one waited.
      if (char* data = take_suiting(size)) return data;
      const Bytes room = options_.limit - reserved_;
      if (room < std::max(options_.step, size)) {
        if (char* data = take_any(size)) return data;
      }
      if (room < size) {
        if (anew == Anew::kNo || room + segments_.idle_bytes() < size) return nullptr;
        segments_.take_idle(size - room, gone);
      }
    }
    give_back(gone);

    Bytes segment_size = 0;
    {
      const std::lock_guard lock(mutex_);
      const Bytes room = options_.limit - reserved_;
      if (room < size) return nullptr;
      segment_size = std::min(std::max(options_.step, size), room);
      reserved_ += segment_size;
    }
    Bytes counted = segment_size;
    try {
      auto memory = MappedMemory::anonymous(segment_size);
      if (!memory) memory = MappedMemory::anonymous(size);
      if (!memory) {
        throw TierFull("host arena: the system refused to map " + format_bytes(size) + ": " +
                       std::strerror(errno));
      }
      memory.prefer_node(options_.numa_node);
      memory.touch(options_.touch_threads);
      auto segment = std::make_unique<HostSegment>(std::move(memory), pinning_);

      const std::lock_guard lock(mutex_);
      HostSegment& added = *segment;
      segments_.add(std::move(segment));
      reserved_ -= std::exchange(counted, 0) - added.size();
      mapped_ += added.size();
      return count(added.data() + *added.free.take(size), size);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      reserved_ -= counted;
      throw;
    }
  }

  void warn_once() {
    Stats now;
    {
      const std::lock_guard lock(mutex_);
      if (warned_ || !options_.on_high_water || used_ <= options_.limit / 10 * 9) return;
      warned_ = true;
      now = stats_locked();
    }
    options_.on_high_water(now);
  }

  [[nodiscard]] Stats stats_locked() const {
    Stats s;
    s.limit = options_.limit;
    s.reserved = reserved_;
    s.used = used_;
    s.pending = pending_bytes_;
    s.peak_used = peak_used_;
    s.segments = static_cast<int>(segments_.all().size());
    s.fence_waits = fence_waits_;
    s.mapped = mapped_;
    if (pinning_) {
      for (const auto& [data, segment] : segments_.all()) s.pinned += segment->size();
    }
    return s;
  }

  [[noreturn]] void throw_full(Bytes size) const {
    const Stats s = stats();
    throw TierFull("host arena is full: wanted " + format_bytes(size) + " in one piece, " +
                   format_bytes(s.used) + " in use, " + format_bytes(s.reserved) + " held, limit " +
                   format_bytes(s.limit));
  }

  static void wait_quietly(Fence& fence) noexcept {
    try {
      fence.wait();
    } catch (const std::exception&) {
      // The device has failed: nothing of it can be running any more.
    }
  }

  // Held while a segment is made; taken before mutex_, which is never held across a system call.
  std::mutex grow_mutex_;
  mutable std::mutex mutex_;
  Options options_;
  std::shared_ptr<HostPinning> pinning_;
  HostSegments segments_;
  std::deque<Pending> pending_;
  Bytes reserved_ = 0;
  Bytes mapped_ = 0;
  Bytes used_ = 0;
  Bytes peak_used_ = 0;
  Bytes pending_bytes_ = 0;
  std::uint64_t returns_ = 0;  // slots that became free: tells a waiter to look again
  std::int64_t fence_waits_ = 0;
  bool warned_ = false;
};

HostArena::HostArena(Options options, std::shared_ptr<HostPinning> pinning)
    : impl_(std::make_shared<Impl>(std::move(options), std::move(pinning))) {}
HostArena::~HostArena() = default;
HostArena::HostArena(HostArena&&) noexcept = default;
HostArena& HostArena::operator=(HostArena&&) noexcept = default;

HostSlot HostArena::acquire(Bytes n) { return Impl::acquire(impl_, n); }
HostGathering HostArena::gather(Bytes n, std::span<const HostRange> movable) {
  return Impl::gather(impl_, n, movable);
}
HostArena::Stats HostArena::stats() const { return impl_->stats(); }
void HostArena::reset_peak() { impl_->reset_peak(); }
void HostArena::set_limit(Bytes limit) { impl_->set_limit(limit); }
void HostArena::trim() noexcept { impl_->trim(); }

HostSlot::HostSlot(HostSlot&& other) noexcept
    : impl_(std::move(other.impl_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

HostSlot& HostSlot::operator=(HostSlot&& other) noexcept {
  if (this != &other) {
    release(nullptr);
    impl_ = std::move(other.impl_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void HostSlot::release(FencePtr fence) noexcept {
  const auto impl = std::move(impl_);
  if (!impl) return;
  impl->release(std::exchange(data_, nullptr), std::exchange(size_, 0), std::move(fence));
}

HostGathering::~HostGathering() {
  if (impl_) impl_->open(segments_);
}

bool HostGathering::contains(const void* data) const {
  const auto* const at = static_cast<const char*>(data);
  return std::ranges::any_of(segments_, [&](const HostRange& segment) {
    const auto* const begin = static_cast<const char*>(segment.data);
    return begin <= at && at < begin + segment.size;
  });
}

}  // namespace lms
