#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lms {

/// Which kind of step comes after which: a loop of several kinds that begin alike (one or more
/// micro-batches, a step with its validation) is not always of the last one's. Kinds are numbers
/// (Script::form), not 0. Not thread-safe.
class Succession {
 public:
  /// A step of this kind has ended.
  void note(std::uint64_t kind) {
    const std::uint64_t before = std::exchange(last_, kind);
    if (before == 0) return;
    if (after_.size() >= kMost && !after_.contains(before)) after_.clear();
    std::vector<Chance>& chances = after_[before];
    for (Chance& one : chances) one.weight *= kFades;
    const auto known = std::ranges::find(chances, kind, &Chance::kind);
    if (known != chances.end()) {
      known->weight += 1;
      return;
    }
    if (chances.size() >= kMost) chances.clear();
    chances.push_back({kind, 1});
  }
  /// What comes now is no kind of step that is known.
  void lose() { last_ = 0; }
  /// The kind that comes after the last one, if it is likely to be another; else 0.
  [[nodiscard]] std::uint64_t other() const {
    const auto found = after_.find(last_);
    if (found == after_.end()) return 0;
    const Chance* best = nullptr;
    double same = 0;
    for (const Chance& one : found->second) {
      if (one.kind == last_) {
        same = one.weight;
      } else if (best == nullptr || one.weight > best->weight) {
        best = &one;
      }
    }
    const bool likely = best != nullptr && best->weight >= kLeast && best->weight > kSurely * same;
    return likely ? best->kind : 0;
  }

 private:
  struct Chance {
    std::uint64_t kind;
    double weight;  ///< how often it has come, the last time most
  };
  static constexpr double kFades = 0.9;
  static constexpr double kLeast = 1.5;   ///< it has come so often: more than once
  static constexpr double kSurely = 1.5;  ///< so many times as often as the same again
  static constexpr std::size_t kMost = 64;

  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, std::vector<Chance>> after_;
};

}  // namespace lms
