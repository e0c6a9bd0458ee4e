#include "adapters/torch/hook/pilot_scope.h"

#include <exception>
#include <optional>

#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/replay/lineages.h"

namespace lms::torch {

PilotScope::PilotScope(ThreadState& state, DeviceManager* manager, const OpInfo& info,
                       const c10::Stack& stack)
    : state_(state), manager_(manager) {
  if (manager_ == nullptr) return;
  // Under stress there are no steps, and what every thread does is recorded.
  const auto not_of_step = [&] {
    return !manager_->drops_everything() &&
           !manager_->step_threads().begin(state.step_thread, info.backward);
  };
  beside_ = state.beside || not_of_step();
  if (beside_) return;
  (void)plain_environments();  // heard of from every thread
  const bool repeatable = state.unseen_calls == 0 && repeatable_now(info) &&
                          manager_->changed_algorithms().repeat(info);
  const FusedRule* const rule = manager_->fused_rule(info);
  std::optional<ReplayCost> cost;
  if (rule == nullptr) {
    cost.emplace();
  } else if (!stack.empty() && manager_->pilot().wants_costs()) {
    cost = rule->price(info.fused.role, info, stack);
  }
  recording_ = manager_->pilot().begin_operator(info.key, info.name, repeatable, cost);
  in_stress_ = repeatable && manager_->drops_everything();
}

PilotScope::~PilotScope() {
  if (manager_ == nullptr) return;
  try {
    if (!beside_) {
      manager_->step_threads().end(state_.step_thread);
      manager_->pilot().end_operator();
      for (const Born& block : born_) (void)manager_->pilot().allocating(block.uid, block.bytes);
    }
    manager_->operator_ended();
  } catch (const std::exception&) {
    // Planning must never end a step; the next operator finds the device's own error.
  }
}

}  // namespace lms::torch
