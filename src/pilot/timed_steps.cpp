// Which steps are timed, so that they can be planned, or planned better.

#include <algorithm>

#include "pilot/pilot.h"

namespace lms {
namespace {

/// Steps under a new plan before its times are taken.
constexpr int kSettled = 3;

}  // namespace

bool Pilot::wants_times(const Script& script) const {
  return !job_ && !script.hopeless && !script.planned && !script.waits;
}

/// Where sizes come one after the other, no plan is followed for some steps in a row.
bool Pilot::wants_better(const Script& script) const {
  return !job_ && script.wants_better() && of_several_sizes(scripts_, script);
}

/// A step waits for its first plan. What only makes another's better is planned again later, and of
/// a step that is known no more nobody wants one.
void Pilot::hurry(Script& waits) {
  constexpr int kMost = 3;  // times: it may not come to one
  if (!job_ || job_->done || job_->stop || waits.hurried >= kMost) return;
  const bool is_known = std::ranges::find(scripts_, job_->original) != scripts_.end();
  if (is_known && !job_->original->planned) return;
  job_->stop = true;
  ++waits.hurried;
}

/// The step that begins may turn out to be this one, which is still to be planned.
bool Pilot::may_begin(const Script& other) const {
  return &other != script_.get() && other.is_hoped_for() &&
         (wants_times(other) || wants_better(other)) &&
         other.shape.operators[0].key == script_->shape.operators[0].key;
}

/// The step that has been timed so far was none of those that it might have been.
void Pilot::note_hoped() {
  if (!timing_ || !script_ || sized_) return;
  for (const auto& other : scripts_) {
    if (may_begin(*other)) ++other->awaited;
  }
}

bool Pilot::timing_due() const {
  if (job_ || whole_) return false;
  return own_timing_due() ||
         std::ranges::any_of(scripts_, [&](const auto& other) { return may_begin(*other); });
}

bool Pilot::own_timing_due() const {
  if (job_ || whole_ || script_->hopeless) return false;
  // Times are taken once to plan, once more where the plan itself has changed them, and of the plan
  // that is kept, to be shown.
  const bool settled = mode_ == Mode::kFollowing && followed_ >= kSettled;
  const bool has_none = mode_ == Mode::kTracking && !script_->planned;
  if (mode_ == Mode::kFollowing && wants_better(*script_)) return true;
  return has_none || (settled && !(script_->refined && script_->measured));
}

}  // namespace lms
