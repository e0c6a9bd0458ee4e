#include "plan/swap/eviction_set.h"

#include <algorithm>
#include <cmath>
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

void EvictionSet::repair(std::mt19937_64& random, double randomness, const GapPrices& prices) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  Bytes moved = 0;
  for (const int g : useful_) {
    const Gap& gap = model_.gaps[static_cast<std::size_t>(g)];
    if (chosen_[static_cast<std::size_t>(g)] == kSwap &&
        !model_.versions[static_cast<std::size_t>(gap.version)].clean) {
      moved += gap.bytes;
    }
  }
  while (true) {
    const int worst = too_full();
    if (worst < 0) return;
    const Bytes lacking = -room_[static_cast<std::size_t>(worst)];
    // Sums over the operators: what is too full counts most, the rest a little, by its time.
    relief_.assign(1, 0);
    for (std::size_t op = 0; op < room_.size(); ++op) {
      relief_.push_back(relief_.back() + (room_[op] < 0 ? 1 : 0) +
                        0.3 * static_cast<double>(room_.size()) * model_.ms[op] /
                            std::max(1e-9, model_.begins.back()));
    }
    int best = -1;
    double best_score = -1;
    char best_way = kSwap;
    for (const int g : useful_) {
      if (has(g)) continue;
      const Gap& gap = model_.gaps[static_cast<std::size_t>(g)];
      const bool covers =
          (gap.begin <= worst && worst < gap.end) || worst + model_.operators < gap.end;
      if (!covers) continue;
      const int here = std::min(gap.end, model_.operators);
      const int there = std::max(0, gap.end - model_.operators);
      const double sum = relief_[static_cast<std::size_t>(here)] -
                         relief_[static_cast<std::size_t>(gap.begin)] +
                         relief_[static_cast<std::size_t>(there)];
      const auto useful_bytes = static_cast<double>(std::min(gap.bytes, lacking));
      double cost = moving(gap, prices);
      char way = kSwap;
      if (!copied(gap) && moved + gap.bytes > prices.most_moved) cost *= kBeyondLane;
      if (!prices.again_ms.empty() && prices.again_ms[static_cast<std::size_t>(g)] < cost) {
        cost = prices.again_ms[static_cast<std::size_t>(g)];
        way = kAgain;
      }
      const double breadth = prices.breadth == 1 ? sum : std::pow(sum, prices.breadth);
      double score = breadth * useful_bytes / std::max(cost, kLeastCost);
      if (randomness > 0) score *= 1 + randomness * uniform(random);
      if (score > best_score) {
        best = g;
        best_score = score;
        best_way = way;
      }
    }
    if (const Gap& gap = model_.gaps[static_cast<std::size_t>(best)];
        best_way == kSwap && !copied(gap)) {
      moved += gap.bytes;
    }
    change(best, best_way);
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
