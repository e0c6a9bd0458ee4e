#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>

#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// A kernel that does what run_operator() does around `kernel`, and takes the operator's arguments
/// as they are; for the operators that make up most of a training step. Nothing for all others, and
/// for those that are not treated as most are.
std::optional<c10::KernelFunction> typed_kernel(const OpInfo& info,
                                                const c10::SafeKernelFunction& kernel,
                                                const c10::OperatorHandle& op);

/// Looks at operators that have been defined, or whose definition has been taken back, since
/// (op_hook.cpp). Whether there were any.
bool notice_new_operators();

}  // namespace lms::torch
