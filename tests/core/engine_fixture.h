#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "sim/device.h"

namespace lms::testing {

/// A one-way door that threads wait at until it is opened.
class Gate {
 public:
  void open() {
    const std::lock_guard guard(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock guard(mutex_);
    opened_.wait(guard, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

/// A simulated device of 1 byte/ms each way and an engine over it, with the calls that an adapter
/// would make.
class World {
 public:
  explicit World(Bytes limit, SimDevice::Options device = {},
                 std::unique_ptr<Policy> policy = std::make_unique<LruPolicy>())
      : sim(device), engine({.limit = limit}, sim, std::move(policy)) {}

  /// A block that its maker has just filled with `value`: not yet evictable.
  SimBlock& fresh(Bytes size, std::uint64_t value = 0) {
    auto lock = engine.lock();
    if (!engine.reserve(lock, size)) throw OutOfMemory("no room for a new block");
    lock.unlock();
    auto block = sim.make_block(size);
    block->fill(value);
    lock.lock();
    return static_cast<SimBlock&>(engine.add(lock, std::move(block)));
  }
  /// A block that has been used once.
  SimBlock& used(Bytes size, std::uint64_t value = 0) {
    SimBlock& block = fresh(size, value);
    use(block);
    return block;
  }

  void pin(std::vector<Use> uses) {
    auto lock = engine.lock();
    engine.pin(lock, uses);
  }
  void pin(SimBlock& block, bool writes = false) { pin(std::vector<Use>{{&block, writes}}); }
  void unpin(std::vector<Use> uses) {
    auto lock = engine.lock();
    engine.unpin(lock, uses);
  }
  void unpin(SimBlock& block) { unpin(std::vector<Use>{{&block, false}}); }
  void use(SimBlock& block) {
    pin(block);
    unpin(block);
  }
  void write(SimBlock& block, std::uint64_t value) {
    pin(block, true);
    block.fill(value);
    unpin(block);
  }
  /// Pins, compares, unpins.
  bool reads(SimBlock& block, std::uint64_t value) {
    pin(block);
    const bool right = block.holds(value);
    unpin(block);
    return right;
  }
  void remove(SimBlock& block) {
    auto lock = engine.lock();
    engine.remove(lock, block);
  }
  bool evict(SimBlock& block) {
    auto lock = engine.lock();
    return engine.evict(lock, block);
  }
  bool make_room(Bytes bytes) {
    auto lock = engine.lock();
    return engine.make_room(lock, bytes);
  }
  bool drop(SimBlock& block) {
    auto lock = engine.lock();
    return engine.drop(lock, block);
  }
  bool rematerialise(SimBlock& block) {
    auto lock = engine.lock();
    return engine.rematerialise(lock, block);
  }
  BlockState state(const SimBlock& block) {
    auto lock = engine.lock();
    return block.state;
  }
  EngineStats stats() {
    auto lock = engine.lock();
    return engine.stats(lock);
  }
  void keep(SimBlock& block) {
    auto lock = engine.lock();
    engine.keep(lock, block);
  }
  void operator_ended() {
    auto lock = engine.lock();
    engine.operator_ended(lock);
  }

  SimDevice sim;
  Engine engine;
};

/// Everything that must hold between any two calls while no block moves.
inline void check_consistent(World& world) {
  auto lock = world.engine.lock();
  Bytes here = 0;
  Bytes away = 0;
  Bytes dropped = 0;
  Bytes pinned = 0;
  Bytes kept = 0;
  std::int64_t blocks = 0;
  world.engine.for_each(lock, [&](Block& block) {
    ++blocks;
    Bytes& where = block.state == BlockState::kAbsent    ? away
                   : block.state == BlockState::kDropped ? dropped
                                                         : here;
    where += block.size;
    if (block.pins > 0) pinned += block.size;
    if (block.kept) kept += block.size;
    EXPECT_NE(block.state, BlockState::kLeaving);
    EXPECT_NE(block.state, BlockState::kArriving);
  });
  const EngineStats stats = world.engine.stats(lock);
  EXPECT_EQ(stats.device.current, here);
  EXPECT_EQ(stats.below.current, away);
  EXPECT_EQ(stats.dropped.current, dropped);
  EXPECT_EQ(stats.pinned.current, pinned);
  EXPECT_EQ(stats.kept.current, kept);
  EXPECT_EQ(stats.blocks.current, blocks);
  for (const Counter& counter :
       {stats.device, stats.below, stats.dropped, stats.pinned, stats.kept, stats.blocks}) {
    EXPECT_EQ(counter.allocated - counter.freed, counter.current);
    EXPECT_GE(counter.peak, counter.current);
  }
  EXPECT_LE(stats.device.peak, world.engine.options(lock).limit);
  lock.unlock();
  EXPECT_EQ(world.sim.device_used(), here);
}

}  // namespace lms::testing
