#pragma once

#include <functional>
#include <optional>

#include "engine/block.h"

namespace lms {

/// How the bytes of one device's blocks move. The engine decides *when*; a mover knows *how*.
///
/// page_out and page_in are called without the engine's lock, by one thread per block at a time
/// (the block is kLeaving or kArriving). They may call into the framework's allocator.
class Mover {
 public:
  virtual ~Mover() = default;

  /// Moves the bytes off the device. With `clean` the lower copy is valid, as far as the engine
  /// knows, and nothing is copied; a mover that finds it stale copies all the same.
  /// Afterwards the block has a valid copy below and holds no device memory.
  /// Returns the bytes copied, or nothing if the block may not leave after all (its storage died
  /// or is no longer the adapter's): the engine then forgets the block, or leaves that to whoever
  /// ends its storage (Block::end_comes()).
  /// Throws TierFull with nothing changed.
  virtual std::optional<Bytes> page_out(Block& block, bool clean) = 0;

  /// Begins a copy below of a block that stays on the device, so that it can leave without copying
  /// later. The copy is valid for whoever comes after it in stream order. Returns the bytes copied,
  /// or nothing if it cannot be done here; then nothing has changed. Throws TierFull likewise.
  virtual std::optional<Bytes> copy_below(Block& /*block*/) { return std::nullopt; }

  /// Brings the bytes back. The copy below stays as a clean copy, and the mover sets
  /// `block.has_copy` accordingly. With `ahead` nobody uses the bytes yet: whoever does first waits
  /// for them. Returns the bytes copied, or nothing if the storage is no longer the adapter's.
  /// Throws OutOfMemory or TierFull with nothing changed.
  virtual std::optional<Bytes> page_in(Block& block, bool ahead) = 0;

  /// True if an absent block can be used where its bytes lie, though slowly: then it need not be
  /// brought in where no room can be made, and page_out() has nothing to copy. With the engine's
  /// lock.
  [[nodiscard]] virtual bool usable_below(Block& /*block*/) { return false; }

  /// Gives the device memory (and the copy below) of a block back whose bytes can be computed
  /// again, and copies nothing. False if they cannot, or if that would take more than `most` bytes
  /// at once (kUnlimited: whatever it takes) or make it take more for what has been dropped before:
  /// then nothing has changed. As page_out, without the lock.
  virtual bool drop(Block& /*block*/, Bytes /*most*/) { return false; }
  static constexpr Bytes kUnlimited = INT64_MAX;
  /// Likewise of an absent block, which has only its copy below.
  virtual bool drop_absent(Block& /*block*/, Bytes /*most*/) { return false; }
  /// Whether it ever may.
  [[nodiscard]] virtual bool drops_absent() const { return false; }
  /// Computes a dropped block's bytes again. May use the engine, for what they are computed from;
  /// never for the block itself. `take` makes room for the block and counts its bytes, where the
  /// engine does that itself: to be called once, when nothing else is held any more that can be
  /// let go of, and before the block has its memory; it throws OutOfMemory or TierFull. False if
  /// the storage is gone or no longer the adapter's. Throws whatever computing them throws, with
  /// nothing changed.
  virtual bool rematerialise(Block& /*block*/, const std::function<void()>& /*take*/) {
    return false;
  }

  /// Moves the bytes of a block that stays on the device to where they are wanted there, in stream
  /// order. True if they have moved; else nothing has changed. As page_out, without the lock.
  virtual bool relocate(Block& /*block*/) { return false; }

  /// Gives the lower copy of a resident block back. Called under the engine's lock; must be cheap
  /// and must not call back.
  virtual void drop_copy(Block& block) noexcept = 0;

  /// Compares a clean block's bytes with its copy (LMS_VERIFY). True when equal. Without a lock.
  virtual bool copy_matches(Block& block) = 0;
};

/// Reads how many bytes of a device are in use, where the engine does not do the counting itself.
class Meter {
 public:
  virtual ~Meter() = default;
  /// Called without the engine's lock.
  [[nodiscard]] virtual Bytes in_use() const = 0;
};

}  // namespace lms
