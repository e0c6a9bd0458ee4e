// Which step it is: known ones are met again, new ones are learnt.

#include <algorithm>
#include <ranges>
#include <tuple>
#include <utility>

#include "pilot/kinds_of_steps.h"
#include "pilot/pilot.h"
#include "steps/rough_steps.h"

namespace lms {
namespace {

/// Operators after which a loop that is no step is looked at again.
constexpr std::uint64_t kPause = 64;
/// Most time, in seconds, to improve the plan of one of several sizes.
constexpr double kForOneOfSizes = 0.5;

}  // namespace

/// The next walk may begin. A loop that ends after a few rounds, and does so again and again, may
/// be part of a longer step (micro-steps whose gradients accumulate); after more rounds, if what
/// comes between changes what it only reads: an evaluation does not. It is followed on, and the
/// whole of that step is listened for until it would have come twice; if the whole is known, or it
/// still has no plan the next time, it is left alone for as long. If none is found, the whole is
/// longer, or there is none and others come between: next time later, and for longer.
void Pilot::settle_parting() {
  constexpr std::uint64_t kFew = 32;
  constexpr std::uint64_t kMicro = 8;
  constexpr std::uint64_t kRounds = 3;
  constexpr std::uint64_t kLongest = 4;  // times as long: to listen costs a little
  if (detour_) return;                   // it may come back
  const auto parting = std::exchange(parting_, std::nullopt);
  if (!parting || !parting->counts) return;
  const Detour::Left& walk = parting->walk;
  if (std::ranges::find(scripts_, walk.script) == scripts_.end()) return;
  Script& part = *walk.script;
  const std::uint64_t along = walk.operators - walk.joined;
  if (along >= kFew * part.size()) return;
  const bool begins_another = std::ranges::any_of(scripts_, [&](const auto& other) {
    return !other->waits && !other->in_vain() && repeats(other->shape, part.shape);
  });
  if (!begins_another && !parting->changed && along >= kMicro * part.size()) return;
  if (++part.ended_early < part.patience && !begins_another) return;
  const auto often = static_cast<std::uint64_t>(part.patience) / 2;
  // What it was learnt with is no more, gradients say: it is not a step by itself.
  part.is_part = part.is_part || begins_another || outlived(part);
  const std::uint64_t rounds = part.is_part ? kSeen : kRounds;
  part.patience *= 2;
  const auto of_its_form = [&](const auto& one) { return one->form == part.form; };
  const std::uint64_t whole =
      std::max<std::uint64_t>(walk.operators - parting->before, part.size());
  const std::uint64_t until = operators_ + rounds * whole * often;
  const std::uint64_t heard_until = operators_ + rounds * whole * std::min(often, kLongest);
  const bool is_beginning = part.suspected && std::ranges::any_of(scripts_, [&](const auto& one) {
                              return one->planned && begins_with(one->shape, part.shape);
                            });
  const bool has_plan = std::ranges::any_of(
      scripts_, [&](const auto& one) { return of_its_form(one) && one->planned; });
  const bool goes_on = !begins_another && !is_beginning && (has_plan || often == 1);
  for (const auto& one : scripts_ | std::views::filter(of_its_form)) {
    one->suspected = true;
    if (!goes_on) one->shunned_until = until;
    one->patience = part.patience;
  }
  if (goes_on) overheard_.listen(heard_until, kMarginal * options_.min_block);
  if (goes_on && part.is_part) listen_for_longer(nullptr, part.size(), whole);
  for (const auto& one : scripts_) {
    one->has_parts = one->has_parts || has_part(one->shape, part.shape);
  }
}

void Pilot::differs() {
  difference_ = walk_->why();
  // The step before was of this kind: so is this one, as long as nothing else tells.
  if (walk_->differs_in_size() && !script_->left) return change_size();
  for (const auto& other : scripts_) {
    if (other == script_ || other->form == script_->form) continue;
    if (operators_ < other->shunned_until || other->waits) continue;
    if (other->is_poor() && script_->planned && detours_.open()) continue;
    auto changed = walk_->change_to(*other);
    if (!changed) continue;
    if (now_.running && !changed->inside() && !changed->begin(now_.key)) continue;
    // What has been timed so far is the same in both.
    ++stats_.divergences;
    walk_along(other, std::move(*changed), /*goes_on_timing=*/true);
    if (walk_->sizes() != Walk::Sizes::kEqual) change_size();
    return;
  }
  if (walk_->differs_in_size()) return change_size();
  leave();
}

void Pilot::learn_now() {
  log_.clear();
  segment_.reset();
  const bool inside = walk_ && scripts_.size() < kMostScripts && tell_again(*walk_);
  show_step(false);
  mode_ = Mode::kLearning;
  wants_costs_ = true;
  walk_.reset();
  script_.reset();
  end_due_ = false;
  left_out_from_.reset();
  detour_.reset();
  if (!inside && now_.running) {
    log_.begin_operator(now_.key, now_.name, now_.repeatable, now_.replay_cost);
  }
}

void Pilot::walk_along(std::shared_ptr<Script> script, Walk walk, bool goes_on_timing) {
  // The next step begins, and what was still to come of this one is left out; or another one has.
  const bool ended = detour_ && detour_->left().script == script && detour_->may_end();
  if (ended) {
    detour_.reset();
    parting_.reset();
    ++stats_.detours;
  }
  give_up_detour();
  settle_parting();
  show_step(false);
  const bool may_be_timed = wants_times(*script) || wants_better(*script);
  if (!ended && (!goes_on_timing || !may_be_timed)) {
    note_hoped();
    stop_timing();
  }
  // The same step under another plan, or in another size, is the same loop still.
  if (!walk_ || script_->form != script->form) joined_ = operators_;
  if (!walk.jumped()) step_begun_at_ = operators_ - walk.position();
  // The walk refers to its script.
  walk_.emplace(std::move(walk));
  script_ = std::move(script);
  script_->has_come();
  mode_ = mode_along(*script_);
  wants_costs_ = overheard_.log() != nullptr;
  segment_.reset();
  end_due_ = false;
  left_out_from_.reset();
  followed_ = 0;
  least_step_ms_ = 0;
  settle_after_ = 0;
  ghosts_due_ = true;
  if (script_->planned) show_plan();
  if (ended) due_ = step_started(/*whole=*/false);
}

void Pilot::show_plan() {
  stats_.predicted_ms = script_->predicted.step_ms;
  stats_.host_ms = script_->predicted.host_ms;
  stats_.late_ms = script_->predicted.late_ms;
  stats_.planned_peak = script_->predicted.peak;
  stats_.placed = script_->placement.bytes;
  stats_.lower_bound = script_->placement.lower_bound;
}

void Pilot::show_step(bool runs) {
  if (std::exchange(shown_, runs) != runs) device_.show(PilotDevice::Stage::kStep, runs);
}

void Pilot::stop_timing() {
  if (std::exchange(timing_, false)) device_.drop_laps();
}

std::shared_ptr<Pilot::Job> Pilot::step_started(bool whole) {
  show_step(false);
  script_->left = false;
  note_length(script_, whole);
  succession_.note(script_->form);
  detours_.step_ended();
  step_begun_at_ = operators_;
  // It was not one of the others after all.
  if (timing_ && !sized_ && !own_timing_due()) {
    note_hoped();
    stop_timing();
  }
  const double now_ms = device_.now_ms();
  const double took_ms = now_ms - std::exchange(step_begun_ms_, now_ms);
  bool as_planned = false;
  if (mode_ == Mode::kFollowing) {
    // The first under a plan has begun before it.
    as_planned = whole && !timing_ && followed_ > 0;
    if (as_planned) {
      plan_or_none_.note_step(script_->size(), took_ms, script_->predicted.step_ms);
    }
    if (!timing_ && followed_ > 0) {
      least_step_ms_ = least_step_ms_ > 0 ? std::min(least_step_ms_, took_ms) : took_ms;
    }
    ++stats_.steps;
    ++followed_;
    ++script_->followed;
    planned_at_ = operators_;
    leave_parts_alone(*script_, /*still=*/true);
    end_due_ = true;
    ghosts_due_ = true;
  }
  if (const auto sized = std::exchange(sized_, nullptr); timing_ || sized) {
    plan_or_none_.disturb();
    job_ = std::make_shared<Job>();
    job_->original = sized ? sized : script_;
    // A refined plan stays: it is only to be seen what became of it.
    if (!job_->original->refined) {
      job_->made = std::make_shared<Script>(*job_->original);
      job_->made->trial = nullptr;  // that was another plan's
    }
    job_->timed = std::exchange(timing_, false);
    job_->first = std::ranges::none_of(scripts_, [](const auto& one) { return one->planned; });
    job_->names = walk_->take_names();
    job_->places = std::exchange(lap_places_, {});
    job_->longer = std::exchange(longer_, {});
    job_->host = host_.take();
    job_->host.step_ms = least_step_ms_;
    job_->options = options_;
    if (script_->planned && of_several_sizes(scripts_, *script_)) {
      // Each size has its turn soon, and to have updates wait would be to learn all of them anew.
      job_->options.search.seconds = std::min(job_->options.search.seconds, kForOneOfSizes);
      job_->options.search.hasty = true;
      job_->options.may_wait = nullptr;
    }
    return job_;
  }
  longer_.clear();
  if (job_) {
    if (job_->done) take_over();
  } else if (as_planned) {
    job_ = try_plans(took_ms);
    if (job_) return job_;
  }
  see_to_mode();
  if (!script_->planned && !script_->hopeless) hurry(*script_);
  timing_ = timing_due();
  laps_due_ = timing_;
  lap_places_.clear();
  if (timing_ && mode_ == Mode::kFollowing) walk_->keep_names();
  return nullptr;
}

/// The operators that the walk has gone along with, to the log, as if they had been fed to it:
/// where the stream then goes on as another step, the log has that step from its beginning. True if
/// the operator that runs is among them.
bool Pilot::tell_again(const Walk& walk) {
  // Whatever was there before the first operator belongs to none.
  log_.begin_operator(0, "a step begins", false);
  log_.end_operator();
  if (!walk.jumped()) segment_ = log_.end();
  walk.retell(log_);
  return walk.inside();
}

bool Pilot::rejoin(const std::shared_ptr<Script>& script, std::uint64_t from, Walk::Sizes sizes) {
  Walk walk(*script);
  walk.allow(sizes);
  if (!walk.go_along(log_, from)) return false;
  walk_along(script, std::move(walk));
  log_.clear();
  return true;
}

void Pilot::look_for_known() {
  std::optional<std::uint64_t> begins;
  std::vector<std::shared_ptr<Script>> alike;
  // By index and by value: a step that begins may add one.
  for (std::size_t known = 0; known < scripts_.size(); ++known) {
    const std::shared_ptr<Script> script = scripts_[known];
    if (operators_ < script->shunned_until || script->waits) continue;
    if (detour_ && script->is_part) continue;  // of the step that may go on, perhaps
    const std::size_t tell = std::min(kTellTale, script->size());
    if (log_.end() - log_.first() < tell) continue;
    const std::uint64_t from = log_.end() - tell;
    bool same = true;
    for (std::size_t i = tell; same && i-- > 0;) {
      same = log_.at(from + i).key == script->shape.operators[i].key;
    }
    if (!same) continue;
    settle_parting();
    if (operators_ < script->shunned_until) continue;
    if (!begins) step_begins(*(begins = from));
    if (!script->is_poor() && rejoin(script, from)) return;
    alike.push_back(script);
  }
  for (const auto& script : alike) {
    const std::uint64_t from = log_.end() - std::min(kTellTale, script->size());
    if (script->is_poor() && rejoin(script, from)) return;
  }
  // Those of other sizes: the smallest that this one is within, but first what has come to its end
  // the last time, and has a plan.
  std::ranges::sort(alike, {}, [](const auto& script) {
    return std::tuple(script->left, script->is_poor(), script->needed);
  });
  for (const Walk::Sizes sizes : {Walk::Sizes::kWithin, Walk::Sizes::kAny}) {
    for (const auto& script : alike) {
      const std::uint64_t from = log_.end() - std::min(kTellTale, script->size());
      if (rejoin(script, from, sizes)) return;
    }
  }
}

/// The log has come to a place like those at which known steps begin: what is between it and the
/// last one may be a step, of which this is known once it has been there twice.
void Pilot::step_begins(std::uint64_t at) {
  const auto from = std::exchange(segment_, at);
  if (!from || *from >= at || scripts_.size() >= kMostScripts) return;
  const auto before = occurrences_.note(log_, {*from, at});
  if (!before) return;
  auto shape = make_shape(log_, {*from, at}, *before);
  if (!shape || bytes_needed(*shape) < least_needed({*from, at})) return;
  for (const auto& known : scripts_) {
    if (same_step(known->shape, *shape)) return;
  }
  learn_apart(std::move(*shape));
}

/// A step that has not come twice in a row.
void Pilot::learn_apart(StepShape shape) {
  auto script = std::make_shared<Script>();
  script->shape = std::move(shape);
  get_to_know(*script);
  scripts_.push_back(std::move(script));
  detours_.know(scripts_.back()->size());
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
  ++stats_.apart;
}

/// What belongs to the step, and not to a plan of it.
void Pilot::get_to_know(Script& script) {
  script.needed = bytes_needed(script.shape);
  script.marginal = kMarginal * options_.min_block;
  script.least = options_.min_block;
  script.turns = std::make_shared<Turns>(script.shape);
  const auto sibling = std::ranges::find_if(scripts_, [&](const auto& known) {
    return same_form(known->shape, script.shape) && same_allocations(known->shape, script.shape);
  });
  script.form = sibling != scripts_.end() ? (*sibling)->form : ++forms_;
  script.only_read = only_read(script.shape);
  script.updated_by = updated_by(script.shape);
  script.find_telling();
  script.has_parts = std::ranges::any_of(scripts_, [&](const auto& other) {
    return other->suspected && has_part(script.shape, other->shape);
  });
}

void Pilot::note_departures() {
  constexpr std::size_t kMost = 4096;
  const std::int64_t now = departures_.load(std::memory_order_relaxed);
  if (std::exchange(departures_seen_, now) == now) return;
  left_at_.push_back(operators_);
  if (left_at_.size() > kMost) left_at_.pop_front();
}

/// What repeats takes less than this: a loop inside the step, of which alone nothing would have to
/// leave. Where something has left in it each time, not all of the limit is there for it
/// (workspaces of libraries, what is too small to be managed).
Bytes Pilot::least_needed(StepLog::Span span) const {
  const std::uint64_t before = operators_ - log_.end();  // the log's numbers begin after these
  const auto leave_in = [&](std::uint64_t begin, std::uint64_t end) {
    const auto first = std::ranges::lower_bound(left_at_, before + begin + 1);
    return first != left_at_.end() && *first <= before + end;
  };
  const std::uint64_t size = span.end - span.begin;
  const bool each = span.begin >= size && leave_in(span.begin, span.end) &&
                    leave_in(span.begin - size, span.begin);
  return each ? options_.limit / 2 : options_.limit / 4 * 3;
}

void Pilot::look_for_new() {
  if (scripts_.size() >= kMostScripts) return;
  auto span = operators_ < look_again_ ? std::nullopt : log_.repeated_step();
  Walk::Sizes sizes = Walk::Sizes::kEqual;
  if (operators_ >= look_again_for_form_ && (!span || is_several(log_, *span))) {
    // Steps of other sizes that have come in the same order twice are better known one by one.
    const auto form = log_.repeated_form();
    if (form && (!span || form->end - form->begin < span->end - span->begin)) {
      span = form;
      sizes = Walk::Sizes::kAny;
    }
  }
  if (!span) return look_roughly();
  auto script = std::make_shared<Script>();
  script->shape = make_shape(log_, *span);
  if (bytes_needed(script->shape) < least_needed(*span)) {
    // A loop inside the step: alone it would fit, and nothing would have to move.
    std::uint64_t& again = sizes == Walk::Sizes::kEqual ? look_again_ : look_again_for_form_;
    again = operators_ + std::max<std::uint64_t>(kPause, 2 * script->size());
    return;
  }
  const auto pause = [&] {
    const std::uint64_t until = operators_ + pause_after(script->size());
    look_again_ = std::max(look_again_, until);
    look_again_for_form_ = std::max(look_again_for_form_, until);
  };
  auto replaced = scripts_.end();
  bool is_known = false;
  for (auto known = scripts_.begin(); known != scripts_.end(); ++known) {
    // Also beside other blocks than when it was learnt (optimizer state, by then), and where fewest
    // bytes are alive at another of its operators.
    const bool left_alone = operators_ < (*known)->shunned_until ||
                            (detour_ && (*known)->is_part) ||
                            (overheard_.log() && (*known)->suspected);
    if (left_alone && same_round((*known)->shape, script->shape)) {
      pause();
      return look_roughly();
    }
    const bool same = sizes == Walk::Sizes::kEqual ? same_step((*known)->shape, script->shape)
                                                   : same_form((*known)->shape, script->shape);
    if (!same) continue;
    is_known = true;
    if (rejoin(*known, span->end, sizes)) return;
    // The same on other blocks: of another model, perhaps after the first.
    if (sizes == Walk::Sizes::kEqual && (*known)->planned &&
        same_blocks((*known)->shape, script->shape)) {
      auto planned = std::make_shared<Script>(**known);
      planned->shape.uids = script->shape.uids;
      planned->shape.turning = script->shape.turning;
      planned->ended_early = 0;
      script = std::move(planned);
    }
    if (outlived(**known)) replaced = known;
  }
  get_to_know(*script);
  // What has come twice is a step, though what comes now is already another, or on a detour.
  const bool lasts = detours_.open() && !is_known && sizes == Walk::Sizes::kEqual;
  if (!rejoin(script, span->end, sizes) && (!lasts || is_several(script->shape))) return pause();
  if (replaced != scripts_.end()) {
    *replaced = std::move(script);
  } else {
    detours_.know(script->size());
    scripts_.push_back(std::move(script));
  }
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
}

/// Where no step is known that is not shunned, nor has come twice: one that is much like the one
/// before it.
void Pilot::look_roughly() {
  constexpr std::uint64_t kOften = 4;  // the log has grown by one part of so many since last time
  if (!detours_.usable() || operators_ < look_roughly_) return;
  const auto counts = [&](const auto& script) { return operators_ >= script->shunned_until; };
  if (std::ranges::any_of(scripts_, counts)) return;
  look_roughly_ = operators_ + std::max((log_.end() - log_.first()) / kOften, 4 * kPause);
  const auto rough = find_rough_step(log_, detours_.least_steps());
  if (!rough) return;
  auto shape = make_shape(log_, *rough);
  if (!shape || is_several(*shape)) return;
  const bool known = std::ranges::any_of(
      scripts_, [&](const auto& script) { return same_operators(script->shape, *shape); });
  if (known) return;  // micro-batches, each as the one before
  if (bytes_needed(*shape) < least_needed(rough->step)) return;
  learn_apart(std::move(*shape));
  detours_.open_at_once();
}

/// True if a block that every step uses is no more.
bool Pilot::outlived(const Script& script) const {
  for (TraceBlockId id = 0; id < script.shape.uids.size(); ++id) {
    const TraceBlock& block = script.shape.trace.blocks[id];
    if (block.born_in_step || block.carried_from != kNoBlock) continue;
    if (script.turns->idle(id) || script.turns->may_turn(id)) continue;
    if (!blocks_.contains(script.shape.uids[id])) return true;
  }
  return false;
}

}  // namespace lms
