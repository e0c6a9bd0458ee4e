// One step in several sizes: which plan serves the step that runs, and which sizes are to have one
// of their own.

#include <algorithm>
#include <utility>

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
/// smallest, or else along the largest.
void Pilot::change_size() {
  std::shared_ptr<Script> best;
  std::shared_ptr<Script> largest = script_;
  for (const auto& one : scripts_) {
    if (one->form != script_->form || operators_ < one->shunned_until) continue;
    // One that is not timed now would have the step go without a plan in vain.
    if (!one->planned && !(timing_ && wants_times(*one))) continue;
    if (one->planned && (!largest->planned || one->needed > largest->needed)) largest = one;
    if ((!best || one->needed < best->needed) && walk_->within(*one)) best = one;
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
  const auto with = [](const Script& script, const StepSizes& sizes) {
    auto made = std::make_shared<Script>();
    made->shape = script.shape;
    made->form = script.form;
    made->marginal = script.marginal;
    made->turns = script.turns;
    sizes.put_into(made->shape);
    // Plans count what stays for nothing.
    made->needed = bytes_needed(made->shape) + script.needed - bytes_needed(script.shape);
    return made;
  };
  auto now = with(*script_, seen);
  if (timing_) longer_ = longer_by(script_->shape, seen);
  if (walk_->within(*script_) && near(now->needed, script_->needed)) return;
  // One that waits for its times will serve it.
  const auto serves = [&](const std::shared_ptr<Script>& one) {
    return one->form == script_->form && near(now->needed, one->needed) && walk_->within(*one);
  };
  const auto known = std::ranges::find_if(scripts_, serves);
  if (known != scripts_.end()) {
    if (!(*known)->planned && !(*known)->hopeless) take_times(**known, seen);
    return;
  }
  const bool full = scripts_.size() >= kMostScripts;
  if (walk_->within(*script_)) {
    if (full) return;
    const bool fits = script_->planned && script_->room > 0 &&
                      bytes_needed(now->shape) <= part_of(script_->room, kFits);
    if (fits) stays_as_it_is(*now, *script_);
    if (!fits) take_times(*now, seen);
    scripts_.push_back(std::move(now));
  } else {
    // Of those that are not much smaller, the one of which the least comes out.
    std::shared_ptr<Script> wider;
    auto grown = scripts_.end();
    for (auto one = scripts_.begin(); one != scripts_.end(); ++one) {
      if ((*one)->form != script_->form) continue;
      StepSizes sizes = StepSizes::of((*one)->shape);
      sizes.widen(seen, kMargin);
      auto made = with(**one, sizes);
      if (!near((*one)->needed, made->needed) || (wider && made->needed >= wider->needed)) continue;
      wider = std::move(made);
      grown = one;
    }
    const bool in_its_place =
        wider && !(*grown)->planned && *grown != script_ && !(job_ && job_->original == *grown);
    if (full && !in_its_place) return;
    if (!wider) wider = std::move(now);
    take_times(*wider, seen);
    if (in_its_place) {
      *grown = std::move(wider);
    } else {
      scripts_.push_back(std::move(wider));
    }
  }
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
}

/// What a step of these sizes takes: as this one does, if it is timed, or as the script's in
/// proportion.
void Pilot::take_times(Script& sized, const StepSizes& seen) {
  if (timing_) {
    longer_ = longer_by(sized.shape, seen);
    sized_ = &sized;
  } else if (!job_ && script_->planned) {
    scale_times(sized, *script_);
    sized_ = &sized;
  }
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
