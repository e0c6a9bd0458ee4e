#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"

namespace lms {

class Engine;
class PinHolder;

/// Where a block's bytes are. The engine changes it, and nobody else
/// (transitions.cpp):
///
///   kFresh ──first unpin──► kResident ──► kLeaving ──► kAbsent ───► kArriving ──► kResident
///                                             ├──────► kDropped ──────┘
///                                             └─ kAbsent ◄──► kLent ──► kDropped
///
/// kLeaving, kArriving and kLent belong to the one thread that moves the bytes, or works on them;
/// every other thread that needs the block waits for it.
enum class BlockState : std::uint8_t {
  kFresh,     ///< made, and not yet used as an operator's input: its maker may still hold pointers
  kResident,  ///< on the device
  kLeaving,   ///< being evicted
  kAbsent,    ///< in a lower tier only
  kDropped,   ///< nowhere; known is how to compute them again
  kArriving,  ///< being paged in, or computed
  kLent,      ///< in a lower tier only, where an operator works on it in pieces
};

/// True if the device has none of the bytes, and nobody is bringing them.
constexpr bool is_away(BlockState state) {
  return state == BlockState::kAbsent || state == BlockState::kDropped;
}

/// True while the block belongs to one thread, for which all others wait.
constexpr bool is_moving(BlockState state) {
  return state == BlockState::kLeaving || state == BlockState::kArriving ||
         state == BlockState::kLent;
}

/// The bytes behind one tensor storage: the unit of residency. A device's adapter derives from it
/// to keep what it needs to move the bytes. All members are guarded by the engine's lock, except
/// that the thread in a transition may use the derived part without it.
class Block {
 public:
  explicit Block(Bytes size) : size(size) {}
  virtual ~Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// False once the storage that the block stands for is gone, where the adapter can tell only by
  /// asking. Called under the engine's lock; must be cheap and must not call back.
  [[nodiscard]] virtual bool alive() const { return true; }

  /// True if the storage is gone, and whoever ends it is on the way to Engine::remove() with a
  /// pointer to the block, which must live until then. Called under the engine's lock; as alive().
  [[nodiscard]] virtual bool end_comes() const { return false; }

  /// The engine forgets the block: drop every reference to it. Called under the engine's lock,
  /// before the destructor, which runs without it. Must not call back.
  virtual void forgotten() noexcept {}

  Bytes size;
  std::uint64_t id = 0;  ///< in order of creation, from 1; unique within an engine
  /// Who the bytes are to the recorder of steps (steps/step_log.h); 0: nobody. Set by the adapter.
  std::uint64_t uid = 0;
  /// Its memory comes and goes beside the step (a collective's, on a stream of its own): the
  /// recorder does not hear of it. Set by the adapter.
  bool beside = false;
  std::uint64_t last_use = 0;  ///< the engine's clock of operators at the last unpin
  /// When it is expected to be used next, by the clock of Foresight; 0: nobody knows.
  std::uint64_t expected_use = 0;
  bool expected_end = false;  ///< it is expected to die then, unused
  BlockState state = BlockState::kFresh;
  std::int32_t pins = 0;    ///< > 0: some operator or raw user needs the bytes on the device
  bool copy_valid = false;  ///< clean: a lower tier holds these very bytes
  bool has_copy = false;    ///< a lower tier holds a copy, valid or not
  bool kept = false;        ///< stays resident until its storage dies
  bool died = false;        ///< storage is gone; erased as soon as nobody uses the block
  bool ending = false;      ///< the mover has found that its end comes; it stays where it is

  Engine* engine = nullptr;  ///< the engine that owns the block
  /// While it is kArriving or kLent: on whose behalf; null: somebody's who does not wait for room.
  PinHolder* arrives_for = nullptr;

  // Links of the policy's list. Owned by the policy.
  Block* newer = nullptr;
  Block* older = nullptr;
  bool listed = false;
};

}  // namespace lms
