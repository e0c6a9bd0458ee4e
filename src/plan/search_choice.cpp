#include "plan/search_choice.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace lms {
namespace {

/// Of an operator of StepModel.
std::string name_of(std::size_t op, const Trace& trace) {
  if (op == 0) return "the beginning of the step";
  if (op > trace.operators.size()) return "the end of the step";
  return "operator " + std::to_string(op - 1) + " (" + trace.operators[op - 1].name + ")";
}

}  // namespace

Choice::Choice(const StepModel& model, const Trace& trace, Bytes budget)
    : model_(model), chosen_(model.gaps.size()), version_uses_(model.versions.size()) {
  const auto n = static_cast<std::size_t>(model.operators);
  for (int op = 0; op < model.operators; ++op) room_.push_back(budget - model.during(op));
  std::vector<Bytes> emptiest = room_;
  for (const Gap& gap : model.gaps) model.add(emptiest, gap, gap.bytes);
  const auto worst = std::ranges::min_element(emptiest);
  if (worst != emptiest.end() && *worst < 0) {
    const auto at = static_cast<std::size_t>(worst - emptiest.begin());
    throw OutOfMemory(name_of(at, trace) + " needs " + format_bytes(budget - *worst) +
                      " at one time, with all else moved away; the budget is " +
                      format_bytes(budget) + ", at least " + std::to_string(budget - *worst) +
                      " bytes would work");
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

void Choice::add(int gap) {
  if (!has(gap)) change(gap);
}

void Choice::remove(int gap) {
  if (has(gap)) change(gap);
}

void Choice::change(int gap) {
  const auto g = static_cast<std::size_t>(gap);
  const Gap& what = model_.gaps[g];
  const int sign = has(gap) ? -1 : 1;
  chosen_[g] = sign > 0 ? 1 : 0;
  version_uses_[static_cast<std::size_t>(what.version)] += sign;
  model_.add(room_, what, sign * what.bytes);
  changes_.push_back(gap);
}

void Choice::undo() {
  const std::vector<int> changes = std::exchange(changes_, {});
  for (const int gap : changes) change(gap);
}

bool Choice::can_spare(int gap) const {
  const Gap& what = model_.gaps[static_cast<std::size_t>(gap)];
  const auto spare = [&](int from, int to) {
    return std::all_of(room_.begin() + from, room_.begin() + to,
                       [&](Bytes room) { return room >= what.bytes; });
  };
  return spare(what.begin, std::min(what.end, model_.operators)) &&
         spare(0, std::max(0, what.end - model_.operators));
}

/// Bytes that choosing the gap would move.
double Choice::cost(const Gap& gap) const {
  const auto v = static_cast<std::size_t>(gap.version);
  const bool copied = model_.versions[v].clean || version_uses_[v] > 0;
  return static_cast<double>(gap.bytes) * ((copied ? 0 : 1) + (gap.returns ? 1 : 0) + 0.01);
}

int Choice::fullest() const {
  const auto worst = std::ranges::min_element(room_);
  return worst != room_.end() && *worst < 0 ? static_cast<int>(worst - room_.begin()) : -1;
}

void Choice::repair(std::mt19937_64& random, double randomness) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  while (true) {
    const int worst = fullest();
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
      double score = sum * useful_bytes / cost(gap);
      if (randomness > 0) score *= 1 + randomness * uniform(random);
      if (score > best_score) {
        best = g;
        best_score = score;
      }
    }
    add(best);
  }
}

void Choice::thin() {
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
