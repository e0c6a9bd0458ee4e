#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "steps/step_log.h"

namespace lms {

/// So many operators in a row, alike in all that can be seen, tell that a known step has begun.
inline constexpr std::size_t kTellTale = 12;

/// What has repeated and is not looked for would be found again at each operator, and to make its
/// shape takes as long as all of its operators: so many may come before it is tried again.
inline std::uint64_t pause_after(std::uint64_t operators) {
  constexpr std::uint64_t kPart = 8;  // of the step
  constexpr std::uint64_t kMost = 64;
  return std::clamp<std::uint64_t>(operators / kPart, 1, kMost);
}

/// The same operators, whatever they work on.
[[nodiscard]] bool same_operators(const StepShape& a, const StepShape& b);

/// The same round of operators, perhaps begun at another one.
[[nodiscard]] bool same_round(const StepShape& a, const StepShape& b);

/// True if `whole` is `part`, and then at least the beginning of `part` again.
[[nodiscard]] bool repeats(const StepShape& whole, const StepShape& part);
/// True if the whole begins with all of the part, and then goes on, whichever way.
[[nodiscard]] bool begins_with(const StepShape& whole, const StepShape& part);

/// True if a round of `part`, and its beginning again, is anywhere in `whole`: one of the
/// micro-batches of a step.
[[nodiscard]] bool has_part(const StepShape& whole, const StepShape& part);

/// Two rounds of the same operators, or three, or twice or thrice as many: steps of different sizes
/// that came in the same order twice, perhaps.
[[nodiscard]] bool is_several(const StepShape& shape);
[[nodiscard]] bool is_several(StepLog& log, StepLog::Span span);

/// What every such step reads and none writes, ascending.
[[nodiscard]] std::vector<BlockUid> only_read(const StepShape& shape);

/// The operator by which such a step has written nearly all that it had read of what was there
/// before: an optimizer has been through. The step's size, if there is none.
[[nodiscard]] std::size_t updated_by(const StepShape& shape);

}  // namespace lms
