// How a choice makes room for every operator.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/search_choice.h"

namespace lms {
namespace {

/// What costs nothing is taken first, the largest of it before others.
constexpr double kLeastCost = 1e-9;
/// What a copy costs more that the lane has no time for.
constexpr double kBeyondLane = 100;
/// How much relieving any operator counts, however full it is, by its part of the step's time.
constexpr double kAnyway = 0.3;
/// Gaps that are chosen at once, while the fullest operator still lacks room.
constexpr std::size_t kAtOnce = 4;

}  // namespace

/// Some gaps at a time, those that are best for the operator that is fullest then. Most of a
/// search's time is spent here.
class Choice::Repair {
 public:
  Repair(Choice& choice, std::mt19937_64& random, double randomness, const GapPrices& prices)
      : choice_(choice), random_(random), randomness_(randomness), prices_(prices) {
    const StepModel& model = choice.model_;
    const double each =
        kAnyway * static_cast<double>(choice.room_.size()) / std::max(1e-9, model.begins.back());
    weights_.reserve(choice.room_.size() + 1);
    weights_.push_back(0);
    for (std::size_t op = 0; op < choice.room_.size(); ++op) {
      weights_.push_back(weights_.back() + each * model.ms[op]);
    }
    relief_.resize(weights_.size());
    for (const int g : choice.useful_) {
      if (choice.has(g)) {
        note_swapped(g);
        continue;
      }
      candidates_.push_back(candidate(g));
      stretches_.push_back({.most = most_of(candidates_.back()),
                            .begin = gap(g).begin,
                            .end = gap(g).end,
                            .candidate = static_cast<std::uint32_t>(candidates_.size() - 1)});
    }
    std::ranges::stable_sort(stretches_, std::greater<>{}, &Stretch::most);
  }

  void run() {
    while (look()) {
      find_best();
      if (best_.front().stretch == nullptr) return;  // cannot be: lacking() says there is room
      for (const Found& found : best_) {
        if (found.stretch == nullptr || choice_.room_[static_cast<std::size_t>(worst_)] >= 0) break;
        found.stretch->begin = found.stretch->end = 0;  // covers nothing any more
        const Candidate& chosen = candidates_[found.stretch->candidate];
        const char way = price_of(chosen).way;
        if (way == kSwap && !is_copied(chosen)) moved_ += chosen.bytes;
        choice_.change(chosen.gap, way);
      }
    }
  }

 private:
  struct Price {
    double per_cost = 0;  ///< the inverse
    char way = kSwap;
  };
  /// A gap that can be chosen, and what is known of it beforehand.
  struct Candidate {
    int gap = 0;
    Bytes bytes = 0;
    const int* version_uses = nullptr;  ///< chosen gaps with the same contents
    Price uncopied;
    Price copied;  ///< once there is a copy below
    Price beyond;  ///< what the lane has no time for
  };
  /// What of it decides whether it is looked at.
  struct Stretch {
    double most = 0;  ///< no score is above it, times what counts for relief
    int begin = 0;
    int end = 0;
    std::uint32_t candidate = 0;
  };

  [[nodiscard]] const Gap& gap(int g) const {
    return choice_.model_.gaps[static_cast<std::size_t>(g)];
  }

  void note_swapped(int g) {
    const bool clean = choice_.model_.versions[static_cast<std::size_t>(gap(g).version)].clean;
    const bool swapped = choice_.chosen_[static_cast<std::size_t>(g)] == kSwap;
    if (swapped && !clean) moved_ += gap(g).bytes;
  }

  [[nodiscard]] Candidate candidate(int g) const {
    const Gap& what = gap(g);
    const auto price = [&](double cost) {
      Price result;
      if (!prices_.again_ms.empty() && prices_.again_ms[static_cast<std::size_t>(g)] < cost) {
        cost = prices_.again_ms[static_cast<std::size_t>(g)];
        result.way = kAgain;
      }
      result.per_cost = 1 / std::max(cost, kLeastCost);
      return result;
    };
    const auto version = static_cast<std::size_t>(what.version);
    const bool clean = choice_.model_.versions[version].clean;
    const double swap = moving(what, prices_, clean);
    return {.gap = g,
            .bytes = what.bytes,
            .version_uses = &choice_.version_uses_[version],
            .uncopied = price(swap),
            .copied = price(moving(what, prices_, /*copied=*/true)),
            .beyond = price(clean ? swap : kBeyondLane * swap)};
  }

  static double most_of(const Candidate& candidate) {
    return static_cast<double>(candidate.bytes) *
           std::max(candidate.uncopied.per_cost, candidate.copied.per_cost);
  }

