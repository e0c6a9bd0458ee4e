#pragma once

#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "plan/recompute/candidate.h"
#include "plan/swap/eviction_set.h"
#include "plan/swap/scheduler.h"

namespace lms {

/// Turns candidates into plans and their times.
class Trial {
 public:
  /// The four must outlive it.
  Trial(const Trace& trace, const StepModel& model, const Derivations& derivations,
        const LinkModel& link, Bytes budget);

  /// The gap may be dropped, and it can be worth it.
  [[nodiscard]] bool can_drop(int gap) const {
    return again_ms_[static_cast<std::size_t>(gap)] < kNever;
  }

  /// Blocks that somebody who may be dropped needs after their death, ascending.
  [[nodiscard]] const std::vector<TraceBlockId>& ghosts() const { return ghosts_; }

  /// The time of the step, which must be possible without drops. What must be dropped or swapped
  /// beside what the mix says is added to it; if `thin`, what need not be is taken from it.
  double run(Candidate& candidate, std::mt19937_64& random, double randomness, bool thin);

  /// Of the last run, which must have succeeded.
  [[nodiscard]] Plan plan() const { return unrolled_.fold(scheduler_->plan()); }
  [[nodiscard]] double recomputed_ms() const { return unrolled_.recomputed_ms(); }
  /// Copies, and blocks computed again.
  [[nodiscard]] int actions() const;

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  [[nodiscard]] double price(const Trace& trace, int gap);
  /// False: not even swapping everything would make room.
  bool choose(Candidate& candidate, std::mt19937_64& random, double randomness, bool may_drop);
  /// Drops what the choice would rather compute again. False: nothing.
  bool drop_more(Candidate& candidate);
  /// Leaves on the device what there is room for. False: nothing was dropped in vain.
  bool drop_less(Candidate& candidate);
  /// After choose() has failed: what is computed again where memory is lacking is dropped no more.
  void drop_none_there(Candidate& candidate);
  void keep_swaps(Candidate& candidate);
  [[nodiscard]] bool room(const Unrolled::Absence& absence, Bytes bytes) const;

  const StepModel& own_model_;
  const Derivations& derivations_;
  const LinkModel link_;
  const Bytes budget_;
  Unrolled unrolled_;
  std::vector<double> again_ms_;  ///< by own gap: of computing its block again, or kNever
  std::vector<char> seen_;        ///< by own block
  std::vector<TraceBlockId> ghosts_;
  std::optional<StepModel> model_;
  std::optional<EvictionSet> evictions_;
  std::optional<Scheduler> scheduler_;
  GapPrices prices_;      ///< of model_'s gaps
  std::vector<int> own_;  ///< by gap of model_: the step's own gap, or -1
  std::vector<Bytes> taken_back_;
  std::vector<int> order_;
  Tactics tactics_;
};

}  // namespace lms
