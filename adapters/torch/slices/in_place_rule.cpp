#include "adapters/torch/slices/in_place_rule.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace lms::torch {
namespace {

constexpr std::array kReadOften = std::to_array<std::string_view>({
    "aten::_conv_depthwise2d",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::addmm",
    "aten::addmv",
    "aten::baddbmm",
    "aten::bmm",
    "aten::conv_depthwise3d",
    "aten::convolution",
    "aten::convolution_backward",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
    "aten::mm",
    "aten::mv",
});

// Beside those with a rule to be cut, and those that are tagged as pointwise.
constexpr std::array kReadOnce = std::to_array<std::string_view>({
    "aten::_adaptive_avg_pool2d",
    "aten::_batch_norm_with_update",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit.no_stats",
    "aten::amax",
    "aten::amin",
    "aten::argmax",
    "aten::argmin",
    "aten::batch_norm_backward",
    "aten::cudnn_batch_norm",
    "aten::cudnn_batch_norm_backward",
    "aten::flip",
    "aten::gather",
    "aten::glu",
    "aten::glu_backward",
    "aten::index.Tensor",
    "aten::index_select",
    "aten::linalg_vector_norm",
    "aten::logsumexp",
    "aten::max",
    "aten::max.dim",
    "aten::mean",
    "aten::mean.dim",
    "aten::min",
    "aten::min.dim",
    "aten::mse_loss",
    "aten::mse_loss_backward",
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
    "aten::native_dropout",
    "aten::native_group_norm",
    "aten::native_group_norm_backward",
    "aten::native_layer_norm_backward",
    "aten::nll_loss2d_backward",
    "aten::nll_loss2d_forward",
    "aten::nll_loss_forward",
    "aten::norm.ScalarOpt_dim",
    "aten::prod",
    "aten::prod.dim_int",
    "aten::repeat",
    "aten::roll",
    "aten::std.correction",
    "aten::sum",
    "aten::sum.dim_IntList",
    "aten::tril",
    "aten::triu",
    "aten::upsample_bilinear2d",
    "aten::upsample_nearest2d",
    "aten::upsample_nearest3d",
    "aten::upsample_trilinear3d",
    "aten::var.correction",
    "aten::var_mean.correction",
});

// They add to their results with atomic operations, which the host's memory is not made for.
constexpr std::array kAtomic = std::to_array<std::string_view>({
    "aten::index_add_",
    "aten::max_pool3d_with_indices_backward",
    "aten::scatter_add_",
});

// Not even operands: libraries of solvers may ask where memory lies, kernels of recurrent layers
// write what they call an input, other layouts keep more than a storage, and a copy of one element
// says in which direction it goes.
constexpr std::array kNothingBelow = std::to_array<std::string_view>({
    "::_lu_with",
    "::geqrf",
    "::lu_",
    "::orgqr",
    "::ormqr",
    "_cslt",
    "_local_scalar",
    "_pin_memory",
    "_rnn",
    "cholesky",
    "ctc_loss",
    "linalg_",
    "nested",
    "quantiz",
    "sparse",
    "triangular_solve",
});

bool lies_on_the_device(std::string_view name) {
  return std::ranges::any_of(kNothingBelow, [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
}

}  // namespace

InPlaceRule in_place_rule(const c10::OperatorHandle& op, const OpInfo& info) {
  if (info.kind != OpKind::kPlain || info.has_outputs || info.takes_stream || !info.ends_alone) {
    return InPlaceRule::kNever;
  }
  const std::string_view name = info.name;
  if (!name.starts_with("aten::")) return InPlaceRule::kNever;
  if (std::ranges::binary_search(kAtomic, name)) return InPlaceRule::kOperands;
  if (std::ranges::binary_search(kReadOften, name)) return InPlaceRule::kReadsOften;
  const auto& tags = op.getTags();
  const bool pointwise = std::ranges::find(tags, at::Tag::pointwise) != tags.end() && !info.random;
  const bool once = pointwise || info.cut != nullptr || std::ranges::binary_search(kReadOnce, name);
  if (once) return InPlaceRule::kReadsOnce;
  // Of what a factory is given it reads no byte.
  return !info.completes_results || lies_on_the_device(name) ? InPlaceRule::kNever
                                                             : InPlaceRule::kOperands;
}

}  // namespace lms::torch
