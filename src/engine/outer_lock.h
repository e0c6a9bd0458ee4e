#pragma once

namespace lms {

/// A lock outside LMS that a thread may hold when it enters an engine, and that other threads need
/// for their operators to end: Python's interpreter lock. No thread keeps it while it waits for
/// others (Engine::wait_without). Thread-safe.
class OuterLock {
 public:
  virtual ~OuterLock() = default;
  /// Lets it go if the calling thread holds it, and returns what acquire() wants; else null. Waits
  /// for nobody: it is called under the engine's lock.
  [[nodiscard]] virtual void* release() noexcept = 0;
  /// Takes it again, on the same thread. Never called under the engine's lock.
  virtual void acquire(void* released) = 0;
};

}  // namespace lms
