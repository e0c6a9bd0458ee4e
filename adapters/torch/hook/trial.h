#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace lms::torch {

class DeviceManager;
struct OpInfo;

/// An operator is about to run, with the last on the stack for arguments. If it has a rule that
/// must try its kernel out first, and nothing is known of its kind: has that done (FusedRule). May
/// take memory for one more result, and wait for the device. Where it fails, nothing becomes known.
void try_out(DeviceManager& manager, const OpInfo& info, const c10::SafeKernelFunction& kernel,
             const c10::OperatorHandle& op, c10::DispatchKeySet keys, const c10::Stack& stack);

}  // namespace lms::torch
