// From a step's shape and times to a plan and its addresses: the planning thread, its launch and
// what becomes of it.

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/background.h"
#include "base/error.h"
#include "base/median.h"
#include "pilot/pilot.h"
#include "plan/deferral.h"
#include "plan/placed_plan.h"
#include "steps/joined.h"

namespace lms {
namespace {

/// Most time, in seconds, to improve the first plan of a step that runs on meanwhile without one:
/// on recorded steps all that comes later is worth less than a part in a hundred of the step.
constexpr double kFirstPlan = 0.1;
/// Steps in which a step that has changed for good is learnt anew.
constexpr std::uint64_t kToLearn = 6;

/// Whether operators do the same: of one name, over blocks of the same sizes. Empty: nobody knows,
/// as sizes of what stays on the device are not in the trace of a step that has been placed.
std::string likeness(const Trace& trace, const TraceOperator& op) {
  std::string words = op.name;
  for (const auto* ids : {&op.reads, &op.allocs}) {
    words += '|';
    for (const TraceBlockId id : *ids) {
      if (trace.blocks[id].stays()) return {};
      words += std::to_string(trace.blocks[id].bytes) + ',';
    }
  }
  return words;
}

/// What the operators took of the device. Where it stood still for the host, an operator seems to
/// take as long as the host did to queue its kernels: it takes no longer than most of its like, for
/// which the device did not wait.
std::vector<double> device_ms(const Trace& trace, const std::vector<MeasuredOperator>& laps) {
  std::vector<double> each;
  for (const MeasuredOperator& lap : laps) each.push_back(lap.end_ms - lap.begin_ms);
  each.resize(std::min(each.size(), trace.operators.size()));
  const auto none_waits = [](const MeasuredOperator& lap) { return lap.behind != 0; };
  if (std::ranges::all_of(laps, none_waits)) return each;
  std::unordered_map<std::string, std::vector<double>> by_likeness;
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (!laps[i].starved()) by_likeness[likeness(trace, trace.operators[i])].push_back(each[i]);
  }
  by_likeness.erase("");
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (laps[i].behind != 0) continue;
    const auto like = by_likeness.find(likeness(trace, trace.operators[i]));
    if (like != by_likeness.end()) each[i] = std::min(each[i], median(like->second));
  }
  return each;
}

}  // namespace

void Pilot::launch(const std::shared_ptr<Job>& job) {
  find_room(*job);
  job->options.search.stop = &job->stop;
  if (!job->options.in_foreground) {
    try {
      const Guard guard(planner_mutex_);
      if (planner_) planner_->join();  // it has done its job: there is only one at a time
      planner_.reset();
      // Steps are slow without a plan, and on a busy machine whoever gives way runs seconds later.
      const bool is_first = job->made && !job->made->planned;
      planner_ = std::make_unique<std::thread>([this, job, is_first] {
        if (!is_first) run_in_background();
        plan(*job);
        finish(*job);
      });
      return;
    } catch (const std::system_error&) {
      // There are no more threads: the step waits.
    }
  }
  plan(*job);
  finish(*job);
}

void Pilot::find_room(Job& job) {
  if (!job.made) return;
  try {
    if (job.made->planned) {
      job.made->refined = true;
      job.made->room = device_.still_room(job.original->room);
      return;
    }
    const auto room = device_.room(job.first);
    job.made->room = room.arena;
    job.made->page = room.page;
    job.made->addresses = room.addresses;
  } catch (const std::exception& error) {
    job.failure = error.what();
  }
}

void Pilot::plan(Job& job) {
  const ShownStage shown(device_, PilotDevice::Stage::kPlanning);
  try {
    PilotDevice::Laps laps = job.timed ? device_.finish_laps() : PilotDevice::Laps{};
    if (!job.failure.empty()) return;
    put_in_order(job, laps);
    keep_measured(job, laps);
    if (job.made) make_plan_of(job, laps);
    if (job.keeps) {
      const Script& script = *job.original;
      const auto& search = job.options.search;
      keep_plan(script, job.options.plan_cache,
                plan_key(script.shape, script.page, search.recompute));
    }
  } catch (const std::exception& error) {
    job.failure = error.what();
  }
}

