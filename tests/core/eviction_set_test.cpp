#include "plan/swap/eviction_set.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/plan_random.h"

namespace lms::testing {
namespace {

/// What repair() is to choose, worked out from nothing at each turn.
class Eager {
 public:
  Eager(const StepModel& model, const EvictionSet& set, const GapPrices& prices)
      : model_(model), useful_(set.useful()), room_(set.room()), prices_(prices) {
    for (int g = 0; g < static_cast<int>(model.gaps.size()); ++g) {
      chosen.push_back(set.has(g));
      again.push_back(false);
      if (set.has(g) && !model.versions[at(gap(g).version)].clean) moved_ += gap(g).bytes;
    }
  }

  void run() {
    for (int worst = fullest(); worst >= 0; worst = fullest()) {
      int best = -1;
      double most = -1;
      for (const int g : useful_) {
        if (chosen[at(g)] || !covers(gap(g), worst)) continue;
        const double score = worth(g, worst);
        if (score <= most) continue;
        best = g;
        most = score;
      }
      again[at(best)] = cost(best).second;
      if (!again[at(best)] && !moved_already(gap(best).version)) moved_ += gap(best).bytes;
      chosen[at(best)] = true;
      model_.add(room_, gap(best), gap(best).bytes);
    }
  }

  std::vector<bool> chosen;
  std::vector<bool> again;

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] const Gap& gap(int g) const { return model_.gaps[at(g)]; }
  [[nodiscard]] bool covers(const Gap& gap, int op) const {
    return (gap.begin <= op && op < gap.end) || op + model_.operators < gap.end;
  }
  [[nodiscard]] int fullest() const {
    const auto worst = std::ranges::min_element(room_);
    return *worst < 0 ? static_cast<int>(worst - room_.begin()) : -1;
  }
  [[nodiscard]] bool moved_already(int version) const {
    for (const int g : useful_) {
      if (chosen[at(g)] && !again[at(g)] && gap(g).version == version) return true;
    }
    return model_.versions[at(version)].clean;
  }
  /// And whether it is for computing it again.
  [[nodiscard]] std::pair<double, bool> cost(int g) const {
    const bool there = moved_already(gap(g).version);
    const double out = there ? 0 : prices_.out_ms_per_byte;
    const double in = gap(g).returns ? prices_.in_ms_per_byte : 0;
    const double each = 0.005 * (prices_.out_ms_per_byte + prices_.in_ms_per_byte);
    double ms = static_cast<double>(gap(g).bytes) * (out + in + each) +
                ((there ? 0 : 1) + (gap(g).returns ? 1 : 0)) * prices_.each_ms;
    if (!there && moved_ + gap(g).bytes > prices_.most_moved) ms *= 100;
    if (prices_.again_ms.empty() || prices_.again_ms[at(g)] >= ms) return {ms, false};
    return {prices_.again_ms[at(g)], true};
  }

  [[nodiscard]] double worth(int g, int worst) const {
    const double each = 0.3 * model_.operators / std::max(1e-9, model_.begins.back());
    std::vector<double> sums;  // before each operator
    double full = 0;
    double time = 0;
    for (int op = 0; op < model_.operators; ++op) {
      sums.push_back(full + time);
      full += room_[at(op)] < 0 ? 1 : 0;
      time += each * model_.ms[at(op)];
    }
    sums.push_back(full + time);
    const double sum = sums[at(std::min(gap(g).end, model_.operators))] - sums[at(gap(g).begin)] +
                       sums[at(std::max(0, gap(g).end - model_.operators))];
    const auto bytes = static_cast<double>(std::min(gap(g).bytes, -room_[at(worst)]));
    return std::pow(sum, prices_.breadth) * (bytes / std::max(cost(g).first, 1e-9));
  }

  const StepModel& model_;
  std::vector<int> useful_;
  std::vector<Bytes> room_;
  GapPrices prices_;
  Bytes moved_ = 0;  ///< copied out for what is chosen
};

// Scores are kept and bounded there, so that few of them are worked out at each turn.
RC_GTEST_PROP(EvictionSetRepair, TakesWhatIsBestAtEachTurn, ()) {
  Trace trace = random_trace({.existing = 6, .operators = 24, .writes = 8});
  // No two of the same size or time: of gaps that are equally good either may go first.
  for (std::size_t i = 0; i < trace.blocks.size(); ++i) {
    trace.blocks[i].bytes = trace.blocks[i].bytes * 1009 + static_cast<Bytes>(i * i % 97);
  }
  for (std::size_t i = 0; i < trace.operators.size(); ++i) {
    trace.operators[i].ms += 0.01 * std::sqrt(2.0 + static_cast<double>(i));
  }
  const StepModel model(trace);
  Bytes most = 0;
  for (int op = 0; op < model.operators; ++op) most = std::max(most, model.during(op));
  EvictionSet set(model, std::max<Bytes>(1, most * (40 + upto(59)) / 100));
  RC_PRE(set.lacking() == 0);
  GapPrices prices;
  prices.breadth = upto(10) / 10.0;
  prices.in_ms_per_byte = 0.7;
  prices.each_ms = upto(4) * 310.0;
  if (chance(30)) prices.most_moved = 1000 * (1 + upto(20));
  if (chance(60)) {
    for (std::size_t g = 0; g < model.gaps.size(); ++g) {
      prices.again_ms.push_back(chance(30)
                                    ? std::numeric_limits<double>::infinity()
                                    : 370 + 211.0 * upto(60) + std::sqrt(static_cast<double>(g)));
    }
  }
  for (const int g : set.useful()) {
    if (chance(10)) set.add(g);
  }
  Eager eager(model, set, prices);
  eager.run();
  std::mt19937_64 random(1);
  set.repair(random, 0, prices);
  for (int g = 0; g < static_cast<int>(model.gaps.size()); ++g) {
    const auto i = static_cast<std::size_t>(g);
    RC_ASSERT(set.has(g) == eager.chosen[i]);
    RC_ASSERT(!set.has(g) || set.again(g) == eager.again[i]);
  }
  RC_ASSERT(std::ranges::min(set.room()) >= 0);
}

}  // namespace
}  // namespace lms::testing
