#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "trace/trace.h"

namespace lms {

/// Several operators over lists that have run as one, in traces.
inline constexpr std::string_view kListPass = "lms::list_pass";

/// Whether the device can put off an operator over lists, or in parts, position by position.
using MayWait = bool (*)(std::string_view name);

/// What one operator over lists does for one weight: a position of its lists.
struct UpdatePart {
  std::size_t op = 0;
  std::vector<TraceBlockId> reads;  ///< in the order of the operator's lists
  std::vector<TraceBlockId> writes;
  std::vector<TraceBlockId> makes;
  double ms = 0;  ///< its share of the operator
};

/// The update of one weight by an optimizer: of one operator (`_fused_adamw_`), or of all that
/// follow each other (`_foreach_lerp_`, `_foreach_sqrt`, ...).
struct WeightUpdate {
  /// In the order of the program. A recorded step may begin in the middle of an optimizer's: then
  /// the first ones are at its end.
  std::vector<UpdatePart> parts;
  /// Weight, gradient, state, in the order in which the parts use them, by the names that they have
  /// when the gradient is born. Without what the parts make.
  std::vector<TraceBlockId> blocks;
  std::vector<TraceBlockId> written;  ///< of these
  TraceBlockId gradient = 0;
  std::size_t gradient_born = 0;  ///< in which operator
  Bytes bytes = 0;                ///< of `blocks`
  double ms = 0;
  /// The next operator, in this step or, where it comes before the gradient's birth, the next one,
  /// that uses any of the blocks: the latest before which the update may run.
  std::size_t wanted_by = 0;
  /// Updates that stand side by side and have the same number here run as one.
  std::size_t group = 0;

  /// Its last operator.
  [[nodiscard]] std::size_t op() const { return parts.back().op; }
  /// From there, how many of the step's operators go by until it is wanted.
  [[nodiscard]] std::size_t wait(std::size_t operators) const {
    return (wanted_by + operators - op()) % operators;
  }
};

/// The updates of a step that could wait until their results are wanted. Empty if it has no
/// operators that may wait over weights, gradients born in the step, and state, all of them
/// movable, without others between that use the same. The trace must be valid.
/// Each is a group of its own.
std::vector<WeightUpdate> deferrable_updates(const Trace& trace, MayWait may_wait);

/// The updates in groups, as a device has them wait that cuts lists into pieces: those side by side
/// that are done by the same operators, up to `most` bytes. All of a group are wanted when the
/// first of it is.
std::vector<WeightUpdate> in_groups(std::vector<WeightUpdate> updates, std::size_t operators,
                                    Bytes most);

}  // namespace lms
