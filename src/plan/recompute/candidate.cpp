#include "plan/recompute/candidate.h"

#include <algorithm>

namespace lms {
namespace {

/// Finds the gaps that directives lie in.
class Gaps {
 public:
  Gaps(const Trace& trace, const StepModel& model) : model_(model), gaps_(trace.blocks.size()) {
    for (int g = 0; g < static_cast<int>(model.gaps.size()); ++g) {
      gaps_[model.gaps[static_cast<std::size_t>(g)].block].push_back(g);
    }
    for (auto& gaps : gaps_) std::ranges::sort(gaps, {}, [this](int g) { return begin(g); });
  }

  /// The one in which the block is right before the step's operator `before`; -1: none.
  [[nodiscard]] int at(TraceBlockId block, std::size_t before) const {
    const int op = static_cast<int>(before) + 1;  // in the model
    const auto& gaps = gaps_[block];
    const auto next = std::ranges::upper_bound(gaps, op, {}, [this](int g) { return begin(g); });
    if (next != gaps.begin() && op <= end(*std::prev(next))) return *std::prev(next);
    if (!gaps.empty() && op + model_.operators <= end(gaps.back())) return gaps.back();
    return -1;
  }

 private:
  [[nodiscard]] int begin(int g) const { return model_.gaps[static_cast<std::size_t>(g)].begin; }
  [[nodiscard]] int end(int g) const { return model_.gaps[static_cast<std::size_t>(g)].end; }

  const StepModel& model_;
  std::vector<std::vector<int>> gaps_;  ///< by block, ascending
};

}  // namespace

Candidate empty_candidate(const Trace& trace, const StepModel& model) {
  Candidate candidate;
  candidate.drops.dropped.assign(model.gaps.size(), 0);
  candidate.drops.hold_ms.assign(model.gaps.size(), kHoldForever);
  candidate.drops.ghost_hold_ms.assign(trace.blocks.size(), 0);
  candidate.swaps.assign(model.gaps.size(), 0);
  return candidate;
}

Candidate candidate_of(const Plan& plan, const Trace& trace, const StepModel& model) {
  Candidate candidate = empty_candidate(trace, model);
  const Gaps gaps(trace, model);
  std::vector<double> dropped_at(model.gaps.size(), -1);
  for (const Directive& directive : plan.directives) {
    if (directive.block >= trace.blocks.size() || directive.before > trace.operators.size()) break;
    const int gap = gaps.at(directive.block, directive.before);
    if (gap < 0) continue;  // a ghost
    const auto g = static_cast<std::size_t>(gap);
    const double now = model.begins[directive.before + 1];
    if (directive.action == Action::kFinishOut) {
      candidate.swaps[g] = 1;
    } else if (directive.action == Action::kDrop) {
      // The second time in one gap it has served, and not stayed for the next.
      dropped_at[g] = candidate.drops.dropped[g] != 0 ? now : -1;
      candidate.drops.dropped[g] = 1;
    } else if (directive.action == Action::kRematerialise && dropped_at[g] >= 0) {
      candidate.drops.hold_ms[g] =
          std::min(candidate.drops.hold_ms[g], kTooShort * static_cast<float>(now - dropped_at[g]));
    }
  }
  return candidate;
}

}  // namespace lms
