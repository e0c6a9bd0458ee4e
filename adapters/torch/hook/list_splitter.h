#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/FunctionRef.h>

#include "adapters/torch/hook/unboxed_call.h"
#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// Runs an operator over lists of tensors (_foreach_*, _fused_adam_, …) as several calls over
/// parts of its lists, where the whole would take up too much of the device: it needs all of its
/// lists on the device at once, which for an optimizer is the whole model four times over.
///
/// The results are those of one call, to the last bit, because the operators treat each position
/// of their lists alone. Where a kernel chooses its path by looking at the whole list (mixed
/// dtypes or layouts), it is left whole. `run` runs a part. False: nothing was done, the caller
/// runs it whole.
bool run_in_chunks(RunOperator run, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                   const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack);
/// Likewise of lists that are not in boxes: a part is nothing but a shorter view of them.
bool run_in_chunks(UnboxedCall& call, c10::function_ref<void(UnboxedCall&)> run);

/// True: run_in_chunks() would run it in parts.
bool would_be_split(const OpInfo& info, const c10::Stack& stack);
bool would_be_split(const UnboxedCall& call);

}  // namespace lms::torch
