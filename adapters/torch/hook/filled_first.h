#pragma once

#include <ATen/core/stack.h>

#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// Under deterministic algorithms PyTorch fills what it makes for others to fill, by an operator:
/// `at::empty` calls `fill_` with NaN, or the largest number. Whoever has asked for it may have its
/// address, and writes there unseen; so that is no use of it: it is as new as without. False for
/// all other operators, without a look at their arguments.
bool may_fill_new_memory(const OpInfo& info);
/// Whether such a call, to be run past LMS then, is one.
bool fills_new_memory(const c10::Stack& stack);

}  // namespace lms::torch
