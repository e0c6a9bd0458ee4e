#include "adapters/torch/hook/out_arguments.h"

#include <algorithm>

#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

std::vector<OutKernel> out_kernels(const c10::OperatorHandle& op) {
  using K = c10::DispatchKey;
  OutKernel found;
  const auto& arguments = op.schema().arguments();
  found.argument_count = static_cast<std::uint32_t>(arguments.size());
  for (std::uint32_t i = 0; i < found.argument_count; ++i) {
    if (arguments[i].is_out()) found.outputs.push_back(i);
  }
  std::vector<OutKernel> kernels;
  if (found.outputs.empty()) return kernels;
  const auto add = [&](K at, K computed) {
    if (!op.hasComputedKernelForDispatchKey(computed)) return;
    found.at = at;
    found.computed = computed;
    kernels.push_back(found);
  };
  const bool composite = op.hasKernelForDispatchKey(K::CompositeImplicitAutograd) &&
                         !op.hasKernelForDispatchKey(K::CPU) &&
                         !op.hasKernelForDispatchKey(K::CompositeExplicitAutograd) &&
                         !op.hasKernelForDispatchKey(K::CompositeExplicitAutogradNonFunctional);
  if (composite) add(K::CompositeImplicitAutograd, K::CPU);
  for (const K lazy : {K::Conjugate, K::Negative}) {
    // A kernel of the operator's own does what it does through operators.
    if (!op.hasKernelForDispatchKey(lazy)) add(lazy, lazy);
  }
  return kernels;
}

void run_with_outputs(const OutKernel& info, const c10::SafeKernelFunction& kernel,
                      const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  DeviceManager* const manager = active_manager(c10::kCPU);
  Pins pins;
  if (manager != nullptr && manager->lineages().any()) {
    StorageUses storages;
    const std::size_t first = stack.size() - info.argument_count;
    for (const std::uint32_t output : info.outputs) {
      collect_storages(stack[first + output], /*writes=*/false, /*inside=*/false, storages);
    }
    storages.erase(std::remove_if(storages.begin(), storages.end(),
                                  [](const auto& use) { return !use.storage->device().is_cpu(); }),
                   storages.end());
    pins.add(storages);
  }
  kernel.callBoxed(op, keys, &stack);
}

}  // namespace lms::torch
