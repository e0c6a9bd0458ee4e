#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/engine.h"
#include "foresight/forecast.h"
#include "foresight/foresight_policy.h"

namespace lms {

/// Moves blocks before they are needed, as a Forecast has it: brings back what is used soon, where
/// that takes the room of nothing that is needed sooner, and copies out what will have to leave
/// next, so that its room can be had at once. Guarded by the engine's lock, but for collect().
class Ahead {
 public:
  /// One who is expected: it may have died.
  struct Wanted {
    BlockUid uid;
    std::uint64_t due;       ///< by the forecast's clock
    Block* block = nullptr;  ///< who it is, if it is known
  };

  explicit Ahead(Engine& engine) : engine_(engine) {}

  /// Who is expected from where the last call ended, to `wanted`. Needs no lock of the engine, but
  /// whatever guards the forecast, and this function.
  void collect(const Forecast& forecast, std::vector<Wanted>& wanted);

  /// Makes room for `bytes`, where that takes nothing for which `spare` is false. False if it
  /// cannot. Lets the lock go.
  using MakeRoom = std::function<bool(EngineLock& lock, Bytes bytes,
                                      const std::function<bool(const Block&)>& spare)>;
  /// Moves what is due. `now`: the forecast's. Lets the lock go.
  void act(EngineLock& lock, std::uint64_t now, const std::vector<Wanted>& wanted, Bytes limit,
           const MakeRoom& make_room);
  /// Bytes that it has had copied.
  [[nodiscard]] Bytes copied() const { return copied_.load(std::memory_order_relaxed); }
  /// Nobody knows any more who is expected. Guarded as collect().
  void forget() { seen_ = 0; }
  /// Whatever it has moved was for another forecast, or under another limit.
  void begin_anew(EngineLock& lock);

  /// For devices that are full by the engine's own count.
  static bool make_room(EngineLock& lock, Engine& engine, Bytes bytes,
                        const std::function<bool(const Block&)>& spare);

 private:
  void bring(EngineLock& lock, std::uint64_t now, Bytes limit, const MakeRoom& make_room);
  void copy_out(EngineLock& lock, Bytes limit);

  Engine& engine_;
  std::uint64_t seen_ = 0;  ///< collect() has looked up to here
  std::deque<Wanted> wanted_;
  struct Flying {
    std::uint64_t due;
    Bytes bytes;
  };
  std::deque<Flying> flying_;  ///< brought, and not needed yet
  Bytes flying_bytes_ = 0;
  std::atomic<Bytes> copied_{0};
  Bytes most_ = 0;             ///< ever on the device: then it was full, or nothing has to leave
  std::uint64_t looked_ = 0;   ///< when copy_out() last had a look
  std::uint64_t refused_ = 0;  ///< when bring() last found no room
  std::uint64_t next_try_ = 0;
};

}  // namespace lms
