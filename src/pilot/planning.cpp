// What the planning thread does: from a step's shape and times to a plan and its addresses.

#include <string>

#include "pilot/pilot.h"
#include "plan/placed_plan.h"

namespace lms {

void Pilot::plan_in_background() {
  const ShownStage shown(device_, PilotDevice::Stage::kPlanning);
  try {
    const PilotDevice::Laps laps = device_.finish_laps();
    if (!failure_.empty()) throw Error(std::string(failure_));
    keep_measured(laps);
    if (in_making_) make_plan_of(*in_making_, laps);
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  planner_done_ = true;
}

void Pilot::keep_measured(const PilotDevice::Laps& laps) {
  if (!original_->planned || laps.operators.size() != original_->size()) return;
  auto kept = std::make_shared<Measured>();
  kept->script = original_;
  kept->timeline.operators = laps.operators;
  for (const MeasuredCopy& copy : laps.copies) {
    // What the step does not use may have been moved, too.
    const auto name = timed_names_.find(copy.uid);
    if (name == timed_names_.end()) continue;
    kept->timeline.copies.push_back({name->second, copy.out, copy.begin_ms, copy.end_ms});
  }
  const Guard guard(mutex_);
  measured_ = std::move(kept);
}

void Pilot::make_plan_of(Script& script, const PilotDevice::Laps& laps) {
  Trace& trace = script.shape.trace;
  for (std::size_t i = 0; i < trace.operators.size() && i < laps.operators.size(); ++i) {
    trace.operators[i].ms = laps.operators[i].end_ms - laps.operators[i].begin_ms;
  }
  if (script.addresses) {
    // What was there before and nobody uses has been left out of the room.
    for (TraceBlock& block : trace.blocks) {
      if (!block.movable && !block.born_in_step && block.carried_from == kNoBlock) {
        block.bytes = kPlacedUnit;
      }
    }
  }
  script.link = device_.link();
  if (script.addresses) {
    PlacedPlan made = make_placed_plan(trace, {.room = script.room, .page = script.page},
                                       script.link, options_.search);
    script.plan = std::move(made.step.plan);
    script.predicted = std::move(made.step.predicted);
    script.placement = std::move(made.placement);
    script.budget = made.budget;
  } else {
    PlannedStep made = make_plan(trace, script.room, script.link, options_.search);
    script.plan = std::move(made.plan);
    script.predicted = std::move(made.predicted);
    script.budget = script.room;
  }
  script.finish();
}

}  // namespace lms
