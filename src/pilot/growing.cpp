// A script that was learnt from a short step grows.

#include <algorithm>
#include <utility>

#include "pilot/kinds_of_steps.h"
#include "pilot/pilot.h"
#include "steps/rough_steps.h"

namespace lms {
namespace {

/// After a step as `last`: the planned one that is likelier to come than the same again, and begins
/// alike. What the plan of the last has still to do goes undone: it is made for the same step
/// again, and what it leaves on the device is not what that one wants there.
std::shared_ptr<Script> likely_next(const std::vector<std::shared_ptr<Script>>& scripts,
                                    const Succession& succession, const Script& last) {
  const std::uint64_t form = succession.other();
  if (form == 0 || form == last.form) return nullptr;
  std::shared_ptr<Script> next;
  for (const auto& one : scripts) {
    if (one->form != form) continue;
    if (next) return nullptr;  // in several sizes
    next = one;
  }
  const bool may = next && next->planned && !next->waits && !next->is_part &&
                   same_beginning(next->shape, last.shape, kTellTale);
  return may ? next : nullptr;
}

}  // namespace

/// A step of the script that is followed has ended, or one has gone on for too long to be one.
/// Where many do more than the script has (layers that the step left out from which it was learnt,
/// more micro-batches), a longer one is listened for.
void Pilot::note_length(const std::shared_ptr<Script>& script, bool right) {
  if (!detours_.open()) return;
  script->lengths.note(operators_ - step_begun_at_, script->size(), right);
  if (!script->lengths.outgrown() || script->is_part) return;
  listen_for_longer(script, script->size(), script->lengths.longest());
}

/// For a step of more than `size` operators; it has, perhaps, `most`. If `like` is given, it begins
/// as that does.
void Pilot::listen_for_longer(std::shared_ptr<const Script> like, std::size_t size,
                              std::uint64_t most) {
  constexpr std::uint64_t kSteps = 8;  // of which the longest is taken
  const bool listens = growth_.longer_than > 0;
  const bool found = std::ranges::any_of(scripts_, [](const auto& one) { return one->waits; });
  if (listens || found || operators_ < growth_.not_before) return;
  growth_.script = std::move(like);
  growth_.longer_than = size;
  growth_.look_at = operators_ + kSteps * most;
  overheard_.listen(growth_.look_at + most, kMarginal * options_.min_block);
  wants_costs_ = true;
}

/// The steps that have been heard meanwhile: the longest that is alike to the one before it has a
/// place for what others leave out. If it can be, it begins as the short one does, so that a walk
/// along that can change to it; it is planned meanwhile.
void Pilot::look_for_longer() {
  if (growth_.longer_than == 0 || operators_ < growth_.look_at || whole_) return;
  constexpr int kAlike = 4;                // steps, in how they begin
  constexpr std::size_t kWorthwhile = 32;  // longer by one part of so many
  const std::size_t longer_than = std::exchange(growth_.longer_than, 0);
  const auto short_one = std::exchange(growth_.script, nullptr);
  growth_.patience *= 2;
  growth_.not_before = operators_ + growth_.patience * longer_than;
  if (!overheard_.log() || scripts_.size() >= kMostScripts) return;
  StepLog& log = *overheard_.log();
  std::optional<RoughStep> rough;
  if (short_one) {
    const Walk known(*short_one);
    rough = find_rough_step(log, kAlike, [&](std::uint64_t at) {
      std::uint64_t alike = 0;
      bool telling = false;
      const std::uint64_t most = std::min<std::uint64_t>(longer_than, log.end() - at);
      while (alike < most && known.is_like(log, at + alike, alike, &telling)) ++alike;
      return alike;
    });
  }
  if (!rough) rough = find_rough_step(log, kAlike);
  overheard_.pause(operators_ + longer_than);
  const std::size_t least = longer_than + longer_than / kWorthwhile;
  if (!rough || rough->step.end - rough->step.begin <= least) return;
  auto shape = make_shape(log, *rough);
  if (!shape || bytes_needed(*shape) < options_.limit / 2) return;
  const auto is_known = [&](const auto& one) { return same_round(one->shape, *shape); };
  if (is_several(*shape) || std::ranges::any_of(scripts_, is_known)) return;
  learn_apart(std::move(*shape));
  growth_ = {};
  const auto& script = scripts_.back();
  if (short_one) script->grown_from = short_one->form;
  if (estimate_times(*script)) {
    script->waits = true;
    whole_ = script;
  } else {
    forget_outgrown(*script);
  }
  overheard_.stop();
  wants_costs_ = !walking();
}

/// A step begins along a script that has no plan, and will have none: a detour of a plan is better.
/// Or along one that most steps leave: the longest that begins alike has a place for what they do.
void Pilot::prefer_another() {
  const auto likely = likely_next(scripts_, succession_, *script_);
  if (likely && operators_ >= likely->shunned_until) {
    timing_ = false;  // nothing has been timed yet
    walk_along(likely, Walk(*likely), /*goes_on_timing=*/true);
    timing_ = laps_due_ = timing_due();
    if (timing_ && mode_ == Mode::kFollowing) walk_->keep_names();
    return;
  }
  const bool is_left = script_->lengths.mostly_other() && !script_->is_part;
  if (!detours_.open() || script_->size() < kTellTale) return;
  if (!script_->in_vain() && !is_left) return;
  constexpr std::size_t kFew = 2;  // so many times as long is another step
  std::shared_ptr<Script> best;
  for (const auto& one : scripts_) {
    if (one == script_ || operators_ < one->shunned_until || one->size() < kTellTale) continue;
    const bool is_longer = !one->is_poor() && !one->waits && !one->is_part &&
                           one->size() > script_->size() && one->size() <= kFew * script_->size() &&
                           (!best || one->size() > best->size());
    const bool serves = script_->in_vain() ? one->planned && !best : is_longer;
    if (serves && same_beginning(one->shape, script_->shape, kTellTale)) best = one;
  }
  if (best) walk_along(best, Walk(*best), /*goes_on_timing=*/true);
}

/// What begins like the longer one, or is what that has grown from, and as which no step has been
/// for a while, would only be followed again instead of it. A walk along it goes on until it
/// differs.
void Pilot::forget_outgrown(const Script& longer) {
  std::erase_if(scripts_, [&](const auto& one) {
    if (one->size() >= longer.size() || !one->lengths.never_right()) return false;
    const std::size_t tell = std::min(kTellTale, one->size());
    return one->form == longer.grown_from || same_beginning(one->shape, longer.shape, tell);
  });
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
}

}  // namespace lms
