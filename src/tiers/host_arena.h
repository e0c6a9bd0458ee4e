#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace lms {

/// Makes host memory fast for a device (pins it). The base class does nothing: ordinary memory.
/// Called from whichever thread needs a segment, one segment at a time, while other threads may
/// take slots from segments already there and return them. Must not call back into the arena.
class HostPinning {
 public:
  HostPinning() = default;
  HostPinning(const HostPinning&) = delete;
  HostPinning& operator=(const HostPinning&) = delete;
  virtual ~HostPinning();

  /// Pins `[p, p + n)`. May throw: the arena then gives the memory back and passes the error on.
  virtual void pin(void* p, std::size_t n);
  /// Undoes pin() for exactly the same range. Must tolerate a device runtime already torn down.
  virtual void unpin(void* p, std::size_t n) noexcept;
};

/// A point in a device's work that host memory may have to wait for before it is used again.
class Fence {
 public:
  Fence() = default;
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;
  virtual ~Fence();

  /// Whether the point was reached. Does not block; must not call back into the arena.
  virtual bool done() = 0;
  /// Blocks until done() holds. May throw when the device has failed.
  virtual void wait() = 0;
};
using FencePtr = std::shared_ptr<Fence>;

class HostSlot;
class HostGathering;

/// The memory of a slot: HostSlot::data() and size().
struct HostRange {
  const void* data;
  Bytes size;
};

/// Host memory in exact sizes, out of large segments that are mapped, bound to a NUMA node, touched
/// and pinned once.
///
/// A slot takes its size rounded up to 4 KiB and lies within one segment. `Options::limit` is a
/// hard cap on reserved (mapped) bytes. Thread-safe. Slots share ownership of the memory, so they
/// may outlive the arena. A process forked off must not use the arena or its slots.
class HostArena {
 public:
  static constexpr Bytes kAlignment = 4 * kKiB;

  struct Stats {
    Bytes limit = 0;
    Bytes reserved = 0;   ///< mapped, in segments
    Bytes pinned = 0;     ///< of `reserved`, what HostPinning holds (all of it, once mapped)
    Bytes used = 0;       ///< in live slots, after rounding
    Bytes pending = 0;    ///< released, but their fence was not yet seen to be done
    Bytes peak_used = 0;  ///< most `used` since the start or reset_peak()
    int segments = 0;
    Bytes mapped = 0;              ///< in all segments that there have been
    std::int64_t fence_waits = 0;  ///< times acquire() had to block for a fence
  };

  struct Options {
    Bytes limit = 0;        ///< most bytes ever reserved; rounded down to 4 KiB
    Bytes step = 1 * kGiB;  ///< segments are at least this large, as far as `limit` allows
    int numa_node = -1;     ///< node to prefer; -1: wherever the kernel likes
    int touch_threads = 0;  ///< threads that touch a new segment; 0: by size, at most 8
    /// Called once, with no lock held, from the acquire() that takes `used` past 90 % of `limit`;
    /// armed again by set_limit(). Must not throw.
    std::function<void(const Stats&)> on_high_water = nullptr;
  };

  /// Reserves nothing yet. `pinning` may be null: ordinary memory. BadSetting on a negative limit
  /// or on a step that is not positive.
  HostArena(Options options, std::shared_ptr<HostPinning> pinning);
  ~HostArena();
  HostArena(HostArena&&) noexcept;
  HostArena& operator=(HostArena&&) noexcept;

  /// A slot of at least `n` bytes (n >= 0), aligned to 4 KiB, contents unspecified. Takes the
  /// smallest free range of the oldest segment for such sizes that has one; else looks which fences
  /// are done; else maps a segment; else takes the smallest free range of any; else waits for
  /// fences of released slots whose segment may have room then; else gives wholly free segments
  /// back if that makes room for one (to pin memory anew takes some 0.3 s a GiB); else waits for
  /// the other fences, oldest first; else throws TierFull (wanted, held, limit), with every live
  /// slot untouched.
  [[nodiscard]] HostSlot acquire(Bytes n);

  /// For the case that what is free would hold `n` bytes, but not in one piece: chooses segments
  /// that hold them once their slots have moved to others, and as little as possible need move.
  /// `movable`: the live slots that the caller can move. Empty if there are no such segments.
  [[nodiscard]] HostGathering gather(Bytes n, std::span<const HostRange> movable);

  [[nodiscard]] Stats stats() const;
  void reset_peak();

  /// A limit below what is reserved gives free segments back at once, the others as their last slot
  /// returns. Live slots stay valid.
  void set_limit(Bytes limit);

  /// Gives wholly free segments back to the system.
  void trim() noexcept;

 private:
  friend class HostSlot;
  friend class HostGathering;
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// What a slot of `n` bytes takes.
constexpr Bytes host_slot_bytes(Bytes n) { return round_up(n > 0 ? n : 1, HostArena::kAlignment); }

/// A move-only piece of a HostArena. Destruction returns it, usable by others at once.
class HostSlot {
 public:
  HostSlot() = default;
  ~HostSlot() { release(nullptr); }
  HostSlot(HostSlot&& other) noexcept;
  HostSlot& operator=(HostSlot&& other) noexcept;

  [[nodiscard]] void* data() const { return data_; }
  /// The size that was asked for.
  [[nodiscard]] Bytes size() const { return size_; }
  explicit operator bool() const { return impl_ != nullptr; }

  /// Returns the memory; it is used again only once `fence` is done (null: at once). The slot is
  /// empty afterwards. Does not block.
  void release(FencePtr fence) noexcept;

 private:
  friend class HostArena::Impl;
  std::shared_ptr<HostArena::Impl> impl_;
  void* data_ = nullptr;
  Bytes size_ = 0;
};

/// Segments that are being emptied: as long as it lives, no slot is taken from them, and they are
/// not given back. Move-only.
class HostGathering {
 public:
  HostGathering() = default;
  HostGathering(HostGathering&&) noexcept = default;
  HostGathering& operator=(HostGathering&&) = delete;
  ~HostGathering();

  explicit operator bool() const { return !segments_.empty(); }
  /// The slot at this address is to move.
  [[nodiscard]] bool contains(const void* data) const;

 private:
  friend class HostArena::Impl;
  std::shared_ptr<HostArena::Impl> impl_;
  std::vector<HostRange> segments_;
};

}  // namespace lms