void Pilot::finish(Job& job) {
  const Guard guard(mutex_);
  if (job.measured) measured_ = job.measured;
  job.done = true;
  planned_->notify_all();
}

/// Laps of a step that was not quite the script's: one for each operator of the script. What did
/// not run takes what its like took.
void Pilot::put_in_order(Job& job, PilotDevice::Laps& laps) {
  const auto& operators = job.original->shape.operators;
  bool in_order = job.places.size() == operators.size() || !job.timed;
  for (std::size_t i = 0; in_order && i < job.places.size(); ++i) in_order = job.places[i] == i;
  if (in_order) return job.places.clear();
  if (laps.operators.size() != job.places.size()) return laps.operators.clear();
  struct Alike {
    double ms = 0;
    int count = 0;
  };
  std::unordered_map<OperatorKey, Alike> alike;
  std::vector<std::optional<MeasuredOperator>> known(operators.size());
  for (std::size_t i = 0; i < job.places.size(); ++i) {
    if (job.places[i] >= operators.size()) continue;
    const MeasuredOperator& lap = laps.operators[i];
    known[job.places[i]] = lap;
    Alike& sum = alike[operators[job.places[i]].key];
    sum.ms += lap.end_ms - lap.begin_ms;
    ++sum.count;
  }
  laps.operators.clear();
  for (std::size_t i = 0; i < operators.size(); ++i) {
    const Alike& mean = alike[operators[i].key];
    const MeasuredOperator typical = {.end_ms = mean.count > 0 ? mean.ms / mean.count : 0};
    laps.operators.push_back(known[i].value_or(typical));
  }
  job.host = {};
}

void Pilot::keep_measured(Job& job, const PilotDevice::Laps& laps) {
  const bool whole = job.places.empty() && laps.operators.size() == job.original->size();
  if (!job.original->planned || !whole) return;
  auto kept = std::make_shared<Measured>();
  kept->script = job.original;
  kept->timeline.operators = laps.operators;
  for (const MeasuredCopy& copy : laps.copies) {
    // What the step does not use may have been moved, too.
    const auto name = job.names.find(copy.uid);
    if (name == job.names.end()) continue;
    kept->timeline.copies.push_back({name->second, copy.out, copy.begin_ms, copy.end_ms});
  }
  job.measured = std::move(kept);
}

void Pilot::make_plan_of(Job& job, const PilotDevice::Laps& laps) {
  Script& script = *job.made;
  const Options& options = job.options;
  Trace& trace = script.shape.trace;
  const std::vector<double> measured = device_ms(trace, laps.operators);
  for (std::size_t i = 0; i < measured.size(); ++i) {
    TraceOperator& op = trace.operators[i];
    const double ms = i < job.longer.size() ? measured[i] * job.longer[i] : measured[i];
    // Copies beside an operator slow it, which plans reckon by themselves: the least that has been
    // seen is nearest to what it takes alone.
    op.ms = script.refined ? std::min(op.ms, ms) : ms;
  }
  price_replays(script.shape);
  if (script.addresses) {
    // What was there before and stays has been left out of the room.
    for (TraceBlock& block : trace.blocks) {
      if (block.stays()) block.bytes = kPlacedUnit;
    }
  }
  const std::vector<Unplaced> unplaced = use_below(trace, script.room);
  script.unplaced.insert(script.unplaced.end(), unplaced.begin(), unplaced.end());
  script.link = device_.link();
  // Without a plan, what has to be done for room is part of what operators take.
  if (script.planned) {
    script.link.host = set_host_times(trace, job.host, laps.operators);
    // Steps that have followed the plan in other sizes say nothing of these.
    if (job.longer.empty()) fit_host_times(trace, script.link, script.plan, job.host.step_ms);
  }
  PlanCache cache(options.plan_cache);
  const std::string key = options.plan_cache.empty()
                              ? std::string()
                              : plan_key(script.shape, script.page, options.search.recompute);
  script.kept = !script.planned && !key.empty() && take_kept(script, cache, key);
  bool made = true;
  try {
    if (!script.kept) made = search_plan_of(script, options);
  } catch (const OutOfMemory&) {
    if (!leave_out_unused(trace)) throw;
    made = search_plan_of(script, options);
  }
  job.better = made && !script.kept;
  if (!key.empty() && job.better && !job.stop) keep_plan(script, options.plan_cache, key);
  if (made) leave_unplaced(script.placement, script.unplaced);
  script.finish();
  // Not before some steps in a row have followed a plan: where few are alike, another order may
  // never be learnt. On a detour an update that waits is run wherever somebody wants its result.
  const StepLengths& lengths = script.lengths;
  const bool is_the_step = script.refined && !lengths.mostly_longer() && !lengths.mostly_other();
  if (options.may_wait && is_the_step) choose_deferred_of(script, options);
}

