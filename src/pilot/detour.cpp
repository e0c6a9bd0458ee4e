#include "pilot/detour.h"

#include <algorithm>
#include <utility>

namespace lms {
namespace {

/// An operator that uses a weight tells the place: the next one where the script has it. Without
/// weights as many tell it as tell where a step begins; or as few as these, where all since it left
/// the script are there and the place is as near as this. Backwards as few as these, with weights.
constexpr std::size_t kFew = 4;
constexpr std::size_t kNearby = 8;
constexpr std::size_t kMany = 12;
/// Who has left the script in its last part of so many, and comes to the first, is in the next
/// step; or has left out no more than it may, after weights were updated (what a script has behind
/// that may have been done once, as a look at all weights).
constexpr std::size_t kEdge = 8;
/// Operators beside the script: one part of so many of it, or so many in any case.
constexpr std::size_t kMostBeside = 4;
constexpr std::size_t kAlwaysBeside = 64;
/// Of a step that leaves out more than three quarters the plan is of no use.
constexpr std::size_t kLeastLeft = 4;
/// Places without weights that look right and are not.
constexpr int kMostTries = 64;
}  // namespace

Detour::Detour(Left left, Walk walk, std::uint64_t from)
    : left_(std::move(left)), walk_(std::move(walk)), from_(from) {
  const auto& operators = left_.script->shape.operators;
  keys_.reserve(operators.size());
  for (const auto& op : operators) keys_.push_back(op.key);
}

bool Detour::is_lost(const StepLog& log) const {
  const std::size_t beside = log.end() - from_;
  return beside > std::max(kAlwaysBeside, keys_.size() / kMostBeside);
}

std::size_t Detour::may_leave_out() const {
  const std::size_t most = keys_.size() - keys_.size() / kLeastLeft;
  return most - std::min(most, walk_.left_out());
}

bool Detour::may_end() const { return keys_.size() - left_.position <= may_leave_out(); }

/// How many of the last operators, beside the script so far, are those before `end`. `*telling`:
/// weights or their like are among what they use.
std::size_t Detour::seen_before(const StepLog& log, std::size_t end, bool* telling) const {
  const std::size_t beside = log.end() - from_;
  const std::size_t most = std::min(beside, end > left_.position ? end - left_.position : end);
  std::size_t seen = 0;
  while (seen < most && keys_[end - seen - 1] == log.at(log.end() - seen - 1).key &&
         walk_.is_like(log, log.end() - seen - 1, end - seen - 1, telling)) {
    ++seen;
  }
  return seen;
}

std::optional<Detour::Back> Detour::way_back(const StepLog& log) {
  const std::size_t beside = log.end() - from_;
  if (beside == 0) return {};
  // Whoever comes to the end of the script comes to the next step, which is known by its beginning.
  const std::size_t last = std::min(keys_.size(), left_.position + may_leave_out() + kMany);
  std::optional<std::pair<std::size_t, std::size_t>> without_weights;  // the nearest: end, seen
  const auto note = [&](std::size_t end, std::size_t seen) {
    if (seen >= kMany && !without_weights) without_weights = {end, seen};
  };
  for (std::size_t end = left_.position + 1; end < last; ++end) {
    bool telling = false;
    const std::size_t seen = seen_before(log, end, &telling);
    const bool near = seen == beside && end - seen <= left_.position + kNearby;
    if (!telling && !near) {
      note(end, seen);
      continue;
    }
    if (auto back = back_at(log, end, seen, {.few = near, .telling = 1})) return back;
  }
  for (std::size_t end = std::min(left_.position, keys_.size() - 1); end > kFew; --end) {
    bool telling = false;
    const std::size_t seen = seen_before(log, end, &telling);
    if (!telling) {
      note(end, seen);
      continue;
    }
    if (auto back = back_at(log, end, seen, {.few = false, .telling = kFew})) return back;
  }
  // Loops look alike in many places: one is tried at each operator, and not for ever.
  if (!without_weights || ++tries_ > kMostTries) return {};
  const auto [end, seen] = *without_weights;
  return back_at(log, end, seen, {.few = false, .telling = 1});
}

/// The script goes on at `end`, before which are the last `seen` operators, or, where one of them
/// is otherwise inside, those after that one: if they are enough.
std::optional<Detour::Back> Detour::back_at(const StepLog& log, std::size_t end, std::size_t seen,
                                            Enough enough) {
  while (seen > 0) {
    bool telling = false;
    for (std::size_t i = 1; i <= seen; ++i) {
      (void)walk_.is_like(log, log.end() - i, end - i, &telling);
    }
    const std::size_t least = telling ? enough.telling : enough.few ? kFew : kMany;
    if (seen < least) return {};
    const std::size_t from = end - seen;
    const bool at_end = left_.position > keys_.size() - keys_.size() / kEdge ||
                        (left_.position > left_.script->updated_by && may_end());
    const bool next = from < keys_.size() / kEdge && at_end;
    std::size_t failed = from;
    for (const bool any_size : {false, true}) {
      Back back{walk_, seen, next};
      if (next) back.walk.begin_next();
      back.walk.jump(from);
      if (any_size) back.walk.allow(Walk::Sizes::kAny);
      if (back.walk.go_along(log, log.end() - seen)) return back;
      failed = back.walk.position();
      if (!back.walk.differs_in_size()) break;
    }
    if (!telling && !enough.few) return {};
    seen = failed >= from && failed < end ? end - failed - 1 : 0;
  }
  return {};
}

}  // namespace lms
