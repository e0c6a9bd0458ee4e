// One step in several sizes: which plan serves the step that runs, and which sizes are to have one
// of their own.

#include <algorithm>
#include <tuple>
#include <utility>

#include "pilot/kinds_of_steps.h"
#include "pilot/pilot.h"

namespace lms {
namespace {

/// Plans serve steps that need no less than this part of what they are made for.
constexpr double kNear = 0.8;
/// Where steps are larger now and then, the next ones may be, too: so much of the difference more.
constexpr double kMargin = 0.5;
/// What needs no more than this part of the room needs no plan.
constexpr double kFits = 0.9;

Bytes part_of(Bytes bytes, double part) {
  return static_cast<Bytes>(part * static_cast<double>(bytes));
}

bool near(Bytes smaller, Bytes larger) { return smaller >= part_of(larger, kNear); }

}  // namespace

/// The step has another size than the script: along the one that it is within, of those the
/// smallest that it does not outgrow, or else along the largest. `any`: along that, since none
/// holds it that looked so.
void Pilot::change_size(bool any) {
  const auto rank = [&](const Script& one) {
    const bool outgrown = walk_->outgrows(one);
    return std::tuple(!one.planned, outgrown, outgrown ? -one.needed : one.needed);
  };
  const bool midway = script_->planned && walk_->position() >= kTellTale;
  std::shared_ptr<Script> best;
  auto best_rank = rank(*script_);
  std::shared_ptr<Script> largest = script_;
  for (const auto& one : scripts_) {
    if (one->form != script_->form || operators_ < one->shunned_until) continue;
    // One that is not timed now would have the step go without a plan in vain; and no plan is left
    // midway for one that has none.
    if (!one->planned && (midway || !timing_ || !wants_times(*one))) continue;
    if (one->planned && (!largest->planned || one->needed > largest->needed)) largest = one;
    if (any || !walk_->within(*one)) continue;
    const auto its_rank = rank(*one);
    if (best && its_rank >= best_rank) continue;
    best = one;
    best_rank = its_rank;
  }
  const bool within = best != nullptr;
  // A step that is being timed is worth a plan of its size.
  if (!within) best = timing_ && !script_->planned ? script_ : largest;
  if (best != script_) walk_along(best, walk_->in_size_of(*best), /*goes_on_timing=*/true);
  walk_->allow(within ? Walk::Sizes::kWithin : Walk::Sizes::kAny);
}

/// A step of other sizes than its script's is about to end.
void Pilot::learn_size() {
  const StepSizes& seen = walk_->seen();
  if (timing_) longer_ = longer_by(script_->shape, seen);
  const Bytes needed = needed_with(*script_, seen);
  const bool within = walk_->within(*script_);
  if (within && near(needed, script_->needed)) return;
  // One that waits for its times will serve it.
  const auto serves = [&](const std::shared_ptr<Script>& one) {
    return one->form == script_->form && near(needed, one->needed) && walk_->within(*one);
  };
  const auto known = std::ranges::find_if(scripts_, serves);
  if (known != scripts_.end()) {
    if (!(*known)->planned && !(*known)->hopeless) take_times(*known, seen);
    return;
  }
  if (!within && widen_to(seen)) return;
  if (scripts_.size() >= kMostScripts) return;
  const auto made = of_size(*script_, seen);
  scripts_.push_back(made);
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
  const bool fits = within && script_->planned && script_->room > 0 &&
                    bytes_needed(made->shape) <= part_of(script_->room, kFits);
  fits ? stays_as_it_is(*made, *script_) : take_times(made, seen);
}

/// A script that is not much smaller, larger: of those the one of which the least comes out. False
/// if there is none, or no place for it.
bool Pilot::widen_to(const StepSizes& seen) {
  auto best = scripts_.end();
  StepSizes sizes;
  Bytes least = 0;
  for (auto one = scripts_.begin(); one != scripts_.end(); ++one) {
    if ((*one)->form != script_->form) continue;
    StepSizes wider = StepSizes::of((*one)->shape);
    wider.widen(seen, kMargin);
    const Bytes needed = needed_with(**one, wider);
    if (!near((*one)->needed, needed) || (best != scripts_.end() && needed >= least)) continue;
    best = one;
    sizes = std::move(wider);
    least = needed;
  }
  if (best == scripts_.end()) return false;
  const auto made = of_size(**best, sizes);
  const bool idle = *best != script_ && !(job_ && job_->original == *best);
  if (idle && !(*best)->planned) {
    *best = made;
  } else if (scripts_.size() < kMostScripts) {
    scripts_.push_back(made);
  } else {
    return false;
  }
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
  take_times(made, seen);
  return true;
}

/// Script::needed of a script of these sizes. Plans count what stays for nothing.
Bytes Pilot::needed_with(const Script& script, const StepSizes& sizes) {
  return script.needed + bytes_needed(script.shape, sizes) - bytes_needed(script.shape);
}

std::shared_ptr<Script> Pilot::of_size(const Script& script, const StepSizes& sizes) {
  auto made = std::make_shared<Script>();
  made->shape = script.shape;
  made->form = script.form;
  made->marginal = script.marginal;
  made->least = script.least;
  made->updated_by = script.updated_by;
  made->telling_from = script.telling_from;
  made->turns = script.turns;
  made->unplaced = script.unplaced;  // the trace is without them
  made->needed = needed_with(script, sizes);
  sizes.put_into(made->shape);
  return made;
}

/// What a step of these sizes takes: as this one does, if it is timed, or as the script's in
/// proportion.
void Pilot::take_times(const std::shared_ptr<Script>& sized, const StepSizes& seen) {
  if (timing_) {
    longer_ = longer_by(sized->shape, seen);
  } else if (!job_ && script_->planned) {
    scale_times(*sized, *script_);
  } else {
    return;
  }
  sized_ = sized;
}

void Pilot::scale_times(Script& sized, const Script& planned) {
  const std::vector<double> longer = longer_by(planned.shape, StepSizes::of(sized.shape));
  for (std::size_t i = 0; i < longer.size(); ++i) {
    sized.shape.trace.operators[i].ms = planned.shape.trace.operators[i].ms / longer[i];
  }
}

/// Everything has room at once: a plan without directives, with the times of a larger step.
void Pilot::stays_as_it_is(Script& small, const Script& planned) {
  small.room = small.budget = planned.room;
  small.link = planned.link;
  small.refined = small.measured = true;
  scale_times(small, planned);
  small.predicted = time_plan(small.shape.trace, small.plan, small.link);
  small.finish();
  ++stats_.planned;
}

/// Those that a larger one, which is hardly larger, serves as well.
void Pilot::forget_smaller(const Script& planned) {
  std::erase_if(scripts_, [&](const std::shared_ptr<Script>& one) {
    if (one.get() == &planned || one == script_ || one->form != planned.form) return false;
    if (job_ && job_->original == one) return false;
    if (one->needed > planned.needed || !near(one->needed, planned.needed)) return false;
    StepSizes both = StepSizes::of(planned.shape);
    both.widen(StepSizes::of(one->shape));
    StepShape wider = planned.shape;
    both.put_into(wider);
    return StepSizes::of(wider).blocks == StepSizes::of(planned.shape).blocks;
  });
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
}

}  // namespace lms