void Pilot::keep_plan(const Script& script, const std::string& folder, const std::string& key) {
  (void)PlanCache(folder).keep(
      {.key = key,
       .room = script.room,
       .page = script.page,
       .link = script.link,
       .made = {script.budget, {script.plan, script.predicted}, script.placement}});
}

void Pilot::choose_deferred_of(Script& script, const Options& options) {
  for (const WeightUpdate& update : choose_deferred(script.shape.trace, options.may_wait,
                                                    script.budget, script.link, options.search)) {
    for (const TraceBlockId id : update.written) script.deferred.push_back(script.shape.uids[id]);
  }
}

/// The plan of an earlier start, for the times of this one.
bool Pilot::take_kept(Script& script, PlanCache& cache, const std::string& key) {
  auto found = cache.find(key, script.shape.trace, script.room);
  if (!found || found->made.placement.allocations.empty() == script.addresses) return false;
  script.plan = std::move(found->made.step.plan);
  script.placement = std::move(found->made.placement);
  script.budget = found->made.budget;
  script.predicted = time_plan(script.shape.trace, script.plan, script.link);
  return true;
}

/// False if the plan that there was is still the best.
bool Pilot::search_plan_of(Script& script, const Options& options) {
  // A plan that is followed is left for one that is faster, and not for less than can be seen.
  constexpr double kMuchFaster = 0.995;
  const Trace& trace = script.shape.trace;
  SearchOptions search = options.search;
  // It is made again with the times of steps that follow it, and with all the time then.
  if (!script.planned && !options.in_foreground) {
    search.seconds = std::min(search.seconds, kFirstPlan);
    search.hasty = true;
  }
  Plan before;
  double before_ms = 0;
  // There may be less room than there was.
  const bool fits = script.planned && (!script.addresses || script.placement.bytes <= script.room);
  if (fits) {
    before = script.plan;
    if (search.recompute) search.start = &before;
    before_ms = time_plan(trace, before, script.link).step_ms;
  }
  const auto worth = [&](const PlannedStep& made) {
    return !fits || made.predicted.step_ms < kMuchFaster * before_ms;
  };
  if (script.addresses) {
    PlacedPlan made =
        make_placed_plan(trace, {.room = script.room, .page = script.page}, script.link, search);
    if (worth(made.step)) {
      script.plan = std::move(made.step.plan);
      script.predicted = std::move(made.step.predicted);
      script.placement = std::move(made.placement);
      script.budget = made.budget;
      return true;
    }
  } else {
    PlannedStep made = make_plan(trace, script.room, script.link, search);
    if (worth(made)) {
      script.plan = std::move(made.plan);
      script.predicted = std::move(made.predicted);
      script.budget = script.room;
      return true;
    }
  }
  script.predicted = time_plan(trace, script.plan, script.link);
  return false;
}

