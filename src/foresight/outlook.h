#pragma once

#include <memory>
#include <vector>

#include "foresight/ahead.h"
#include "foresight/duel.h"
#include "foresight/forecast.h"
#include "foresight/foresight_policy.h"

namespace lms {

/// What a device's engine goes by where there is no plan: when each block will be used, as a
/// Forecast has it, for a ForesightPolicy and for what moves ahead, for as long as that moves no
/// more than leaving by last use would. Guarded by one lock, its owner's, but for act().
class Outlook {
 public:
  explicit Outlook(Engine& engine) : ahead_(engine) {}

  /// For the policy of the engine.
  [[nodiscard]] std::shared_ptr<const Foresight> foresight() const { return foresight_; }

  /// An operator begins. Returns true if look() is due.
  bool begin_operator(OperatorKey key);
  /// The operator uses a block. Under the engine's lock as well.
  void touch(Block& block, Bytes bytes, bool writes);
  void released(BlockUid uid);
  /// What has moved so far; `now`: the engine's figures. Called when begin_operator() says so.
  void look(const EngineStats& now, Bytes limit);
  /// True if what is foretold is gone by.
  [[nodiscard]] bool trusted() const { return foresight_->trusted; }
  /// Whoever is expected soon, for act(); nobody, if that is not to be trusted.
  void collect(std::vector<Ahead::Wanted>& wanted);
  /// There is a plan to go by: nothing is fed until the next begin_operator().
  void rest();
  void clear();
  /// Likewise what clear() leaves, by the engine's lock alone: what has moved ahead.
  void clear_moves(EngineLock& lock) { ahead_.begin_anew(lock); }

  /// By the engine's lock alone.
  [[nodiscard]] Ahead& ahead() { return ahead_; }
  [[nodiscard]] std::uint64_t now() const { return foresight_->now; }

  struct Stats {
    double right = 0;  ///< of what was foretold lately
    bool trusted = false;
  };
  [[nodiscard]] Stats stats() const { return {forecast_.right(), trusted()}; }

 private:
  Forecast forecast_;
  Duel duel_;
  Ahead ahead_;
  std::shared_ptr<Foresight> foresight_ = std::make_shared<Foresight>();
  std::uint64_t operators_ = 0;
  bool resting_ = false;
  // Of what blocks have had on the device since clear().
  bool looked_ = false;
  Bytes peak_before_ = 0;  ///< the engine's, at the first look
  Bytes most_ = 0;         ///< in any look
};

}  // namespace lms
