#include "plan/swap/eviction_set.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace lms {
namespace {

/// What costs nothing is taken first, the largest of it before others.
constexpr double kLeastCost = 1e-9;
/// What a copy costs more that the lane has no time for.
constexpr double kBeyondLane = 100;

/// Of an operator of StepModel.
std::string name_of(std::size_t op, const Trace& trace) {
  if (op == 0) return "the beginning of the step";
  if (op > trace.operators.size()) return "the end of the step";
  return "operator " + std::to_string(op - 1) + " (" + trace.operators[op - 1].name + ")";
}

}  // namespace

EvictionSet::EvictionSet(const StepModel& model, Bytes budget)
    : model_(model),
      chosen_(model.gaps.size()),
      version_uses_(model.versions.size()),
      budget_(budget) {
  const auto n = static_cast<std::size_t>(model.operators);
  room_.reserve(n);
  for (int op = 0; op < model.operators; ++op) room_.push_back(budget - model.during(op));
  std::vector<Bytes> emptiest(n + 1);
  for (const Gap& gap : model.gaps) {
    emptiest[static_cast<std::size_t>(gap.begin)] += gap.bytes;
    emptiest[static_cast<std::size_t>(std::min(gap.end, model.operators))] -= gap.bytes;
    if (gap.end <= model.operators) continue;
    emptiest.front() += gap.bytes;
    emptiest[static_cast<std::size_t>(gap.end - model.operators)] -= gap.bytes;
  }
  std::partial_sum(emptiest.begin(), emptiest.end(), emptiest.begin());
  emptiest.pop_back();
  for (std::size_t op = 0; op < n; ++op) emptiest[op] += room_[op];
  const auto worst = std::ranges::min_element(emptiest);
  if (worst != emptiest.end() && *worst < 0) {
    lacking_ = -*worst;
    fullest_ = static_cast<int>(worst - emptiest.begin());
    return;
  }
  std::vector<int> full(n + 1);
  for (std::size_t op = 0; op < n; ++op) full[op + 1] = full[op] + (room_[op] < 0 ? 1 : 0);
  for (std::size_t g = 0; g < model.gaps.size(); ++g) {
    const Gap& gap = model.gaps[g];
    const int here = std::min(gap.end, model.operators);
    const int there = std::max(0, gap.end - model.operators);
    if (full[static_cast<std::size_t>(here)] > full[static_cast<std::size_t>(gap.begin)] ||
        full[static_cast<std::size_t>(there)] > 0) {
      useful_.push_back(static_cast<int>(g));
    }
  }
}

void EvictionSet::check(const Trace& trace) const {
  if (lacking_ <= 0) return;
  const Bytes least = budget_ + lacking_;
  throw OutOfMemory(name_of(static_cast<std::size_t>(fullest_), trace) + " needs " +
                    format_bytes(least) + " at one time, with all else moved away; the budget is " +
                    format_bytes(budget_) + ", at least " + std::to_string(least) +
                    " bytes would work");
}

void EvictionSet::add(int gap) {
  if (!has(gap)) change(gap, kSwap);
}

void EvictionSet::remove(int gap) {
  if (has(gap)) change(gap, 0);
}

void EvictionSet::change(int gap, char to) {
  const auto g = static_cast<std::size_t>(gap);
  const Gap& what = model_.gaps[g];
  if (chosen_[g] == kSwap) --version_uses_[static_cast<std::size_t>(what.version)];
  if (to == kSwap) ++version_uses_[static_cast<std::size_t>(what.version)];
  chosen_[g] = to;
  model_.add(room_, what, to == 0 ? -what.bytes : what.bytes);
  changes_.push_back(gap);
}

void EvictionSet::undo() {
  const std::vector<int> changes = std::exchange(changes_, {});
  for (const int gap : changes) change(gap, has(gap) ? 0 : kSwap);
}

bool EvictionSet::can_spare(int gap) const {
  const Gap& what = model_.gaps[static_cast<std::size_t>(gap)];
  const auto spare = [&](int from, int to) {
    return std::all_of(room_.begin() + from, room_.begin() + to,
                       [&](Bytes room) { return room >= what.bytes; });
  };
  return spare(what.begin, std::min(what.end, model_.operators)) &&
         spare(0, std::max(0, what.end - model_.operators));
}

/// A copy of the gap's block is below, or will be for another gap.
bool EvictionSet::copied(const Gap& gap) const {
  const auto v = static_cast<std::size_t>(gap.version);
  return model_.versions[v].clean || version_uses_[v] > 0;
}

/// What swapping the gap as well would cost.
double EvictionSet::moving(const Gap& gap, const GapPrices& prices) const {
  const double each = 0.005 * (prices.out_ms_per_byte + prices.in_ms_per_byte);
  const int copies = (copied(gap) ? 0 : 1) + (gap.returns ? 1 : 0);
  return static_cast<double>(gap.bytes) * ((copied(gap) ? 0 : prices.out_ms_per_byte) +
                                           (gap.returns ? prices.in_ms_per_byte : 0) + each) +
         copies * prices.each_ms;
}

int EvictionSet::copies() const {
  int count = 0;
  for (std::size_t v = 0; v < version_uses_.size(); ++v) {
    if (version_uses_[v] > 0 && !model_.versions[v].clean) ++count;
  }
  for (const int g : useful_) {
    if (chosen_[static_cast<std::size_t>(g)] != kSwap) continue;
    if (model_.gaps[static_cast<std::size_t>(g)].returns) ++count;
  }
  return count;
}

int EvictionSet::too_full() const {
  const auto worst = std::ranges::min_element(room_);
  return worst != room_.end() && *worst < 0 ? static_cast<int>(worst - room_.begin()) : -1;
}

