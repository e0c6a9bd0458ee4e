// A step goes on otherwise than its script: perhaps only for a while.

#include <algorithm>
#include <utility>

#include "pilot/pilot.h"

namespace lms {

/// The walk has come to an end. The step is told to the log from its beginning, and goes on there.
void Pilot::leave() {
  constexpr std::size_t kLeast = 32;  // operators of a script that are worth the search
  // Its parts came so often when it was learnt: another time more often, or less.
  if (script_->has_parts) detours_.open_at_once();
  const bool is_known = std::ranges::find(scripts_, script_) != scripts_.end();
  const bool may_come_back =
      is_known && detours_.open() && operators_ >= straight_until_ && script_->size() >= kLeast;
  const Detour::Left left = {script_, walk_->position(), joined_, operators_,
                             mode_ == Mode::kFollowing};
  parting_ = {left, diverged_};
  std::optional<Walk> walk;
  if (may_come_back) walk = *walk_;
  learn_now();
  if (!walk) return give_up(left);
  detour_.emplace(left, std::move(*walk), log_.end() - 1);
}

void Pilot::give_up_detour() {
  if (!detour_) return;
  const Detour::Left left = detour_->left();
  detour_.reset();
  give_up(left);
}

/// It is another step, and not only for a while.
void Pilot::give_up(const Detour::Left& left) {
  ++stats_.divergences;
  succession_.lose();
  left.script->left = true;
  // A loop that is part of a step ends where its next round would begin.
  constexpr std::size_t kBeginning = 16;
  const bool at_beginning = left.position <= left.script->size() / kBeginning;
  if (parting_ && (at_beginning || !detours_.open())) {
    parting_->counts = true;
    diverged_ = left.operators;
  }
  if (left.followed && said_++ < kMostLines) {
    device_.say("this step is another than the one planned: " + difference_ +
                "; going on without a plan until this loop is known");
  }
  stop_timing();
  ghosts_due_ = true;
}

void Pilot::look_for_way_back() {
  if (!detour_) return;
  if (detour_->is_lost(log_)) {
    note_length(detour_->left().script, false);
    // Of a step that has jumped the log does not have the beginning: the next one it shall have.
    if (detour_->jumped()) straight_until_ = operators_ + 2 * detour_->left().script->size();
    return give_up_detour();
  }
  auto back = detour_->way_back(log_);
  if (!back) return;
  const Detour::Left& left = detour_->left();
  left_out_from_ = back->next ? 0 : left.position;
  script_ = left.script;
  joined_ = left.joined;
  walk_.emplace(std::move(back->walk));
  mode_ = mode_along(*script_);
  wants_costs_ = overheard_.log() != nullptr;
  segment_.reset();
  end_due_ = false;
  detour_.reset();
  parting_.reset();
  log_.clear();
  ++stats_.detours;
  stats_.detour = difference_;
  if (back->next) {
    due_ = step_started(/*whole=*/false);
  } else if (timing_ && lap_places_.size() >= back->seen) {
    for (std::size_t i = 1; i <= back->seen; ++i) {
      lap_places_[lap_places_.size() - i] = walk_->position() - i;
    }
  }
}

/// `place`: of the operator in the script; SIZE_MAX: none.
void Pilot::note_lap(std::size_t place) {
  host_.lap([this] { device_.lap(); });
  lap_places_.push_back(place);
}

}  // namespace lms
