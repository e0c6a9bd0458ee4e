// What the planning thread does: from a step's shape and times to a plan and its addresses.

#include <string>

#include "pilot/pilot.h"
#include "plan/placed_plan.h"

namespace lms {

void Pilot::plan_in_background() {
  Script& script = *in_making_;
  try {
    const std::vector<double> laps = device_.finish_laps();
    if (!failure_.empty()) throw Error(std::string(failure_));
    Trace& trace = script.shape.trace;
    for (std::size_t i = 0; i < trace.operators.size() && i < laps.size(); ++i) {
      trace.operators[i].ms = laps[i];
    }
    if (script.addresses) {
      // What was there before and nobody uses has been left out of the room.
      for (TraceBlock& block : trace.blocks) {
        if (!block.movable && !block.born_in_step && block.carried_from == kNoBlock) {
          block.bytes = kPlacedUnit;
        }
      }
    }
    if (script.addresses) {
      PlacedPlan made = make_placed_plan(trace, script.room, device_.link(), options_.search);
      script.plan = std::move(made.step.plan);
      script.predicted = std::move(made.step.predicted);
      script.placement = std::move(made.placement);
      script.budget = made.budget;
    } else {
      PlannedStep made = make_plan(trace, script.room, device_.link(), options_.search);
      script.plan = std::move(made.plan);
      script.predicted = std::move(made.predicted);
      script.budget = script.room;
    }
    script.finish();
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  planner_done_ = true;
}

}  // namespace lms
