#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "adapters/torch/hook/unboxed_call.h"
#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// Runs one hooked operator: pins what it reads and writes, calls its kernel, and lets the pins go
/// when the thread's outermost operator ends. Here every operator enters LMS.
///
/// `stack` holds the arguments, and afterwards the results, as PyTorch's boxed calls have it.
void run_operator(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack);
/// Likewise of an ordinary operator that takes no stream.
void run_operator(UnboxedCall& call);

}  // namespace lms::torch
