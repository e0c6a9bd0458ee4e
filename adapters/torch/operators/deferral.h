#pragma once

#include <cstdint>
#include <string_view>

namespace lms::torch {

/// Whether an operator's calls may wait until somebody looks at what they write (deferred/).
enum class Deferral : std::uint8_t {
  kNever,
  kElements,  ///< computes each element of its first argument in place, and looks at nothing else
  kLists,     ///< likewise, position by position of its lists
  kMakes,     ///< likewise, into new tensors
  kUpdates,   ///< an optimizer's whole update, position by position
  kRows,      ///< makes one tensor, of which each row is of rows of what it reads (slices/cut.h)
};

/// The rule for an operator, "aten::mul_.Tensor". What is not listed never waits: it may check its
/// arguments in ways of its own, draw random numbers, or allocate.
Deferral deferral_rule(std::string_view name);

}  // namespace lms::torch
