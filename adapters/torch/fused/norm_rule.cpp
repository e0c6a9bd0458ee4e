#include <ATen/Functions.h>

#include <array>
#include <limits>
#include <optional>

#include "adapters/torch/fused/norm_check.h"
#include "adapters/torch/fused/norm_kernels.h"
#include "adapters/torch/fused/prices.h"
#include "adapters/torch/fused/rule.h"

namespace lms::torch {
namespace {

enum NormRole : std::uint8_t { kPyTorchNorm, kCudnnNorm, kNormAdd, kNormRelu, kNormLeakyRelu };
constexpr std::array<std::string_view, 5> kNormOperators{"aten::native_batch_norm",
                                                         NormChecks::kOperator, "aten::add_.Tensor",
                                                         "aten::relu_", "aten::leaky_relu_"};
/// Places in the chain: see ReplayCost::place.
enum NormPlace : std::uint8_t { kNormPlace = 1, kAddPlace, kReluPlace };
/// A batch norm's mean and inverse deviation.
constexpr std::size_t kStatistics = 2;

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

const at::Tensor* tensor_in(const c10::Stack& stack, std::size_t base, std::size_t at) {
  const c10::IValue& value = stack[base + at];
  return value.isTensor() && value.toTensor().defined() ? &value.toTensor() : nullptr;
}

/// The chain that would compute the batch norm, without tensors.
std::optional<NormChain> chain_of(const c10::Stack& stack, std::size_t base) {
  const at::Tensor* const input = tensor_in(stack, base, kInput);
  if (input == nullptr || tensor_in(stack, base, kWeight) == nullptr ||
      tensor_in(stack, base, kBias) == nullptr || !stack[base + kTraining].isBool() ||
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

/// Chains that begin with a batch norm.
class NormRule final : public FusedRule {
 public:
  NormRule(c10::Device device, Kernels& kernels) : device_(device), kernels_(kernels) {}

  [[nodiscard]] ReplayCost price(std::uint8_t role, const OpInfo& info,
                                 const c10::Stack& stack) const override {
    if (role == kPyTorchNorm) return {.alone = prices::kNormFromStatistics, .place = kNormPlace};
    if (!kernels_.available()) return {};
    if (role == kNormAdd) {
      return {.joined = prices::kNormOtherOperand, .place = kAddPlace, .operands = 1};
    }
    if (role != kCudnnNorm) return {.joined = prices::kNormRelu, .place = kReluPlace};
    const at::Tensor* const input = tensor_in(stack, stack.size() - info.argument_count, kInput);
    const float ms = input != nullptr ? checks_.ms_of(*input) : -1;
    return ms < 0 ? ReplayCost{} : ReplayCost{.alone_ms = ms, .place = kNormPlace};
  }

  [[nodiscard]] std::optional<FusedRun> find(std::span<const std::shared_ptr<const Call>> calls,
                                             const MakerOf& /*maker_of*/) override {
    if (!kernels_.available()) return std::nullopt;
    const auto found = find_norm_chain(calls, device_);
    if (!found) return std::nullopt;
    FusedRun run{.calls = found->calls, .bytes = found->bytes()};
    run.reads = {found->input, found->weight,    found->bias,
                 found->mean,  found->deviation, found->other};
    run.prepare = [this, chain = *found] { return kernels_.prepare(chain); };
    run.launch = [this, chain = *found](std::span<const void* const> reads, void* result) {
      return kernels_.launch(chain,
                             {reads[0], reads[1], reads[2], reads[3], reads[4], reads[5], result});
    };
    return run;
  }

  [[nodiscard]] std::int64_t failures() const noexcept override {
    return kernels_.failed() ? 1 : 0;
  }

  [[nodiscard]] std::size_t saves(std::uint8_t role) const override {
    return role == kPyTorchNorm || role == kCudnnNorm ? kStatistics : 0;
  }
  [[nodiscard]] bool settle(Call& call) const override {
    call.rounding = checks_.rounding_of(call);
    return call.rounding != Rounding::kOther;
  }
  [[nodiscard]] at::Tensor from_saved(const Call& call, const c10::Stack& arguments,
                                      std::span<const at::Tensor> saved) const override {
    if (call.rounding != Rounding::kPlain) return {};
    // Input, weight and bias are the first three arguments of every batch norm, epsilon the last.
    const auto maybe = [&](std::size_t at) -> std::optional<at::Tensor> {
      const at::Tensor* const given = tensor_in(arguments, 0, at);
      return given != nullptr ? std::optional(*given) : std::nullopt;
    };
    const double epsilon = arguments.back().isDouble() ? arguments.back().toDouble() : 0;
    return at::batch_norm_elemt(arguments[kInput].toTensor(), maybe(kWeight), maybe(kBias),
                                saved[0], saved[1], epsilon);
  }

  [[nodiscard]] bool tries_out(std::uint8_t role) const override {
    return role == kCudnnNorm && kernels_.available();
  }
  [[nodiscard]] bool wants_trial(const OpInfo& info, const c10::Stack& stack) override {
    const std::size_t base = stack.size() - info.argument_count;
    return chain_of(stack, base) && checks_.begin_trial(kind_of(stack[base + kInput].toTensor()));
  }
  void try_out(c10::Stack arguments, const RunOperator& run, const Hold& hold) override {
    const at::Tensor input = arguments[kInput].toTensor();
    const auto chain = chain_of(arguments, 0);
    hold(input);
    const NormTrial trial = examine(*chain, input, std::move(arguments), run);
    if (trial.certain) checks_.end_trial(kind_of(input), trial);
  }

 private:
  static NormChecks::Kind kind_of(const at::Tensor& input) {
    return NormChecks::kind_of(input.sizes(), input.strides());
  }

  /// Runs the operator with weights that tell one way of rounding from another, and compares.
  NormTrial examine(const NormChain& chain, const at::Tensor& input, c10::Stack arguments,
                    const RunOperator& run) {
    const at::Tensor weight = trial_weights(chain.channels, 1, device_);
    const at::Tensor bias = trial_weights(chain.channels, 77, device_);
    const at::Tensor counts =
        at::empty({NormKernels::kTrialCounts}, input.options().dtype(at::kInt));
    arguments[kWeight] = weight;
    arguments[kBias] = bias;
    arguments[kRunningMean] = arguments[kRunningVariance] = c10::IValue();
    run(arguments);
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
    return kernels_.examine(chain, memory, counts.mutable_data_ptr());
  }

  const c10::Device device_;
  NormKernels kernels_;
  NormChecks checks_;
};

std::unique_ptr<FusedRule> make_norm_rule(c10::Device device, Kernels& kernels) {
  return std::make_unique<NormRule>(device, kernels);
}

}  // namespace

extern const FusedKind kNormKind;
const FusedKind kNormKind{kNormOperators, &make_norm_rule};

}  // namespace lms::torch
