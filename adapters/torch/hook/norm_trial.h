#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace lms::torch {

class DeviceManager;
struct OpInfo;

/// A batch norm is about to run, with the last on the stack for arguments. If it is cuDNN's, and
/// nothing is known of its kind: runs the kernel on the same input with weights that tell one way
/// of rounding from another, and compares. Takes memory for one more result and waits for the
/// device. Where that fails, nothing becomes known.
void examine_norm(DeviceManager& manager, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, const c10::Stack& stack);

}  // namespace lms::torch