void Pilot::take_over() {
  plan_or_none_.disturb();
  const auto job = std::exchange(job_, nullptr);
  if (job->stop) return;
  const auto& original = job->original;
  const auto& made = job->made;
  if (!made) {
    original->measured = true;
    return;
  }
  if (original->planned) ++stats_.refined;
  const bool waited = std::exchange(original->waits, false);
  made->waits = false;
  if (!job->failure.empty()) {
    original->hopeless = original->refined = true;
    // If it failed only the second time, the plan that there is will do.
    if (!original->planned && said_++ < kMostLines) device_.say("no plan: " + job->failure);
    return;
  }
  const auto found = std::ranges::find(scripts_, original);
  if (found == scripts_.end()) return;
  if (!made->deferred.empty() && (whole_ || growth_.longer_than > 0)) {
    original->refined = true;  // it may not be the step whose updates are to wait
    return;
  }
  *found = made;
  if (!made->deferred.empty() && options_.may_wait) {
    options_.may_wait = nullptr;  // once: what waits already is no update at its call any more
    device_.defer_updates(made->deferred);
    // It is another step from now on, in all its sizes: to come back to one of these after each
    // update that has waited would be to go without a plan for what was chosen. Its parts are the
    // same, and no more the step than before.
    std::erase_if(scripts_, [](const auto& one) { return !one->is_part; });
    for (const auto& part : scripts_) part->shunned_until = operators_ + kSeen * original->size();
    stats_.shapes = static_cast<std::int64_t>(scripts_.size());
    detours_.start(options_.detours);
    straight_until_ = operators_ + kToLearn * original->size();
  }
  plan_or_none_.plan_came();
  if (!original->planned) ++stats_.planned;
  if (made->kept) ++stats_.kept;
  if (!original->planned) forget_smaller(*made);
  if (waited) {
    leave_parts_alone(*made);
    forget_outgrown(*made);
  }
  if (script_ != original) return;
  put_to_trial(*job);
  // It may have begun beyond the first operators.
  auto walk = walk_->jumped() ? walk_->in_size_of(*made) : walk_->change_to(*made);
  walk_along(made, walk ? std::move(*walk) : Walk(*made));
}

Pilot::Mode Pilot::mode_along(const Script& script) const {
  return script.planned && !plan_or_none_.rests() ? Mode::kFollowing : Mode::kTracking;
}

/// A step begins: perhaps without its plan, or with it again.
void Pilot::see_to_mode() {
  if (mode_along(*script_) == mode_) return;
  mode_ = mode_along(*script_);
  end_due_ = false;
  ghosts_due_ = true;
  followed_ = 0;
  least_step_ms_ = 0;
  settle_after_ = 0;
}

/// Some steps have passed.
void Pilot::weigh_plans() {
  std::size_t longest = 0;
  for (const auto& script : scripts_) longest = std::max(longest, script->size());
  if (job_ || whole_ || (script_ && script_->trial)) plan_or_none_.disturb();
  if (plan_or_none_.rests()) planned_at_ = operators_;  // no reason to complain
  plan_or_none_.note(device_.now_ms(), longest);
}

/// The newer of two plans is followed from now on, of a step that may go on as before.
void Pilot::put_to_trial(const Job& job) {
  job.original->trial = nullptr;
  const double least_ms = least_step_ms_ > 0 ? least_step_ms_ : job.host.step_ms;
  if (!job.original->planned || !job.better || least_ms <= 0) return;
  if (!job.made->deferred.empty()) return;  // it is another step
  // Steps that differ in their sizes say nothing of each other.
  if (of_several_sizes(scripts_, *job.made)) return;
  job.made->trial = std::make_shared<PlanTrial>(job.original, least_ms, job.original->size());
}

/// A step has followed the plan, nothing else, and taken so long. The job that follows from it.
std::shared_ptr<Pilot::Job> Pilot::try_plans(double took_ms) {
  if (!script_->trial) return nullptr;
  const PlanTrial::Next next = script_->trial->note(took_ms);
  if (next == PlanTrial::Next::kGoOn) return nullptr;
  const auto trial = std::exchange(script_->trial, nullptr);
  if (next == PlanTrial::Next::kChange) {
    if (change_plan(*trial) && !trial->over()) script_->trial = trial;
    return nullptr;
  }
  if (!trial->looks_back()) return nullptr;
  ++stats_.taken_back;
  if (options_.plan_cache.empty()) return nullptr;
  auto job = std::make_shared<Job>();
  job->original = script_;
  job->timed = false;
  job->keeps = true;
  job->options = options_;
  return job;
}

/// False if the other plan can't be followed any more.
bool Pilot::change_plan(PlanTrial& trial) {
  const auto found = std::ranges::find(scripts_, script_);
  const auto& other = trial.other;
  if (found == scripts_.end()) return false;
  if (other->addresses && other->placement.bytes > script_->room) return false;
  auto walk = walk_->change_to(*other);
  if (!walk) return false;
  other->take_standing(*script_);
  auto next = std::exchange(trial.other, script_);
  *found = next;
  walk_along(std::move(next), std::move(*walk));
  return true;
}

}  // namespace lms
