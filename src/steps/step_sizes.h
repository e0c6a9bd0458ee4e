#pragma once

#include <vector>

#include "steps/step_log.h"

namespace lms {

/// True if both are the same step but for sizes: the same blocks of their traces do the same in the
/// same operators, whatever temporaries these take. What is there before and written, as weights
/// are, has the same size.
[[nodiscard]] bool same_form(const StepShape& a, const StepShape& b);

/// True if operators allocate the same blocks in the same order, and temporaries beside: so that
/// the sizes of one are sizes of the other. Kernels for other sizes may take other temporaries.
[[nodiscard]] bool same_allocations(const StepShape& a, const StepShape& b);

/// The sizes of one run of a step, in the order of its shape.
struct StepSizes {
  std::vector<Bytes> blocks;       ///< beside StepShape::trace.blocks
  std::vector<Bytes> allocations;  ///< those of all operators, in order
  std::vector<Bytes> beyond;       ///< StepShape::Operator::beyond of all operators

  [[nodiscard]] static StepSizes of(const StepShape& shape);
  /// The shape with these sizes; what is carried into the next step has one size in both, and what
  /// was there before and cannot move keeps its own.
  void put_into(StepShape& shape) const;
  /// As large as `other` everywhere, and by `more` times the difference larger where that is
  /// larger. Of the same form and allocations.
  void widen(const StepSizes& other, double more = 0);
};

/// Most bytes that are alive at once in a step, without what it never uses; with sizes other than
/// those of the shape.
[[nodiscard]] Bytes bytes_needed(const StepShape& shape);
[[nodiscard]] Bytes bytes_needed(const StepShape& shape, const StepSizes& sizes);

/// How much longer each operator takes with the sizes of `shape` than it took with `seen`: by the
/// bytes of the blocks that it uses.
[[nodiscard]] std::vector<double> longer_by(const StepShape& shape, const StepSizes& seen);

}  // namespace lms
