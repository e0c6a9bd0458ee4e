#include "pilot/plan_trial.h"

#include <utility>

#include "base/median.h"
#include "plan/timing/step_clock.h"

namespace lms {
namespace {

/// Steps of which the median counts.
constexpr std::size_t kSteps = 5;
/// A plan is doubted if its steps take so much longer.
constexpr double kDoubted = 1.02;
/// The older one stays if its steps take so much less.
constexpr double kQuicker = 0.99;

}  // namespace

PlanTrial::PlanTrial(std::shared_ptr<Script> before, double before_ms, std::size_t operators)
    : other(std::move(before)),
      before_ms_(before_ms),
      // Steps of few operators are queued ahead.
      settled_after_(1 + StepClock::kMostAhead / (operators + 1)) {}

PlanTrial::Next PlanTrial::note(double ms) {
  if (stage_ == Stage::kOver || ++noted_ <= settled_after_) return Next::kGoOn;
  taken_ms_.push_back(ms);
  if (taken_ms_.size() < kSteps) return Next::kGoOn;
  const double typical_ms = median(taken_ms_);
  taken_ms_.clear();
  noted_ = 0;
  if (stage_ == Stage::kNewer) {
    newer_ms_ = typical_ms;
    const bool doubted = typical_ms > kDoubted * before_ms_;
    stage_ = doubted ? Stage::kBefore : Stage::kOver;
    return doubted ? Next::kChange : Next::kSettle;
  }
  if (typical_ms < kQuicker * newer_ms_) return Next::kSettle;
  stage_ = Stage::kOver;
  return Next::kChange;
}

}  // namespace lms
