// Threads that wait in the engine, and a lock outside it that they share.

#include <atomic>
#include <mutex>
#include <thread>

#include "engine_wait.h"

namespace lms::testing {
namespace {

/// An interpreter's lock. Whoever has taken it also wants the engine's, as a thread that frees a
/// tensor does.
class Interpreter final : public OuterLock {
 public:
  explicit Interpreter(Engine& engine) : engine_(engine) {}

  void take() {
    mutex_.lock();
    holder_.store(std::this_thread::get_id());
    const EngineLock lock = engine_.lock();
  }
  void let_go() {
    holder_.store({});
    mutex_.unlock();
  }
  void* release() noexcept override {
    if (holder_.load() != std::this_thread::get_id()) return nullptr;
    let_go();
    return this;
  }
  void acquire(void* released) override {
    EXPECT_EQ(released, this);
    take();
  }
  /// Whoever waits in the engine lets it go.
  void join() {
    auto lock = engine_.lock();
    engine_.wait_without(lock, this);
  }
  [[nodiscard]] bool is_mine() const { return holder_.load() == std::this_thread::get_id(); }

 private:
  Engine& engine_;
  std::mutex mutex_;
  std::atomic<std::thread::id> holder_;
};

/// Of two threads that share an interpreter the second needs it for its operator to end.
TEST_F(EngineWait, NobodyWaitsWithTheInterpretersLock) {
  Interpreter interpreter(world.engine);
  interpreter.join();
  SimBlock& a = world.used(60, 1);
  first.pin(a);
  std::jthread other([&] {
    interpreter.take();
    EXPECT_NE(second.make(60), nullptr);
    EXPECT_TRUE(interpreter.is_mine());
    second.end();
    interpreter.let_go();
  });
  wait_for_waiting(world, 1);
  interpreter.take();
  first.end();
  interpreter.let_go();
  other.join();
  check_consistent(world);
}

TEST_F(EngineWait, NorForAMove) {
  Interpreter interpreter(world.engine);
  interpreter.join();
  SimBlock& a = world.used(60, 1);
  ASSERT_TRUE(world.evict(a));
  Gate arriving;
  Gate wanted;
  world.sim.set_hooks({.mid_move = [&](SimBlock&, Direction) {
    arriving.open();
    wanted.wait();
    // What computes a block again, say, lets a tensor go that Python knows.
    interpreter.take();
    interpreter.let_go();
  }});
  std::jthread other([&] {
    first.pin(a);
    first.end();
  });
  arriving.wait();
  std::jthread waits([&] {
    interpreter.take();
    second.pin(a);
    EXPECT_TRUE(a.holds(1));
    second.end();
    interpreter.let_go();
  });
  wait_for_waiting(world, 1);
  wanted.open();
}

}  // namespace
}  // namespace lms::testing
