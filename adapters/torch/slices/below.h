#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/engine.h"

namespace lms::torch {

/// A block that has come into being below.
struct Born {
  std::uint64_t uid = 0;
  Bytes bytes = 0;
};

/// How an operator in slices works on blocks where their bytes lie below: in ranges, through memory
/// of the device that it has for a while. Every block is lent to the caller (Engine::lend).
///
/// Stream order: reads and writes begin after all that is queued on the current stream, which goes
/// on at once: it uses what was read, and reuses what is being written, only after wait().
/// Thread-safe for different blocks.
class Below {
 public:
  virtual ~Below() = default;

  /// Copies run beside the computation: it pays to begin them early.
  [[nodiscard]] virtual bool copies_beside() const { return false; }
  /// True if an absent block may be written where it lies.
  [[nodiscard]] virtual bool writable(const Block& /*block*/) { return true; }

  /// A storage that is born below, of unspecified contents, and its block, of which the pilot has
  /// not heard.
  struct Made {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    Block* block = nullptr;
  };
  /// `bytes` is at least the device's min_block(). Throws TierFull, with nothing changed.
  virtual Made make(Bytes bytes) = 0;

  /// A copy that has been begun; null: it has ended.
  using Copy = std::shared_ptr<const void>;
  /// Copies `bytes` of the block, from `offset` on, to memory of the device.
  virtual Copy read(Block& block, Bytes offset, void* to, Bytes bytes) = 0;
  /// Likewise back.
  virtual Copy write(Block& block, Bytes offset, const void* from, Bytes bytes) = 0;
  /// The current stream goes on only after it.
  virtual void wait(const Copy& copy) = 0;
  /// The current stream has waited for every copy of the block, or is what has used it where it
  /// lies: before it is given back.
  virtual void end(Block& block, bool written) = 0;

  // Where kernels work on what lies here
  // -----------------------------------------------------------

  /// To kernels it is like memory of the device, but for its speed.
  [[nodiscard]] virtual bool like_memory() const { return false; }
  /// No allocation that a library keeps for other calls is larger. Here it would slow all of them.
  [[nodiscard]] virtual Bytes most_kept_by_libraries() const { return 0; }
  /// What the current stream does from now on, until end(), may use the lent block where it lies.
  /// False: kernels cannot.
  virtual bool begin(Block& block, bool writes) = 0;
  /// Memory here for what a kernel allocates. Throws TierFull; null: kernels cannot use it.
  virtual c10::DataPtr allocate(Bytes bytes) = 0;
  /// A storage whose memory is from allocate(): its block, lent to the caller, of which the pilot
  /// has not heard. Null if its memory is another.
  virtual Block* adopt(c10::StorageImpl& storage) = 0;
};

/// What `take` gives, which needs so much room below. Where there is none: once more, without what
/// is dead and without copies of what is also on the device; then without what can be computed
/// again. Throws what `take` throws.
template <typename Take>
auto take_below(Engine& engine, Bytes bytes, Take take) {
  for (bool first = true;; first = false) {
    try {
      return take();
    } catch (const TierFull&) {
      EngineLock lock = engine.lock();
      bool freed = false;
      if (first) {
        const std::int64_t known = engine.stats(lock).blocks.current;
        engine.collect_dead(lock);
        freed = engine.stats(lock).blocks.current < known;
        freed = engine.drop_copies(lock, bytes) > 0 || freed;
      }
      if (!freed && !engine.make_room_below(lock, bytes)) throw;
    }
  }
}

/// The block leaves now if it may, and there is room below; else lend() sees to it.
inline void evict_early(EngineLock& lock, Engine& engine, Block& block) {
  try {
    (void)engine.evict(lock, block);
  } catch (const TierFull&) {
    // lend() can make room there.
  }
}

}  // namespace lms::torch
