#include "adapters/torch/operators/convolution_results.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace lms::torch {
namespace {

using Sizes = std::vector<std::int64_t>;

/// One number for each of `dimensions`; a single one stands for all.
std::optional<Sizes> per_dimension(const c10::IValue& value, std::size_t dimensions) {
  if (!value.isIntList()) return std::nullopt;  // symbolic
  Sizes sizes = value.toIntVector();
  if (sizes.size() == 1) sizes.resize(dimensions, sizes[0]);
  if (sizes.size() != dimensions) return std::nullopt;
  return sizes;
}

Bytes bytes_like(const at::Tensor& like, std::int64_t elements) {
  return elements * static_cast<Bytes>(like.element_size());
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
std::vector<Bytes> results_forward(std::span<const c10::IValue> arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  if (input.dim() < 3 || weight.dim() != input.dim()) return {};
  const auto dimensions = static_cast<std::size_t>(input.dim() - 2);
  const auto stride = per_dimension(arguments[3], dimensions);
  const auto padding = per_dimension(arguments[4], dimensions);
  const auto dilation = per_dimension(arguments[5], dimensions);
  const auto more = per_dimension(arguments[7], dimensions);
  if (!stride || !padding || !dilation || !more) return {};
  const bool transposed = arguments[6].toBool();
  const std::int64_t channels = transposed ? weight.size(1) * arguments[8].toInt() : weight.size(0);
  std::int64_t elements = input.size(0) * channels;
  for (std::size_t i = 0; i < dimensions; ++i) {
    const auto at = static_cast<std::int64_t>(i) + 2;
    const std::int64_t reach = (*dilation)[i] * (weight.size(at) - 1);
    const std::int64_t free = 2 * (*padding)[i] - reach;
    if ((*stride)[i] <= 0 || (!transposed && input.size(at) + free <= 0)) return {};
    const std::int64_t size = transposed
                                  ? (input.size(at) - 1) * (*stride)[i] - free + (*more)[i] + 1
                                  : (input.size(at) + free - 1) / (*stride)[i] + 1;
    if (size <= 0) return {};
    elements *= size;
  }
  return {bytes_like(input, elements)};
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
//                      transposed, output_padding, groups, output_mask)
std::vector<Bytes> results_backward(std::span<const c10::IValue> arguments) {
  const at::Tensor& gradient = arguments[0].toTensor();
  const at::Tensor& input = arguments[1].toTensor();
  const at::Tensor& weight = arguments[2].toTensor();
  const c10::List<bool> wanted = arguments[10].toBoolList();
  if (wanted.size() != 3 || gradient.dim() < 3) return {};
  std::vector<Bytes> bytes;
  if (wanted[0]) bytes.push_back(bytes_like(input, input.numel()));
  if (wanted[1]) bytes.push_back(bytes_like(weight, weight.numel()));
  if (wanted[2]) bytes.push_back(bytes_like(gradient, gradient.size(1)));
  return bytes;
}

}  // namespace

std::vector<Bytes> convolution_results(const c10::OperatorHandle& op,
                                       std::span<const c10::IValue> arguments) {
  const std::string& name = op.operator_name().name;
  if (name == "aten::convolution") return results_forward(arguments);
  if (name == "aten::convolution_backward") return results_backward(arguments);
  return {};
}

}  // namespace lms::torch
