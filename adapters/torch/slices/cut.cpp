#include "adapters/torch/slices/cut.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "adapters/torch/version.h"

namespace lms::torch {

std::int64_t product(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

at::Tensor plain_tensor(const c10::IValue& value) {
  if (!value.isTensor()) return {};
  const at::Tensor& tensor = value.toTensor();
  const bool plain = tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
                     !tensor.is_conj() && !tensor.is_neg() && !tensor.is_quantized() &&
                     !tensor._is_zerotensor() && !LMS_HAS_NAMES(tensor);
  return plain ? tensor : at::Tensor();
}

namespace {

/// The elements, of which those of a dimension without steps are one, fill a stretch of memory.
bool dense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t expected = 1;
  for (const std::size_t d : order) {
    if (sizes[d] == 1 || strides[d] == 0) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

}  // namespace

std::optional<CutOperand> rows_of(const at::Tensor& tensor, std::size_t leading,
                                  std::size_t argument) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  if (leading > sizes.size() || tensor.numel() == 0) return std::nullopt;
  CutOperand operand{.argument = argument, .tensor = tensor};
  operand.sizes.assign(sizes.begin() + static_cast<std::ptrdiff_t>(leading), sizes.end());
  operand.strides.assign(strides.begin() + static_cast<std::ptrdiff_t>(leading), strides.end());
  for (std::size_t d = 0; d < operand.sizes.size(); ++d) {
    if (operand.strides[d] != 0) operand.row *= operand.sizes[d];
  }
  if (!dense(operand.sizes, operand.strides)) return std::nullopt;
  std::int64_t expected = operand.row;
  for (std::size_t d = leading; d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return std::nullopt;
    expected *= sizes[d];
  }
  return operand;
}

namespace {

struct RowRule {
  std::string_view name;
  CutRule rule;
};
constexpr std::array kRowRules = std::to_array<RowRule>({
    {"aten::_softmax", cut_softmax},
    {"aten::_log_softmax", cut_softmax},
    {"aten::_softmax_backward_data", cut_softmax_backward},
    {"aten::_log_softmax_backward_data", cut_softmax_backward},
    {"aten::native_layer_norm", cut_layer_norm},
    {"aten::max_pool2d_with_indices", cut_planes},
    {"aten::max_pool2d_with_indices_backward", cut_planes},
    {"aten::max_pool3d_with_indices", cut_planes},
    {"aten::max_pool3d_with_indices_backward", cut_planes},
    {"aten::avg_pool2d", cut_planes},
    {"aten::avg_pool2d_backward", cut_planes},
    {"aten::avg_pool3d", cut_planes},
    {"aten::avg_pool3d_backward", cut_planes},
    {"aten::embedding", cut_embedding},
    {"aten::index_select", cut_index_select},
    {"aten::gather", cut_gather},
    {"aten::index_add_", cut_index_add},
    {"aten::scatter_add_", cut_scatter_add},
    {"aten::nll_loss_backward", cut_nll_backward},
    {"aten::cat", cut_cat},
});
// Every element of the result is of the elements at its place, and of nothing else.
constexpr std::array kPointwiseNames = std::to_array<std::string_view>({
    "aten::_to_copy",
    "aten::abs",
    "aten::add.Tensor",
    "aten::add_.Tensor",
    "aten::addcdiv",
    "aten::addcdiv_",
    "aten::addcmul",
    "aten::addcmul_",
    "aten::clamp",
    "aten::clamp_",
    "aten::clamp_max",
    "aten::clamp_max_",
    "aten::clamp_min",
    "aten::clamp_min_",
    "aten::clone",
    "aten::copy_",
    "aten::cos",
    "aten::div.Tensor",
    "aten::div_.Tensor",
    "aten::elu",
    "aten::elu_",
    "aten::elu_backward",
    "aten::eq.Scalar",
    "aten::eq.Tensor",
    "aten::erf",
    "aten::exp",
    "aten::exp_",
    "aten::fill_.Scalar",
    "aten::ge.Scalar",
    "aten::ge.Tensor",
    "aten::gelu",
    "aten::gelu_backward",
    "aten::gt.Scalar",
    "aten::gt.Tensor",
    "aten::hardsigmoid",
    "aten::hardsigmoid_backward",
    "aten::hardswish",
    "aten::hardswish_backward",
    "aten::hardtanh",
    "aten::hardtanh_",
    "aten::hardtanh_backward",
    "aten::le.Scalar",
    "aten::le.Tensor",
    "aten::leaky_relu",
    "aten::leaky_relu_",
    "aten::leaky_relu_backward",
    "aten::lerp.Scalar",
    "aten::lerp_.Scalar",
    "aten::log",
    "aten::logical_not",
    "aten::lt.Scalar",
    "aten::lt.Tensor",
    "aten::masked_fill.Scalar",
    "aten::masked_fill_.Scalar",
    "aten::maximum",
    "aten::minimum",
    "aten::mish",
    "aten::mish_backward",
    "aten::mul.Tensor",
    "aten::mul_.Tensor",
    "aten::native_dropout_backward",
    "aten::ne.Scalar",
    "aten::ne.Tensor",
    "aten::neg",
    "aten::neg_",
    "aten::pow.Tensor_Scalar",
    "aten::reciprocal",
    "aten::relu",
    "aten::relu_",
    "aten::rsqrt",
    "aten::sigmoid",
    "aten::sigmoid_",
    "aten::sigmoid_backward",
    "aten::silu",
    "aten::silu_",
    "aten::silu_backward",
    "aten::sin",
    "aten::softplus",
    "aten::softplus_backward",
    "aten::sqrt",
    "aten::sub.Tensor",
    "aten::sub_.Tensor",
    "aten::tanh",
    "aten::tanh_",
    "aten::tanh_backward",
    "aten::threshold",
    "aten::threshold_backward",
    "aten::where.self",
    "aten::zero_",
});

/// Optimizers' updates, and what goes element by element over lists: that is what there is in
/// place, too.
bool goes_over_lists(std::string_view name) {
  static constexpr std::array kFused = std::to_array<std::string_view>(
      {"aten::_fused_adagrad_", "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_"});
  const std::size_t dot = name.find('.');
  const std::string base(name.substr(0, dot));
  const std::string overload(dot == std::string_view::npos ? "" : name.substr(dot + 1));
  if (!base.starts_with("aten::_foreach_")) return std::ranges::binary_search(kFused, base);
  if (base.ends_with('_')) return true;
  return c10::Dispatcher::singleton().findSchema({base + "_", overload}).has_value();
}

}  // namespace

CutRule cut_rule(std::string_view name) {
  if (goes_over_lists(name)) return cut_lists;
  const auto found = std::ranges::find(kRowRules, name, &RowRule::name);
  if (found != kRowRules.end()) return found->rule;
  return std::ranges::binary_search(kPointwiseNames, name) ? cut_pointwise : nullptr;
}

bool looks_up(CutRule rule) {
  return rule == cut_embedding || rule == cut_index_select || rule == cut_gather;
}

}  // namespace lms::torch
