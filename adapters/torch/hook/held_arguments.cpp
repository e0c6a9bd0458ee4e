#include "adapters/torch/hook/held_arguments.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

/// Of PyTorch's composite kernels: an argument whose memory they read themselves.
struct Reader {
  std::string_view name;
  std::string_view overload;
  std::string_view argument;
};
constexpr auto kReaders = std::to_array<Reader>({
    {"aten::_pad_packed_sequence", "", "batch_sizes"},
    {"aten::ctc_loss", "Tensor", "input_lengths"},
    {"aten::ctc_loss", "Tensor", "target_lengths"},
    {"aten::gru", "data", "batch_sizes"},
    {"aten::lstm", "data", "batch_sizes"},
    {"aten::rnn_relu", "data", "batch_sizes"},
    {"aten::rnn_tanh", "data", "batch_sizes"},
    {"aten::tensor_split", "tensor_indices_or_sections", "tensor_indices_or_sections"},
});

bool reads_itself(const c10::OperatorHandle& op, const c10::Argument& argument) {
  const auto& [name, overload] = op.operator_name();
  return std::ranges::any_of(kReaders, [&](const Reader& reader) {
    return name == reader.name && overload == reader.overload && argument.name() == reader.argument;
  });
}

}  // namespace

std::vector<HoldingKernel> holding_kernels(const c10::OperatorHandle& op) {
  using K = c10::DispatchKey;
  HoldingKernel found;
  const auto& arguments = op.schema().arguments();
  found.argument_count = static_cast<std::uint32_t>(arguments.size());
  for (std::uint32_t i = 0; i < found.argument_count; ++i) {
    if (arguments[i].is_out() || reads_itself(op, arguments[i])) found.held.push_back(i);
  }
  std::vector<HoldingKernel> kernels;
  if (found.held.empty()) return kernels;
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

void run_holding(const HoldingKernel& info, const c10::SafeKernelFunction& kernel,
                 const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  DeviceManager* const manager = active_manager(c10::kCPU);
  Pins pins;
  if (manager != nullptr && (any_deferred() || manager->lineages().any())) {
    StorageUses storages;
    const std::size_t first = stack.size() - info.argument_count;
    for (const std::uint32_t held : info.held) {
      collect_storages(stack[first + held], /*writes=*/false, /*inside=*/false, storages);
    }
    storages.erase(std::remove_if(storages.begin(), storages.end(),
                                  [](const auto& use) { return !use.storage->device().is_cpu(); }),
                   storages.end());
    guarded([&] {
      for (const StorageUse& use : storages) run_deferred(*use.storage, /*writes=*/false);
      if (manager->lineages().any()) pins.add(storages);
    });
  }
  kernel.callBoxed(op, keys, &stack);
}

}  // namespace lms::torch
