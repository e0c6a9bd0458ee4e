// What the user is told of it.

#include <algorithm>
#include <string>

#include "pilot/pilot.h"

namespace lms {

/// In the user's words.
std::string Pilot::why_locked() const {
  if (!awake()) return "nothing has had to leave";
  if (mode_ == Mode::kFollowing) return "planned";
  if (plan_or_none_.settled_on_none()) return "steps are quicker without their plans, by the clock";
  if (plan_or_none_.rests()) return "steps run without their plans for a while, to compare";
  if (job_ && !job_->done) return "a plan is being made";
  if (detour_) return "this step has left its plan, and may come back to it";
  // Between two steps, or in one that is none of those known, it is all that can be said.
  const auto is_in_vain = [](const auto& script) { return script->in_vain(); };
  const bool none = !scripts_.empty() && std::ranges::all_of(scripts_, is_in_vain);
  if (walking() ? script_->in_vain() : none) return "no plan could be made for this step";
  if (walking()) return "this step is known, and its plan comes after it has been timed";
  if (scripts_.empty()) {
    return "no step has come twice yet, in all its operators, sizes and order, in " +
           std::to_string(operators_) + " operators";
  }
  if (!difference_.empty()) return "the last step was none of those known: " + difference_;
  return "no known step has begun";
}

/// Once, where it goes on like that.
void Pilot::complain() {
  constexpr std::uint64_t kSteps = 30;
  constexpr std::uint64_t kUnknown = 200000;  // operators, where nobody knows what a step is
  if (complained_ || operators_ % 256 != 0) return;
  std::size_t longest = 0;
  for (const auto& script : scripts_) longest = std::max(longest, script->size());
  if (operators_ - planned_at_ < (longest > 0 ? kSteps * longest : kUnknown)) return;
  complained_ = true;
  device_.say(
      "memory is short, and the steps are not planned: " + why_locked() +
      ". What is done alike in every step can be planned, and copied beside the computation");
}

}  // namespace lms
