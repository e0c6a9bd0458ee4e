#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/trace.h"

namespace lms {

/// Raised by every change of what the values of a Plan mean.
inline constexpr int kPlanVersion = 2;

/// What can be done to one block at one moment of the step.
enum class Action : std::uint8_t {
  kKeep,       ///< from now on it stays on the device until it dies or the step ends
  kStartOut,   ///< start its copy to the tier below; nothing is copied if the copy there is valid
  kFinishOut,  ///< wait for that copy, then give the device memory back
  kStartIn,    ///< take device memory and start its copy back; its next use waits for it
  kDrop,       ///< give the device memory back; the bytes come back by kRematerialise, or never
  kRematerialise,  ///< compute its bytes again, also after its end (a ghost)
};

/// Carried out before operator number `before` of the trace; the number of operators itself means
/// after the last.
struct Directive {
  std::size_t before = 0;
  Action action = Action::kKeep;
  TraceBlockId block = 0;

  bool operator==(const Directive&) const = default;
};

/// What to do around each operator of a step like the trace's: a plain value.
struct Plan {
  int version = kPlanVersion;
  /// Ascending by `before`; those of one moment are carried out in the order given.
  std::vector<Directive> directives;
  /// Blocks that are only in the tier below when the step begins, with a valid copy there. Since
  /// steps repeat, these and no other blocks from before the step must be absent when it ends.
  std::vector<TraceBlockId> absent_at_start;
};

/// Everything that makes `plan` wrong for `trace` under `budget` bytes, a sentence each, in the
/// order of the step. Empty is a proof that, followed exactly, the plan
/// - lets every operator find all that it reads and writes on the device,
/// - copies out no block while an operator changes it, and brings back only what was copied whole,
/// - computes again only what comes out the same (below),
/// - never has more than `budget` bytes on the device: during an operator, counting its results and
///   its workspace, and after every directive between operators,
/// - moves no block that is not movable,
/// - leaves the device as the next step expects to find it: blocks from before the step are as they
///   were, or, where they are carried from a block born in the step, that block is.
///
/// A block's lineage, at a moment, is the operators so far that made or wrote it, in order; a block
/// from before the step has none, and may not be dropped. To rematerialise a dropped block is right
/// if every operator of its lineage
/// - is repeatable,
/// - reads, beside the block itself and what it spares, only blocks that are on the device at that
///   moment and have not been written since (a reader that wrote them itself counts as a writer).
///   Such a block may have been dropped and rematerialised itself,
/// - writes no other block but those that it spares: that would be written again,
/// - does not spare the block itself: its contents would lack that part.
/// The operator's other results and its workspace count as bytes on the device while it runs again;
/// they go at once. A rematerialised block has no copy below. Blocks may be dropped and
/// rematerialised any number of times.
///
/// A movable block of the step that has died may be rematerialised by the lineage that it had then,
/// to serve as an input of other lineages. Such a ghost can only be dropped again, and must be
/// before the step ends. What follows the first violation supposes that the offending directive had
/// not been there.
std::vector<std::string> verify_plan(const Trace& trace, const Plan& plan, Bytes budget);

}  // namespace lms
