#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// The rule of an operator that is described, with its rule to be cut. All that they use may lie
/// there: kernels that are known to give the same bits on memory of the host, and do nothing there
/// but read and write. Only what they read: PyTorch's others, but solvers and their like.
InPlaceRule in_place_rule(const c10::OperatorHandle& op, const OpInfo& info);

}  // namespace lms::torch
