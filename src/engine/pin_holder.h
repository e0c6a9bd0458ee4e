#pragma once

#include <cstdint>

namespace lms {

class Block;
class Engine;

/// A thread, as others see it that need the room which it takes: they wait for the end of its
/// operator, as long as that comes without them (Engine::wait_for_others). A thread has one, which
/// outlives its operators. Guarded by the engine's lock, but for what its thread sets while it is
/// not inside.
class PinHolder {
 public:
  /// Its operator ends whatever other threads do: it waits for none but for room. Set before
  /// Engine::enter().
  bool ends = true;
  /// What it does can be done again from the start if it is refused room. Its thread's.
  bool repeatable = false;
  /// It holds locks that others may need before they end: it waits for nobody, neither to enter nor
  /// for room, which it is refused instead. Its thread's.
  bool holds_locks = false;
  /// It will hold such locks, and cannot be done again: where room is short it enters alone, so
  /// that nobody has what it needs. Set before Engine::enter().
  bool wants_alone = false;

  /// The engine that it is inside of, or null. For its own thread.
  [[nodiscard]] Engine* engine() const { return engine_; }
  /// It has been refused room that other threads' operators took: once it has left, the next
  /// enter() waits until it has the device for itself. For its own thread.
  [[nodiscard]] bool contended() const { return contended_; }
  /// Another was inside when it entered. For its own thread.
  [[nodiscard]] bool crowded() const { return crowded_; }

 private:
  friend class Engine;
  enum class Waits : std::uint8_t { kNo, kMove, kRoom };

  Engine* engine_ = nullptr;
  Waits waits_ = Waits::kNo;
  const Block* waits_for_ = nullptr;  ///< whose move
  std::uint64_t seen_ = 0;            ///< what had changed when it began to wait
  bool refused_ = false;              ///< it is to give up, for others to go on
  bool contended_ = false;
  bool crowded_ = false;
  // No operator begins while a thread queues for room, or is alone.
  bool queues_ = false;
  bool alone_ = false;
  bool closes_ = false;  ///< either
};

}  // namespace lms
