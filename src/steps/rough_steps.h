#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "steps/step_log.h"

namespace lms {

/// A step, and which operators of the one before it were the same.
struct RoughStep {
  StepLog::Span before;
  StepLog::Span step;
  /// For each operator of the step, the number in the log of the same one in the step before;
  /// kNone: it was not there.
  std::vector<std::int64_t> partners;

  static constexpr std::int64_t kNone = -1;
};

/// How many operators of the log, from that one on, are as a step is known to begin.
using BeginsLike = std::function<std::uint64_t(std::uint64_t)>;

/// Where no step is like another in all its operators: two steps, one after the other, that are
/// alike in most. They begin where few bytes are alive and the same operators follow time and
/// again. Operators are the same if they are of one kind and use the same of what is there in both
/// steps (E. W. Myers, An O(ND) Difference Algorithm and Its Variations, 1986). Nothing, if there
/// are none. `least`: so many steps must have begun alike. `begins`: if given, they begin where it
/// tells of most. Cost: linear in the log, and quadratic in the number of operators that differ.
[[nodiscard]] std::optional<RoughStep> find_rough_step(const StepLog& log, int least = 4,
                                                       const BeginsLike& begins = {});

/// The shape of it. What was there before, dies in the step and is made in it again is carried
/// over; what only dies is no part of the step.
[[nodiscard]] std::optional<StepShape> make_shape(StepLog& log, const RoughStep& rough);

}  // namespace lms
