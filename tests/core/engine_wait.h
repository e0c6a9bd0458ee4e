#pragma once

#include <thread>
#include <vector>

#include "engine_fixture.h"

namespace lms::testing {

/// A thread of an adapter: its operators pin, allocate and end.
class Worker {
 public:
  explicit Worker(World& world) : world_(world) {}

  PinHolder holder;

  void pin(std::vector<Use> uses) {
    EngineLock lock = world_.engine.lock(&holder);
    world_.engine.enter(lock, holder);
    world_.engine.pin(lock, uses);
    held_.insert(held_.end(), uses.begin(), uses.end());
  }
  void pin(SimBlock& block) { pin(std::vector<Use>{{&block, false}}); }
  /// A result of the running operator. Null: there is no room.
  SimBlock* make(Bytes size) {
    {
      EngineLock lock = world_.engine.lock(&holder);
      world_.engine.enter(lock, holder);
      if (!world_.engine.reserve(lock, size)) return nullptr;
    }
    auto block = world_.sim.make_block(size);
    block->fill(9);
    EngineLock lock = world_.engine.lock();
    auto& made = static_cast<SimBlock&>(world_.engine.add(lock, std::move(block)));
    const Use use{&made, true};
    world_.engine.pin(lock, {&use, 1});
    held_.push_back(use);
    return &made;
  }
  void end(bool to_try_again = false) {
    EngineLock lock = world_.engine.lock();
    world_.engine.unpin(lock, held_);
    held_.clear();
    world_.engine.leave(lock, holder, to_try_again);
    world_.engine.operator_ended(lock);
  }

 private:
  World& world_;
  std::vector<Use> held_;
};

/// Until `count` threads wait for anything.
inline void wait_for_waiting(World& world, std::size_t count) {
  for (;;) {
    {
      auto lock = world.engine.lock();
      if (world.engine.waiting(lock) >= count) return;
    }
    std::this_thread::yield();
  }
}

/// Room for 100 bytes, and two threads that want some of it.
class EngineWait : public ::testing::Test {
 protected:
  World world{100};
  Worker first{world};
  Worker second{world};
};

}  // namespace lms::testing
