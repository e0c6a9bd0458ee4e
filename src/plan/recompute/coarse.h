#pragma once

#include <cstddef>
#include <vector>

#include "plan/plan.h"
#include "trace/trace.h"

namespace lms {

/// A step whose operators that neither make nor change anything (views) are one with a neighbour
/// that uses the same blocks. Half of many steps' operators are such; a search goes twice as fast
/// without them.
struct Coarse {
  explicit Coarse(const Trace& trace);

  /// The same blocks; at no time less memory in use than the step has, whatever is away. Operators
  /// have the names of those that do something, and no temporaries.
  Trace trace;
  std::vector<std::size_t> first;  ///< by operator of `trace`: the first of the step's in it

  /// A plan for `trace` as one for the step.
  [[nodiscard]] Plan refine(Plan plan) const;
  /// A plan for the step as one for `trace`: about the same.
  [[nodiscard]] Plan coarsen(Plan plan) const;

 private:
  std::size_t operators_;  ///< of the step
};

}  // namespace lms
