#include "adapters/torch/operators/repeatable.h"

#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>

#include "adapters/torch/operators/op_info.h"

namespace lms::torch {
namespace {

/// Kernels that add up in a fixed order, on CPU and CUDA: without atomic additions. Base names,
/// without the underscore of in-place variants. The stress mode that drops everything runs all of
/// them over PyTorch's own samples.
const std::unordered_set<std::string_view>& same_again() {
  static const std::unordered_set<std::string_view> names{
      // Convolutions and products of matrices.
      "convolution", "_convolution", "cudnn_convolution", "cudnn_convolution_transpose",
      "cudnn_convolution_relu", "cudnn_convolution_add_relu", "mkldnn_convolution",
      "_conv_depthwise2d", "conv_depthwise3d", "slow_conv3d_forward", "_slow_conv2d_forward",
      "slow_conv_transpose2d", "slow_conv_transpose3d", "slow_conv_dilated2d",
      "slow_conv_dilated3d", "mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot",
      "linear", "mkldnn_linear", "_addmm_activation",
      // Normalisation and reductions.
      "native_layer_norm", "native_group_norm", "_fused_rms_norm", "batch_norm_elemt",
      "batch_norm_stats", "_softmax", "_log_softmax", "softmax", "log_softmax", "sum", "mean",
      "amax", "amin", "max", "min", "var_mean", "std_mean", "var", "std", "logsumexp",
      "linalg_vector_norm", "norm",
      // Moving, casting, and joining.
      "_to_copy", "clone", "cat", "stack", "repeat", "constant_pad_nd", "reflection_pad1d",
      "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
      "replication_pad3d", "roll", "flip", "tril", "triu", "index_select", "gather", "index",
      "embedding", "take", "pixel_shuffle", "pixel_unshuffle", "im2col", "contiguous",
      "_reshape_copy", "_unsafe_index",
      // Pooling and interpolation.
      "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d",
      "adaptive_max_pool2d", "adaptive_max_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
      "mkldnn_max_pool2d", "mkldnn_max_pool3d", "upsample_nearest1d", "upsample_nearest2d",
      "upsample_nearest3d", "_upsample_nearest_exact2d", "upsample_linear1d", "upsample_bilinear2d",
      "upsample_trilinear3d", "upsample_bicubic2d",
      // Element by element, but without PyTorch's tag.
      "glu", "log_sigmoid_forward", "where", "masked_fill", "threshold", "hardtanh", "leaky_relu",
      "relu", "silu", "gelu", "softplus", "elu", "mish", "hardswish", "hardsigmoid"};
  return names;
}

/// They draw numbers from a generator of the device's, in an order that its state decides.
const std::unordered_set<std::string_view>& same_with_same_numbers() {
  static const std::unordered_set<std::string_view> names{
      "native_dropout", "_fused_dropout", "bernoulli", "normal", "poisson",
      // In place.
      "bernoulli_", "uniform_", "normal_", "log_normal_", "exponential_", "geometric_", "cauchy_",
      "random_"};
  return names;
}

/// Random only in their dropout.
bool is_attention(std::string_view name) {
  return name == "_scaled_dot_product_flash_attention" ||
         name == "_scaled_dot_product_efficient_attention" ||
         name == "_scaled_dot_product_cudnn_attention" ||
         name == "_scaled_dot_product_flash_attention_for_cpu";
}

}  // namespace

Rerun rerun_rule(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  constexpr std::string_view kNamespace = "aten::";
  if (!name.starts_with(kNamespace)) return Rerun::kNever;
  name.remove_prefix(kNamespace.size());
  const auto& overload = op.operator_name().overload_name;
  const auto& tags = op.getTags();
  const auto tagged = [&](at::Tag tag) { return std::ranges::find(tags, tag) != tags.end(); };
  if (is_attention(name)) return Rerun::kSame;
  if (tagged(at::Tag::nondeterministic_bitwise) || overload.find("out") != std::string::npos) {
    return Rerun::kNever;
  }
  if (tagged(at::Tag::nondeterministic_seeded)) {
    if (!same_with_same_numbers().contains(name)) return Rerun::kNever;
    return name.ends_with('_') ? Rerun::kOverwrites : Rerun::kSame;
  }
  if (name == "native_batch_norm" || name == "cudnn_batch_norm") return Rerun::kBatchNorm;
  if (name == "copy_" || name == "zero_" || name == "fill_") return Rerun::kOverwrites;
  if (tagged(at::Tag::pointwise)) return Rerun::kSame;
  if (name.ends_with('_')) name.remove_suffix(1);
  return same_again().contains(name) ? Rerun::kSame : Rerun::kNever;
}

bool repeatable_now(const OpInfo& info) {
  if (info.rerun == Rerun::kNever) return false;
  return !at::globalContext().benchmarkCuDNN() || !info.has_algorithms;
}

void ChangedAlgorithms::add(const OpInfo& info) {
  const bool backward = info.name.find("backward") != std::string::npos;
  (backward ? backward_ : forward_) = true;
}

bool ChangedAlgorithms::repeat(const OpInfo& info, bool transposed) const {
  return !info.has_algorithms || !(forward_ || (transposed && backward_));
}

}  // namespace lms::torch