  /// What swapping the gap as well would cost.
  static double moving(const Gap& gap, const GapPrices& prices, bool copied) {
    const double each = 0.005 * (prices.out_ms_per_byte + prices.in_ms_per_byte);
    const int copies = (copied ? 0 : 1) + (gap.returns ? 1 : 0);
    return static_cast<double>(gap.bytes) * ((copied ? 0 : prices.out_ms_per_byte) +
                                             (gap.returns ? prices.in_ms_per_byte : 0) + each) +
           copies * prices.each_ms;
  }

  /// A copy of the gap's block is below, or will be for another gap.
  [[nodiscard]] bool is_copied(const Candidate& candidate) const {
    return *candidate.version_uses > 0 || choice_.copied(gap(candidate.gap));
  }

  [[nodiscard]] const Price& price_of(const Candidate& candidate) const {
    if (*candidate.version_uses > 0) return candidate.copied;
    return moved_ + candidate.bytes > prices_.most_moved ? candidate.beyond : candidate.uncopied;
  }

  /// Finds the fullest operator. False: there is room for all.
  bool look() {
    Bytes least = 0;
    worst_ = -1;
    int full = 0;
    const std::vector<Bytes>& room = choice_.room_;
    for (std::size_t op = 0; op < room.size(); ++op) {
      full += room[op] < 0 ? 1 : 0;
      // Sums over the operators: what is too full counts most, the rest a little, by its time.
      relief_[op + 1] = weights_[op + 1] + full;
      if (room[op] < least) {
        least = room[op];
        worst_ = static_cast<int>(op);
      }
    }
    lacking_ = -least;
    return worst_ >= 0;
  }

  [[nodiscard]] double counted(double relief) const {
    return prices_.breadth == 1 ? relief : std::pow(relief, prices_.breadth);
  }

  [[nodiscard]] double relief_of(const Stretch& stretch) const {
    const int operators = choice_.model_.operators;
    const int here = std::min(stretch.end, operators);
    const int there = std::max(0, stretch.end - operators);
    return relief_[static_cast<std::size_t>(here)] -
           relief_[static_cast<std::size_t>(stretch.begin)] +
           relief_[static_cast<std::size_t>(there)];
  }

  /// Sets best_.
  void find_best() {
    constexpr double kRounding = 1 + 1e-9;
    const int next_step = worst_ + choice_.model_.operators;
    // Relief is never more than all of it.
    const double jitter = (1 + randomness_) * kRounding;
    const double highest = counted(relief_.back()) * jitter;
    std::uniform_real_distribution<double> uniform(-1, 1);
    best_.fill({});
    // No concave function is above its tangent, and that is sooner computed than a power.
    double tangent_at_0 = highest;
    double tangent_slope = 0;
    for (Stretch& stretch : stretches_) {
      const double least = best_.back().score;
      if (stretch.most * highest <= least) break;
      const bool covers =
          (stretch.begin <= worst_ && worst_ < stretch.end) || next_step < stretch.end;
      if (!covers) continue;
      const Candidate& candidate = candidates_[stretch.candidate];
      const auto useful_bytes = static_cast<double>(std::min(candidate.bytes, lacking_));
      const double worth = useful_bytes * price_of(candidate).per_cost;
      const double relief = relief_of(stretch);
      if (worth * (tangent_at_0 + tangent_slope * relief) <= least) continue;
      const double counts = counted(relief);
      double score = worth * counts;
      if (randomness_ > 0) score *= 1 + randomness_ * uniform(random_);
      if (score <= least) continue;
      auto place = best_.end() - 1;
      for (; place != best_.begin() && (place - 1)->score < score; --place) *place = *(place - 1);
      *place = {score, &stretch};
      tangent_slope = prices_.breadth * counts / std::max(relief, 1e-9) * jitter;
      tangent_at_0 = counts * jitter - tangent_slope * relief;
    }
  }

  Choice& choice_;
  std::mt19937_64& random_;
  const double randomness_;
  const GapPrices& prices_;
  std::vector<double> weights_;  ///< sums over the operators before each
  std::vector<double> relief_;   ///< likewise, with what is too full
  std::vector<Candidate> candidates_;
  std::vector<Stretch> stretches_;  ///< by `most`, descending
  struct Found {
    double score = -1;
    Stretch* stretch = nullptr;
  };
  std::array<Found, kAtOnce> best_;
  Bytes moved_ = 0;
  Bytes lacking_ = 0;
  int worst_ = -1;
};

void Choice::repair(std::mt19937_64& random, double randomness, const GapPrices& prices) {
  Repair(*this, random, randomness, prices).run();
}

}  // namespace lms
