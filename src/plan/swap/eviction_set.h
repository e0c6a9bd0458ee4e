#pragma once

#include <limits>
#include <random>
#include <vector>

#include "plan/swap/gaps.h"

namespace lms {

/// What it costs to have a gap's block away.
struct GapPrices {
  double out_ms_per_byte = 1;
  double in_ms_per_byte = 1;
  double each_ms = 0;  ///< of every copy, and of computing anything again, however small
  /// By gap, if not empty: of computing the block again instead of moving it.
  std::vector<double> again_ms = {};
  /// How much it counts that a gap relieves other operators than the fullest one: 1 as much as its
  /// price, 0 not at all. Where one moment is the fullest of all, what is cheapest there is best,
  /// however soon it is wanted again.
  double breadth = 1;
  /// Beyond so many bytes copied out, what can be computed again is not moved.
  Bytes most_moved = std::numeric_limits<Bytes>::max();
};

/// Which gaps may be swapped: a choice that leaves room for every operator.
class EvictionSet {
 public:
  /// The model must outlive it.
  EvictionSet(const StepModel& model, Bytes budget);

  /// By how much the budget is too small even if every gap is swapped; then nothing else here makes
  /// sense.
  [[nodiscard]] Bytes lacking() const { return lacking_; }
  /// The model's operator that lacks them.
  [[nodiscard]] int fullest() const { return fullest_; }
  /// Throws OutOfMemory if lacking() says so, with the names of the model's trace.
  void check(const Trace& trace) const;

  [[nodiscard]] bool has(int gap) const { return chosen_[static_cast<std::size_t>(gap)] != 0; }
  /// By operator: what the budget leaves while it runs if every chosen gap is swapped.
  [[nodiscard]] const std::vector<Bytes>& room() const { return room_; }
  /// Gaps that cover an operator which needs more than the budget: the only ones worth choosing.
  [[nodiscard]] const std::vector<int>& useful() const { return useful_; }

  /// Copies that the chosen gaps take, out and in.
  [[nodiscard]] int copies() const;

  void add(int gap);
  void remove(int gap);
  /// Adds gaps until every operator has room: each time the one that relieves most of what still
  /// is too full for what it costs, with some randomness (0: none).
  void repair(std::mt19937_64& random, double randomness, const GapPrices& prices = {});
  /// The last repair() added the gap for the price of computing its block again.
  [[nodiscard]] bool again(int gap) const {
    return chosen_[static_cast<std::size_t>(gap)] == kAgain;
  }
  /// Removes gaps that can be spared, those that relieve least first.
  void thin();
  [[nodiscard]] bool can_spare(int gap) const;

  /// What is done from now on can be undone.
  void mark() { changes_.clear(); }
  void undo();

 private:
  static constexpr char kSwap = 1;
  static constexpr char kAgain = 2;

  /// Of a useful gap, what repair() looks at each time.
  struct Candidate {
    int gap = 0;
    int begin = 0;
    int here = 0;   ///< end in this step
    int there = 0;  ///< and in the next
    double bytes = 0;
  };

  void change(int gap, char to);
  void find_candidates();
  /// The chances of those that share the contents have changed.
  void price(int version, const GapPrices& prices);
  /// The fullest operator, or -1 if all have room.
  int add_up_relief();
  [[nodiscard]] bool copied(const Gap& gap) const;
  [[nodiscard]] double moving(const Gap& gap, const GapPrices& prices) const;
  [[nodiscard]] int too_full() const;

  const StepModel& model_;
  std::vector<char> chosen_;
  std::vector<int> useful_;
  std::vector<Bytes> room_;        ///< by operator; negative: too full
  std::vector<int> version_uses_;  ///< chosen gaps of each version
  std::vector<int> changes_;
  std::vector<Candidate> candidates_;  ///< the useful gaps, in their order
  std::vector<int> of_version_;        ///< indices into candidates_, by version
  std::vector<int> version_begins_;    ///< of_version_ of each version
  std::vector<double> moving_;         ///< by candidate: what swapping it costs now,
  std::vector<double> breadth_;        ///< and at most so much its breadth counts
  std::vector<double> by_time_;        ///< sums over the operators, as relief_
  std::vector<double> relief_;
  Bytes budget_;
  Bytes lacking_ = 0;
  int fullest_ = 0;
};

}  // namespace lms