void EvictionSet::find_candidates() {
  if (!candidates_.empty()) return;
  candidates_.reserve(useful_.size());
  version_begins_.assign(model_.versions.size() + 1, 0);
  for (const int g : useful_) {
    const Gap& gap = model_.gaps[static_cast<std::size_t>(g)];
    candidates_.push_back({.gap = g,
                           .begin = gap.begin,
                           .here = std::min(gap.end, model_.operators),
                           .there = std::max(0, gap.end - model_.operators),
                           .bytes = static_cast<double>(gap.bytes)});
    ++version_begins_[static_cast<std::size_t>(gap.version) + 1];
  }
  std::partial_sum(version_begins_.begin(), version_begins_.end(), version_begins_.begin());
  std::vector<int> next = version_begins_;
  of_version_.resize(candidates_.size());
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const Gap& gap = model_.gaps[static_cast<std::size_t>(candidates_[i].gap)];
    const int at = next[static_cast<std::size_t>(gap.version)]++;
    of_version_[static_cast<std::size_t>(at)] = static_cast<int>(i);
  }
  // By its time an operator that is not too full counts a little, too.
  by_time_.assign(1, 0);
  const double each =
      0.3 * static_cast<double>(room_.size()) / std::max(1e-9, model_.begins.back());
  for (std::size_t op = 0; op < room_.size(); ++op) {
    by_time_.push_back(by_time_.back() + each * model_.ms[op]);
  }
}

void EvictionSet::price(int version, const GapPrices& prices) {
  const auto v = static_cast<std::size_t>(version);
  for (int at = version_begins_[v]; at < version_begins_[v + 1]; ++at) {
    const auto i = static_cast<std::size_t>(of_version_[static_cast<std::size_t>(at)]);
    moving_[i] = moving(model_.gaps[static_cast<std::size_t>(candidates_[i].gap)], prices);
  }
}

/// Sums over the operators: what is too full counts most, the rest a little.
int EvictionSet::add_up_relief() {
  relief_.resize(room_.size() + 1);
  std::int64_t full = 0;
  Bytes least = 0;
  int worst = -1;
  for (std::size_t op = 0; op < room_.size(); ++op) {
    relief_[op] = static_cast<double>(full) + by_time_[op];
    full += room_[op] < 0 ? 1 : 0;
    if (room_[op] < least) {
      least = room_[op];
      worst = static_cast<int>(op);
    }
  }
  relief_.back() = static_cast<double>(full) + by_time_.back();
  return worst;
}

void EvictionSet::repair(std::mt19937_64& random, double randomness, const GapPrices& prices) {
  if (too_full() < 0) return;
  std::uniform_real_distribution<double> uniform(-1, 1);
  find_candidates();
  moving_.resize(candidates_.size());
  breadth_.assign(candidates_.size(), std::numeric_limits<double>::infinity());
  Bytes moved = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const int g = candidates_[i].gap;
    const Gap& gap = model_.gaps[static_cast<std::size_t>(g)];
    moving_[i] = moving(gap, prices);
    if (chosen_[static_cast<std::size_t>(g)] == kSwap &&
        !model_.versions[static_cast<std::size_t>(gap.version)].clean) {
      moved += gap.bytes;
    }
  }
  for (int worst = add_up_relief(); worst >= 0; worst = add_up_relief()) {
    const auto lacking = static_cast<double>(-room_[static_cast<std::size_t>(worst)]);
    const auto left = static_cast<double>(prices.most_moved - moved);
    const Candidate* best = nullptr;
    double best_score = -1;
    char best_way = kSwap;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const Candidate& it = candidates_[i];
      const bool covers = (it.begin <= worst && worst < it.here) || worst < it.there;
      if (!covers || has(it.gap)) continue;
      double cost = moving_[i];
      char way = kSwap;
      if (it.bytes > left && !copied(model_.gaps[static_cast<std::size_t>(it.gap)])) {
        cost *= kBeyondLane;
      }
      if (!prices.again_ms.empty() && prices.again_ms[static_cast<std::size_t>(it.gap)] < cost) {
        cost = prices.again_ms[static_cast<std::size_t>(it.gap)];
        way = kAgain;
      }
      const double worth = std::min(it.bytes, lacking) / std::max(cost, kLeastCost);
      // Less and less is too full: what its breadth counted last is the most that it counts now.
      if (breadth_[i] * worth * (1 + randomness) <= best_score) continue;
      const double sum = relief_[static_cast<std::size_t>(it.here)] -
                         relief_[static_cast<std::size_t>(it.begin)] +
                         relief_[static_cast<std::size_t>(it.there)];
      breadth_[i] = prices.breadth == 1 ? sum : std::pow(sum, prices.breadth);
      double score = breadth_[i] * worth;
      if (randomness > 0) score *= 1 + randomness * uniform(random);
      if (score > best_score) {
        best = &it;
        best_score = score;
        best_way = way;
      }
    }
    const Gap& gap = model_.gaps[static_cast<std::size_t>(best->gap)];
    if (best_way == kSwap && !copied(gap)) moved += gap.bytes;
    change(best->gap, best_way);
    if (best_way == kSwap) price(gap.version, prices);
  }
}

void EvictionSet::thin() {
  std::vector<int> order;
  for (const int g : useful_) {
    if (has(g)) order.push_back(g);
  }
  std::ranges::stable_sort(order, {}, [&](int g) {
    const Gap& gap = model_.gaps[static_cast<std::size_t>(g)];
    return gap.end - gap.begin;
  });
  for (const int g : order) {
    if (can_spare(g)) remove(g);
  }
}

}  // namespace lms
