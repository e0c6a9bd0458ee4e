#include "adapters/torch/hook/trial.h"

#include <ATen/core/grad_mode.h>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/fused/rule.h"
#include "adapters/torch/replay/replay.h"

namespace lms::torch {

void try_out(DeviceManager& manager, const OpInfo& info, const c10::SafeKernelFunction& kernel,
             const c10::OperatorHandle& op, c10::DispatchKeySet keys, const c10::Stack& stack) {
  FusedRule* const rule = manager.fused_rule(info);
  if (rule == nullptr || !rule->tries_out(info.fused.role) || !manager.records_here() ||
      !rule->wants_trial(info, stack)) {
    return;
  }
  try {
    const ReplayScope scope({});
    const c10::AutoGradMode no_grad(false);
    Pins pins;
    const auto hold = [&](const at::Tensor& tensor) {
      const StorageUse use{tensor.storage().unsafeGetStorageImpl(), /*writes=*/false};
      pins.add({&use, 1});
    };
    rule->try_out(
        {stack.end() - info.argument_count, stack.end()},
        [&](c10::Stack& arguments) { kernel.callBoxed(op, keys, &arguments); }, hold);
  } catch (const std::exception&) {
    // Out of memory: the operator itself will say so, if it is as well.
  }
}

}  // namespace lms::torch
