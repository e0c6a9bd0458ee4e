// From a step's shape and times to a plan and its addresses: the planning thread, its launch and
// what becomes of it.

#include <algorithm>
#include <string>
#include <utility>

#include "base/background.h"
#include "pilot/pilot.h"
#include "plan/placed_plan.h"
#include "steps/joined.h"

namespace lms {

void Pilot::launch() {
  std::shared_ptr<Script> script;
  {
    const Guard guard(mutex_);
    if (original_ || !script_) return;
    script = script_;
    original_ = script;
    // A refined plan stays: it is only to be seen what became of it.
    in_making_ = script->refined ? nullptr : std::make_shared<Script>(*script);
  }
  if (script->planned) {
    if (in_making_) {
      in_making_->refined = true;
      in_making_->room = device_.still_room(script->room);
    }
  } else {
    try {
      const auto room = device_.room();
      in_making_->room = room.arena;
      in_making_->page = room.page;
      in_making_->addresses = room.addresses;
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
  }
  if (planner_.joinable()) planner_.join();
  planner_done_ = false;
  if (options_.in_foreground) {
    plan_in_background();
  } else {
    planner_ = std::thread([this] {
      run_in_background();
      plan_in_background();
    });
  }
}

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
    TraceOperator& op = trace.operators[i];
    const double ms = laps.operators[i].end_ms - laps.operators[i].begin_ms;
    // Copies beside an operator slow it, which plans reckon by themselves: the least that has been
    // seen is nearest to what it takes alone.
    op.ms = script.refined ? std::min(op.ms, ms) : ms;
  }
  price_replays(script.shape);
  if (script.addresses) {
    // What was there before and nobody uses has been left out of the room.
    for (TraceBlock& block : trace.blocks) {
      if (!block.movable && !block.born_in_step && block.carried_from == kNoBlock) {
        block.bytes = kPlacedUnit;
      }
    }
  }
  script.link = device_.link();
  PlanCache cache(options_.plan_cache);
  const std::string key = options_.plan_cache.empty()
                              ? std::string()
                              : plan_key(script.shape, script.page, options_.search.recompute);
  script.kept = !script.planned && !key.empty() && take_kept(script, cache, key);
  if (!script.kept) search_plan_of(script);
  script.finish();
  if (key.empty() || script.kept) return;
  (void)cache.keep({.key = key,
                    .room = script.room,
                    .page = script.page,
                    .link = script.link,
                    .made = {script.budget, {script.plan, script.predicted}, script.placement}});
}

/// The plan of an earlier start, for the times of this one.
bool Pilot::take_kept(Script& script, PlanCache& cache, const std::string& key) const {
  auto found = cache.find(key, script.shape.trace, script.room);
  if (!found || found->made.placement.allocations.empty() == script.addresses) return false;
  script.plan = std::move(found->made.step.plan);
  script.placement = std::move(found->made.placement);
  script.budget = found->made.budget;
  script.predicted = time_plan(script.shape.trace, script.plan, script.link);
  return true;
}

void Pilot::search_plan_of(Script& script) {
  // A plan that is followed is left for one that is faster, and not for less than can be seen.
  constexpr double kMuchFaster = 0.995;
  const Trace& trace = script.shape.trace;
  SearchOptions search = options_.search;
  Plan before;
  double before_ms = 0;
  if (script.planned) {
    before = script.plan;
    if (search.recompute) search.start = &before;
    before_ms = time_plan(trace, before, script.link).step_ms;
  }
  const auto worth = [&](const PlannedStep& made) {
    return !script.planned || made.predicted.step_ms < kMuchFaster * before_ms;
  };
  if (script.addresses) {
    PlacedPlan made =
        make_placed_plan(trace, {.room = script.room, .page = script.page}, script.link, search);
    if (worth(made.step)) {
      script.plan = std::move(made.step.plan);
      script.predicted = std::move(made.step.predicted);
      script.placement = std::move(made.placement);
      script.budget = made.budget;
      return;
    }
  } else {
    PlannedStep made = make_plan(trace, script.room, script.link, search);
    if (worth(made)) {
      script.plan = std::move(made.plan);
      script.predicted = std::move(made.predicted);
      script.budget = script.room;
      return;
    }
  }
  script.predicted = time_plan(trace, script.plan, script.link);
}

void Pilot::take_over() {
  planner_done_ = false;
  const auto original = std::exchange(original_, nullptr);
  auto made = std::exchange(in_making_, nullptr);
  if (!made) {
    original->measured = true;
    failure_.clear();
    return;
  }
  if (original->planned) ++stats_.refined;
  if (const std::string failure = std::exchange(failure_, {}); !failure.empty()) {
    original->hopeless = original->refined = true;
    // If it failed only the second time, the plan that there is will do.
    if (!original->planned && said_++ < kMostLines) device_.say("no plan: " + failure);
    return;
  }
  const auto found = std::ranges::find(scripts_, original);
  if (found == scripts_.end()) return;
  *found = made;
  if (!original->planned) ++stats_.planned;
  if (made->kept) ++stats_.kept;
  stats_.predicted_ms = made->predicted.step_ms;
  stats_.planned_peak = made->predicted.peak;
  stats_.placed = made->placement.bytes;
  stats_.lower_bound = made->placement.lower_bound;
  if (script_ != original) return;
  auto walk = walk_->change_to(*made);
  walk_along(made, walk ? std::move(*walk) : Walk(*made));
}

}  // namespace lms
