#include "pilot/plan_or_none.h"

#include <algorithm>
#include <utility>

#include "base/median.h"

namespace lms {
namespace {

constexpr std::size_t kStretchSteps = 2;       ///< of the longest, a stretch
constexpr std::size_t kStretchLeast = 2048;    ///< operators of it
constexpr std::size_t kStretches = 6;          ///< stretches that are compared with as many
constexpr std::size_t kSettlingStretches = 2;  ///< that are not, after a change
constexpr double kAboutAsPlanned = 1.15;       ///< of what was predicted is fine
constexpr double kMuchSlowerSo = 1.3;          ///< it need not be seen for longer
constexpr double kClearlyQuickerSo = 0.9;      ///< with plans than without: then nobody need see
constexpr double kQuickerSo = 0.98;            ///< the way is changed for no less
constexpr std::size_t kUntilNextTry = 4;  ///< times as long until the next try, than until this one
constexpr std::size_t kUntilNextTryIfSlow = 16;  ///< likewise, where the other way was much slower

}  // namespace

void PlanOrNone::go_on_in(Stage stage) {
  if (stage != stage_) skipped_ = kSettlingStretches;
  stage_ = stage;
  each_ms_.clear();
  all_ = whole_ = 0;
  took_ms_ = predicted_ms_ = 0;
}

void PlanOrNone::plan_came() {
  // What has been seen was another plan; but where each of many sizes gets one, others stay.
  patience_ = stage_ == Stage::kPlans ? back_off_ : 1;
  skipped_ = kSettlingStretches;
  go_on_in(Stage::kPlans);
}

void PlanOrNone::note(double now_ms, std::size_t longest) {
  const auto operators = static_cast<double>(std::exchange(operators_, 0));
  const double each_ms = (now_ms - std::exchange(begun_ms_, now_ms)) / operators;
  const bool follows = std::exchange(following_, 0) > 0;
  stretch_ = std::max(kStretchLeast, kStretchSteps * longest);
  if (std::exchange(disturbed_, false)) {
    all_ += static_cast<std::size_t>(operators);  // steps in it may have been noted
    return;
  }
  if (stage_ == Stage::kPlans && !follows) {  // there are none
    // Once there have been any, what follows none may be another loop.
    const bool settles = std::exchange(skipped_, 0) > 0;
    if (!settles && with_plans_ms_ <= 0) {
      without_ms_ = without_ms_ > 0 ? std::min(without_ms_, each_ms) : each_ms;
    }
    return go_on_in(stage_);
  }
  if (skipped_ > 0) {
    --skipped_;
    whole_ = 0;
    took_ms_ = predicted_ms_ = 0;
    return;
  }
  each_ms_.push_back(each_ms);
  all_ += static_cast<std::size_t>(operators);
  const std::size_t rounds = stage_ == Stage::kNone ? patience_ : 1;
  if (stage_ == Stage::kTry && each_ms_.size() == kSettlingStretches) {
    const auto is_slower = [&](double ms) { return ms > kMuchSlowerSo * with_plans_ms_; };
    if (std::ranges::all_of(each_ms_, is_slower)) {
      without_ms_ = median(each_ms_);
      back_off(kUntilNextTryIfSlow);
      return go_on_in(Stage::kPlans);
    }
  }
  if (stage_ == Stage::kPlans && each_ms_.size() == kSettlingStretches && without_ms_ > 0) {
    const auto is_slower = [&](double ms) { return ms > kMuchSlowerSo * without_ms_; };
    if (std::ranges::all_of(each_ms_, is_slower)) {
      patience_ = 1;
      return watch();
    }
  }
  if (each_ms_.size() < rounds * kStretches) return;
  if (stage_ == Stage::kPlans) return watch();
  if (stage_ == Stage::kTry) return try_none();
  patience_ = 1;
  go_on_in(Stage::kPlans);
}

void PlanOrNone::back_off(std::size_t times) {
  constexpr std::size_t kMost = 4096;
  patience_ = back_off_ = std::min(back_off_ * times, kMost);
}

void PlanOrNone::watch() {
  with_plans_ms_ = median(each_ms_);
  const bool as_planned = 4 * whole_ >= 3 * all_ && took_ms_ <= kAboutAsPlanned * predicted_ms_;
  const bool pays = without_ms_ > 0 && with_plans_ms_ < kClearlyQuickerSo * without_ms_;
  const bool due = !as_planned && !pays && --patience_ == 0;
  go_on_in(due ? Stage::kTry : Stage::kPlans);
}

void PlanOrNone::try_none() {
  without_ms_ = median(each_ms_);
  const bool quicker = without_ms_ < kQuickerSo * with_plans_ms_;
  back_off(kUntilNextTry);
  go_on_in(quicker ? Stage::kNone : Stage::kPlans);
}

}  // namespace lms
