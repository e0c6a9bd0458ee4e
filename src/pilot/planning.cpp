// What the planning thread does: from a step's shape and times to a plan and its addresses.

#include <algorithm>
#include <string>

#include "pilot/pilot.h"

namespace lms {
namespace {

/// A placement that needs more than there is shrinks the budget, so often at most.
constexpr int kAttempts = 6;
/// Sizes and addresses are multiples of this.
constexpr Bytes kUnit = 512;

}  // namespace

void Pilot::plan_in_background(const PilotDevice::Room& room) {
  Script& script = *in_making_;
  try {
    const std::vector<double> laps = device_.finish_laps();
    auto& operators = script.shape.trace.operators;
    for (std::size_t i = 0; i < operators.size() && i < laps.size(); ++i) operators[i].ms = laps[i];

    if (!failure_.empty()) throw Error(std::string(failure_));
    if (room.addresses) {
      // What was there before and nobody uses has been left out of the room.
      for (TraceBlock& block : script.shape.trace.blocks) {
        if (!block.movable && !block.born_in_step && block.carried_from == kNoBlock) {
          block.bytes = kUnit;
        }
      }
    }
    Bytes budget = room.arena;
    for (int attempt = 0;; ++attempt) {
      auto planned = make_plan(script.shape.trace, budget, device_.link(), options_.search);
      script.plan = std::move(planned.plan);
      script.predicted = std::move(planned.predicted);
      script.budget = budget;
      if (!room.addresses) break;
      script.placement = place(script.shape.trace, script.plan, kUnit);
      if (script.placement.bytes <= room.arena) break;
      if (attempt + 1 == kAttempts) {
        throw OutOfMemory("addresses for the plan need " + format_bytes(script.placement.bytes) +
                          " of " + format_bytes(room.arena));
      }
      // Less waste comes with a smaller budget, too: half of it is tried first.
      budget -= (script.placement.bytes - room.arena) / (attempt < 2 ? 2 : 1) + kMiB;
    }
    script.finish();
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  planner_done_ = true;
}

}  // namespace lms
