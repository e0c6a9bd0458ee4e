#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"

namespace lms {

class SimDevice;

enum class Direction : std::uint8_t { kOut, kIn };

/// A block of a simulated device, with real contents (unless the device simulates none). Its
/// device buffer exists only while the block is on the device, so that a sanitizer sees any use of
/// bytes that have left.
class SimBlock final : public Block {
 public:
  ~SimBlock() override;

  [[nodiscard]] bool alive() const override { return alive_.load() || ends_.load(); }
  [[nodiscard]] bool end_comes() const override { return ends_.load(); }
  /// The storage dies without telling the engine.
  void die() { alive_.store(false); }
  /// The storage dies, and Engine::remove() will be called.
  void begin_to_die() {
    ends_.store(true);
    die();
  }

  /// Sets every byte to a function of `value`. The block must be pinned, or not yet be added.
  void fill(std::uint64_t value);
  /// True if the block is on the device with the bytes that fill(value) made. The block must be
  /// pinned, or known to this thread alone. Where no contents are simulated: if it is there.
  [[nodiscard]] bool holds(std::uint64_t value) const;

 private:
  friend class SimDevice;
  SimBlock(SimDevice& device, Bytes size);

  SimDevice& device_;
  std::atomic<bool> alive_{true};
  std::atomic<bool> ends_{false};
  bool on_device_ = false;
  bool below_ = false;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> copy_;
};

/// A device and the host memory below it, with a virtual clock in milliseconds. Moves wait for
/// computation and computation waits for moves, as in a reactive engine: every move advances the
/// clock. Thread-safe, except that hooks are to be set while no other thread uses the device.
/// Must outlive its blocks.
class SimDevice final : public Mover {
 public:
  struct Options {
    Bytes device_bytes = std::numeric_limits<Bytes>::max();
    Bytes host_bytes = std::numeric_limits<Bytes>::max();
    double out_bytes_per_ms = 1;
    double in_bytes_per_ms = 1;
    double latency_ms = 0;  ///< added to every copy
    bool contents = true;   ///< false: sizes and times alone, for large traces
  };
  struct Hooks {
    /// Called before a block's move out is begun, with no lock held.
    std::function<void(SimBlock&)> before_page_out = {};
    /// Called in the middle of every move, with half the bytes copied and no lock held.
    std::function<void(SimBlock&, Direction)> mid_move = {};
    /// Called before the device gives out memory, with no lock held: where an allocator bridge
    /// makes room.
    std::function<void(Bytes)> before_take = {};
    /// Says whether a block moves on the device; without it, none does.
    std::function<bool(SimBlock&)> relocate = {};
    /// Says whether a block can be computed again, so that its bytes may go; without it, none can.
    std::function<bool(SimBlock&)> drop = {};
    /// Called before the engine counts a block that is to be computed again, with no lock held.
    std::function<void()> before_count = {};
    /// Computes a dropped block again, with fill(); false if it has died. Called with no lock held,
    /// and with memory taken for the block, which goes again if it returns false or throws.
    std::function<bool(SimBlock&)> rematerialise = {};
  };

  explicit SimDevice(Options options) : options_(options) {}

  /// A block on the device. Throws OutOfMemory if the device has no room.
  std::unique_ptr<SimBlock> make_block(Bytes size);

  // Mover. Returns nothing for blocks that have died.
  std::optional<Bytes> page_out(Block& block, bool clean) override;
  bool relocate(Block& block) override {
    return hooks_.relocate && hooks_.relocate(static_cast<SimBlock&>(block));
  }
  std::optional<Bytes> page_in(Block& block, bool ahead) override;
  bool drop(Block& block, Bytes most) override;
  bool drop_absent(Block& block, Bytes most) override;
  [[nodiscard]] bool drops_absent() const override { return hooks_.drop != nullptr; }
  bool rematerialise(Block& block, const std::function<void()>& take) override;
  void drop_copy(Block& block) noexcept override;
  bool copy_matches(Block& block) override;

  void set_hooks(Hooks hooks) { hooks_ = std::move(hooks); }
  /// The next `count` moves in this direction fail with nothing changed: out with TierFull, in
  /// with OutOfMemory.
  void fail_next(Direction direction, int count);

  /// The device computes for so long.
  void advance(double ms);
  [[nodiscard]] double now_ms() const;
  /// Time that moves have added to the clock.
  [[nodiscard]] double stalled_ms() const;
  [[nodiscard]] Bytes device_used() const;
  [[nodiscard]] Bytes device_peak() const;
  [[nodiscard]] Bytes host_used() const;

 private:
  friend class SimBlock;
  void take_device(Bytes bytes);
  void give_back(SimBlock& block);
  void fail_if_told(Direction direction);
  /// Copies `from` to `to`, with the hook in the middle, and advances the clock.
  void copy(SimBlock& block, Direction direction);

  const Options options_;
  Hooks hooks_;
  mutable std::mutex mutex_;
  std::array<int, 2> failures_{};
  double now_ms_ = 0;
  double stalled_ms_ = 0;
  Counter device_;
  Counter host_;
};

}  // namespace lms
