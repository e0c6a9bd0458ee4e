#include "adapters/torch/hook/norm_trial.h"

#include <ATen/Functions.h>
#include <c10/core/AutogradState.h>

#include <array>
#include <limits>
#include <optional>
#include <string>

#include "adapters/torch/device_manager.h"
#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/replay/replay.h"

namespace lms::torch {
namespace {

/// With fewer elements two ways of rounding may agree by chance.
constexpr std::uint32_t kLeastElements = 1U << 14U;
constexpr std::size_t kInput = 0, kWeight = 1, kBias = 2, kRunningMean = 3, kRunningVariance = 4,
                      kTraining = 5;

/// Numbers without a pattern, the same in every run; the last channel's, and some others', are
/// those at which kernels differ that agree elsewhere.
at::Tensor trial_weights(std::int64_t channels, std::uint32_t seed, c10::Device device) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::array<float, 6> kSpecial{1e-40F, 0.0F, -0.0F, 3e38F, -kInfinity, -2e-40F};
  constexpr std::int64_t kEvery = 16;
  at::Tensor result = at::empty({channels}, at::TensorOptions().dtype(at::kFloat));
  auto* const numbers = result.mutable_data_ptr<float>();
  std::uint32_t state = seed;
  for (std::int64_t i = 0; i < channels; ++i) {
    state = state * 1664525U + 1013904223U;
    numbers[i] = static_cast<float>(state >> 8U) * 0x1p-23F - 0.7F;
    if (i == channels - 1) {
      numbers[i] = kSpecial[0];
    } else if (i % kEvery == kEvery - 1) {
      numbers[i] = kSpecial[static_cast<std::size_t>(i / kEvery) % kSpecial.size()];
    }
  }
  return result.to(device);
}

const at::Tensor* tensor_at(const c10::Stack& stack, std::size_t base, std::size_t at) {
  const c10::IValue& value = stack[base + at];
  return value.isTensor() && value.toTensor().defined() ? &value.toTensor() : nullptr;
}

/// The chain that would compute the batch norm, without tensors.
std::optional<NormChain> chain_of(const c10::Stack& stack, std::size_t base) {
  const at::Tensor* const input = tensor_at(stack, base, kInput);
  if (input == nullptr || tensor_at(stack, base, kWeight) == nullptr ||
      tensor_at(stack, base, kBias) == nullptr || !stack[base + kTraining].isBool() ||
      !stack[base + kTraining].toBool() || input->scalar_type() != at::kFloat ||
      input->storage_offset() != 0) {
    return std::nullopt;
  }
  NormChain chain;
  chain.type = chain.parameters = at::kFloat;
  if (!chain.set_geometry(input->sizes(), input->strides()) || chain.elements < kLeastElements) {
    return std::nullopt;
  }
  return chain;
}

NormTrial run_trial(DeviceManager& manager, NormChains& chains, const NormChain& chain,
                    const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                    c10::DispatchKeySet keys, c10::Stack arguments) {
  const ReplayScope scope({});
  const c10::AutoGradMode no_grad(false);
  const at::Tensor input = arguments[kInput].toTensor();
  Pins pins;
  const StorageUse use{input.storage().unsafeGetStorageImpl(), /*writes=*/false};
  pins.add({&use, 1});
  const at::Tensor weight = trial_weights(chain.channels, 1, manager.device());
  const at::Tensor bias = trial_weights(chain.channels, 77, manager.device());
  const at::Tensor counts = at::empty({NormChains::kTrialCounts}, input.options().dtype(at::kInt));
  arguments[kWeight] = weight;
  arguments[kBias] = bias;
  arguments[kRunningMean] = arguments[kRunningVariance] = c10::IValue();
  kernel.callBoxed(op, keys, &arguments);
  const at::Tensor result = arguments.at(0).toTensor();
  const at::Tensor mean = arguments.at(1).toTensor();
  const at::Tensor deviation = arguments.at(2).toTensor();
  if (mean.numel() != chain.channels || deviation.numel() != chain.channels ||
      result.strides() != input.strides()) {
    return {.certain = true};
  }
  NormChainMemory memory;
  memory.input = input.const_data_ptr();
  memory.weight = weight.const_data_ptr();
  memory.bias = bias.const_data_ptr();
  memory.mean = mean.const_data_ptr();
  memory.deviation = deviation.const_data_ptr();
  memory.result = result.mutable_data_ptr();
  return chains.examine(chain, memory, counts.mutable_data_ptr());
}

}  // namespace

void examine_norm(DeviceManager& manager, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  const c10::Stack& stack) {
  if (info.name != NormChecks::kOperator) return;
  NormChains* const chains = manager.norm_chains();
  if (chains == nullptr || !chains->available() || !manager.records_here()) return;
  const std::size_t base = stack.size() - info.argument_count;
  const auto chain = chain_of(stack, base);
  if (!chain) return;
  const at::Tensor& input = stack[base + kInput].toTensor();
  const NormChecks::Kind kind = NormChecks::kind_of(input.sizes(), input.strides());
  if (!manager.norm_checks().begin_trial(kind)) return;
  try {
    c10::Stack arguments(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
    const NormTrial trial =
        run_trial(manager, *chains, *chain, kernel, op, keys, std::move(arguments));
    if (trial.certain) manager.norm_checks().end_trial(kind, trial);
  } catch (const std::exception&) {
    // Out of memory: the operator itself will say so, if it is as well.
  }
}

}  // namespace lms::torch
