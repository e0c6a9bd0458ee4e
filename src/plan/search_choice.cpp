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

Choice::Choice(const StepModel& model, Bytes budget)
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

void Choice::check(const Trace& trace) const {
  if (lacking_ <= 0) return;
  const Bytes least = budget_ + lacking_;
  throw OutOfMemory(name_of(static_cast<std::size_t>(fullest_), trace) + " needs " +
                    format_bytes(least) + " at one time, with all else moved away; the budget is " +
                    format_bytes(budget_) + ", at least " + std::to_string(least) +
                    " bytes would work");
}

void Choice::add(int gap) {
  if (!has(gap)) change(gap, kSwap);
}

void Choice::remove(int gap) {
  if (has(gap)) change(gap, 0);
}

void Choice::change(int gap, char to) {
  const auto g = static_cast<std::size_t>(gap);
  const Gap& what = model_.gaps[g];
  if (chosen_[g] == kSwap) --version_uses_[static_cast<std::size_t>(what.version)];
  if (to == kSwap) ++version_uses_[static_cast<std::size_t>(what.version)];
  chosen_[g] = to;
  model_.add(room_, what, to == 0 ? -what.bytes : what.bytes);
  changes_.push_back(gap);
}

void Choice::undo() {
  const std::vector<int> changes = std::exchange(changes_, {});
  for (const int gap : changes) change(gap, has(gap) ? 0 : kSwap);
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

/// A copy of the gap's block is below, or will be for another gap.
bool Choice::copied(const Gap& gap) const {
  const auto v = static_cast<std::size_t>(gap.version);
  return model_.versions[v].clean || version_uses_[v] > 0;
}

int Choice::copies() const {
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
