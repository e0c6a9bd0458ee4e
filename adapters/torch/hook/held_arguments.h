#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

namespace lms::torch {

/// A kernel above the backend that may give the tensors of `out=` more memory itself, past the
/// dispatcher, by copying what they had; or that reads lengths or indices itself. On the CPU it
/// would read what has been dropped, or not been made.
struct HoldingKernel {
  c10::DispatchKey at;              ///< where it is registered
  c10::DispatchKey computed;        ///< a key at which the dispatcher finds it
  std::vector<std::uint32_t> held;  ///< positions of such arguments
  std::uint32_t argument_count = 0;
};

/// Those of an operator: its composite kernel, and PyTorch's fallbacks for lazy views.
std::vector<HoldingKernel> holding_kernels(const c10::OperatorHandle& op);

/// Runs the kernel with these arguments held.
void run_holding(const HoldingKernel& info, const c10::SafeKernelFunction& kernel,
                 const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack);

}  // namespace lms::torch
