#pragma once

#include <random>
#include <vector>

#include "plan/search_gaps.h"

namespace lms {

/// Which gaps may be swapped: a choice that leaves room for every operator.
class Choice {
 public:
  /// The model must outlive it. Throws OutOfMemory if not even swapping every gap makes room.
  Choice(const StepModel& model, const Trace& trace, Bytes budget);

  [[nodiscard]] const std::vector<char>& chosen() const { return chosen_; }
  [[nodiscard]] bool has(int gap) const { return chosen_[static_cast<std::size_t>(gap)] != 0; }
  /// By operator: what the budget leaves while it runs if every chosen gap is swapped.
  [[nodiscard]] const std::vector<Bytes>& room() const { return room_; }
  /// Gaps that cover an operator which needs more than the budget: the only ones worth choosing.
  [[nodiscard]] const std::vector<int>& useful() const { return useful_; }

  void add(int gap);
  void remove(int gap);
  /// Adds gaps until every operator has room: each time the one that relieves most of what still
  /// is too full for the bytes it moves, with some randomness (0: none).
  void repair(std::mt19937_64& random, double randomness);
  /// Removes gaps that can be spared, those that relieve least first.
  void thin();
  [[nodiscard]] bool can_spare(int gap) const;

  /// What is done from now on can be undone.
  void mark() { changes_.clear(); }
  void undo();

 private:
  void change(int gap);
  [[nodiscard]] double cost(const Gap& gap) const;
  [[nodiscard]] int fullest() const;

  const StepModel& model_;
  std::vector<char> chosen_;
  std::vector<int> useful_;
  std::vector<Bytes> room_;        ///< by operator; negative: too full
  std::vector<int> version_uses_;  ///< chosen gaps of each version
  std::vector<int> changes_;
  std::vector<double> relief_;
};

}  // namespace lms
