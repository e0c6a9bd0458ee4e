#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "trace/trace.h"

namespace lms {

/// A planned step in which nothing is computed again any more: every kRematerialise is an operator
/// like others, and every stay of a block from its birth, or from a rematerialisation, to its drop
/// or death is a block of its own. What only keeps and swaps can be planned on it, and folded back.
struct Unfolded {
  enum class Part : std::uint8_t {
    kOwn,    ///< the step's operator number `moment`
    kAgain,  ///< a kRematerialise before the step's operator `moment`, as one operator
    kPause,  ///< nothing, for no time: lets drops come after other directives of their moment
  };
  struct Operator {
    Part part = Part::kOwn;
    std::size_t moment = 0;
    std::size_t directive = 0;  ///< of a kAgain: its number in the plan
    /// Blocks of `trace` that are dropped before anything else happens after it.
    std::vector<TraceBlockId> drops = {};
  };

  /// The step's blocks have their numbers, which are those of their first lives; further lives come
  /// after them, and are not in the order of their appearance. Ghosts are not movable.
  ///
  /// A kAgain reads what the operators of its lineage read, takes as long as they all, has the
  /// block as its result, and their other results and their temporaries as temporaries, in the
  /// order of their allocation. If they have a workspace, but no recorded temporaries, neither has
  /// it.
  Trace trace;
  Plan plan;                         ///< what the plan kept and swapped, for `trace`
  std::vector<Operator> operators;   ///< by operator of `trace`
  std::vector<TraceBlockId> blocks;  ///< by block of `trace`: the step's
};

/// The plan must satisfy verify_plan (under a budget that does not matter here). The result's plan
/// then does as well: it needs the same bytes on the device, and takes the same time. Throws Error
/// if what is dropped was not there, or the other way round. Cost: linear.
Unfolded unfold(const Trace& trace, const Plan& plan);

/// A plan that keeps and swaps blocks of `unfolded.trace`, and satisfies verify_plan, as a plan for
/// the step itself, with what the unfolded plan drops and rematerialises. It needs the same bytes
/// on the device and takes the same time; but what leaves and has not come back when it is dropped
/// is not copied, only dropped earlier. Throws Error if `plan` drops or rematerialises.
Plan fold(const Unfolded& unfolded, const Plan& plan);

}  // namespace lms
