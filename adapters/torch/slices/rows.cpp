// Operators whose rows, planes, or samples are computed each on its own.

#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>

#include "adapters/torch/slices/cut.h"

namespace lms::torch {
namespace {

/// The argument as contiguous rows of `leading` dimensions.
std::optional<CutOperand> contiguous_rows(const CallToCut& call, std::size_t position,
                                          std::size_t leading) {
  const at::Tensor tensor = plain_tensor(call.arguments[position]);
  if (!tensor.defined() || !tensor.is_contiguous()) return std::nullopt;
  return rows_of(tensor, leading, position);
}

std::vector<std::int64_t> first_sizes(const at::Tensor& tensor, std::size_t count) {
  return tensor.sizes().slice(0, count).vec();
}

/// `tensors`: positions of tensors of one shape, which are cut in the dimensions before argument
/// `dim`.
std::vector<Cut> before_dimension(const CallToCut& call, std::span<const std::size_t> tensors,
                                  std::size_t dim) {
  const at::Tensor first = plain_tensor(call.arguments[tensors.front()]);
  if (!first.defined() || first.dim() == 0) return {};
  const auto leading =
      static_cast<std::size_t>(at::maybe_wrap_dim(call.arguments[dim].toInt(), first.dim()));
  if (leading == 0) return {};
  // On the CPU threads share out what lies behind the dimension, too, and at the end of a share
  // other code may compute.
  const bool shared = leading + 1 < static_cast<std::size_t>(first.dim());
  if (shared && first.device().is_cpu() && at::get_num_threads() > 1) return {};
  Cut cut;
  cut.rows = product(first.sizes().slice(0, leading));
  for (const std::size_t position : tensors) {
    auto operand = contiguous_rows(call, position, leading);
    if (!operand || operand->tensor.sizes() != first.sizes() ||
        operand->tensor.device() != first.device()) {
      return {};
    }
    cut.operands.push_back(std::move(*operand));
  }
  cut.results.push_back({.leading = first_sizes(first, leading)});
  cut.replaced.emplace_back(dim, std::int64_t{1});
  return {std::move(cut)};
}

}  // namespace

std::vector<Cut> cut_softmax(const CallToCut& call) {
  constexpr std::array<std::size_t, 1> kTensors = {0};
  return before_dimension(call, kTensors, 1);
}

std::vector<Cut> cut_softmax_backward(const CallToCut& call) {
  constexpr std::array<std::size_t, 2> kTensors = {0, 1};
  return before_dimension(call, kTensors, 2);
}

std::vector<Cut> cut_layer_norm(const CallToCut& call) {
  const at::Tensor input = plain_tensor(call.arguments[0]);
  if (!input.defined()) return {};
  const auto normalized = call.arguments[1].toIntVector().size();
  const auto dimensions = static_cast<std::size_t>(input.dim());
  if (normalized == 0 || normalized >= dimensions) return {};
  const std::size_t leading = dimensions - normalized;
  auto operand = contiguous_rows(call, 0, leading);
  if (!operand) return {};
  Cut cut;
  cut.rows = product(input.sizes().slice(0, leading));
  cut.operands.push_back(std::move(*operand));
  cut.results.assign(3, {.leading = first_sizes(input, leading)});
  return {std::move(cut)};
}

std::vector<Cut> cut_planes(const CallToCut& call) {
  const bool volumes = call.name.find("3d") != std::string_view::npos;
  const std::size_t inner = volumes ? 3 : 2;
  Cut cut;
  std::vector<std::int64_t> leading;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (!call.arguments[i].isTensor()) continue;
    const at::Tensor tensor = plain_tensor(call.arguments[i]);
    if (!tensor.defined() || static_cast<std::size_t>(tensor.dim()) <= inner) return {};
    const std::size_t before = static_cast<std::size_t>(tensor.dim()) - inner;
    auto operand = contiguous_rows(call, i, before);
    // Where one channel is as good as the last, kernels may take it for the other layout.
    if (!operand || tensor.suggest_memory_format() != at::MemoryFormat::Contiguous) return {};
    // A sample of one channel each.
    operand->sizes.insert(operand->sizes.begin(), 1);
    operand->strides.insert(operand->strides.begin(), operand->row);
    if (leading.empty()) leading = first_sizes(tensor, before);
    if (leading != first_sizes(tensor, before)) return {};
    cut.operands.push_back(std::move(*operand));
  }
  if (cut.operands.empty()) return {};
  cut.rows = product(leading);
  const std::size_t results = call.op.schema().returns().size();
  cut.results.assign(results, {.leading = leading, .skip = 1});
  return {std::move(cut)};
}

std::vector<Cut> cut_embedding(const CallToCut& call) {
  const at::Tensor indices = plain_tensor(call.arguments[1]);
  if (!indices.defined() || indices.dim() == 0) return {};
  auto operand = contiguous_rows(call, 1, static_cast<std::size_t>(indices.dim()));
  if (!operand) return {};
  Cut cut;
  cut.rows = indices.numel();
  cut.operands.push_back(std::move(*operand));
  cut.results.push_back({.leading = indices.sizes().vec()});
  return {std::move(cut)};
}

// nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight)
std::vector<Cut> cut_nll_backward(const CallToCut& call) {
  const at::Tensor grad = plain_tensor(call.arguments[0]);
  const at::Tensor self = plain_tensor(call.arguments[1]);
  const at::Tensor target = plain_tensor(call.arguments[2]);
  if (!grad.defined() || !self.defined() || !target.defined()) return {};
  if (self.dim() != 2 || target.dim() != 1 || target.size(0) != self.size(0)) return {};
  Cut cut;
  cut.rows = self.size(0);
  // The loss of each, or of all together.
  const std::size_t first = grad.dim() == 1 ? 0 : 1;
  if (grad.dim() > 1 || (grad.dim() == 1 && grad.size(0) != cut.rows)) return {};
  for (std::size_t position = first; position < 3; ++position) {
    auto operand = contiguous_rows(call, position, 1);
    if (!operand) return {};
    operand->reads = position != 1;  // of what the loss is of only the size matters
    cut.operands.push_back(std::move(*operand));
  }
  cut.results.push_back({.leading = {cut.rows}});
  return {std::move(cut)};
}

std::vector<Cut> cut_cat(const CallToCut& call) {
  if (!call.arguments[0].isTensorList()) return {};
  const auto tensors = call.arguments[0].toTensorVector();
  if (tensors.size() < 2 || !tensors.front().defined() || tensors.front().dim() == 0) return {};
  const at::Tensor& first = tensors.front();
  const auto dim =
      static_cast<std::size_t>(at::maybe_wrap_dim(call.arguments[1].toInt(), first.dim()));
  std::vector<std::int64_t> sizes = first.sizes().vec();
  sizes[dim] = 0;
  Cut rows;
  rows.rows = product(first.sizes().slice(0, dim));
  std::int64_t result_row = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor tensor = plain_tensor(tensors[i]);
    if (!tensor.defined() || tensor.numel() == 0 || !tensor.is_contiguous() ||
        tensor.suggest_memory_format() != at::MemoryFormat::Contiguous ||
        tensor.dim() != first.dim() || tensor.scalar_type() != first.scalar_type() ||
        tensor.device() != first.device()) {
      return {};
    }
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (d != dim && tensor.sizes()[d] != sizes[d]) return {};
    }
    sizes[dim] += tensor.sizes()[dim];
    auto operand = rows_of(tensor, dim, 0);
    if (!operand) return {};
    operand->element = static_cast<std::int64_t>(i);
    result_row += operand->row;
    rows.operands.push_back(std::move(*operand));
  }
  const CutResult result{.sizes = sizes};
  const auto element = element_bytes(first);
  if (result_row * element <= call.part_bytes && rows.rows > 1) {
    rows.results.push_back(result);
    rows.replaced.emplace_back(1, std::int64_t{1});
    return {std::move(rows)};
  }
  // Few long rows: each tensor's part of each row is moved to its place.
  constexpr std::int64_t kMostMoves = 4096;
  if (rows.rows * static_cast<std::int64_t>(tensors.size()) > kMostMoves) return {};
  std::vector<Cut> moves;
  std::int64_t place = 0;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    for (const CutOperand& operand : rows.operands) {
      const at::Tensor piece = operand.tensor.as_strided(
          {operand.row}, {1}, operand.tensor.storage_offset() + row * operand.row);
      Cut move{.rows = operand.row, .moves = true, .place = place, .type = first.scalar_type()};
      move.operands.push_back({.argument = 0, .tensor = piece});
      move.results.push_back(result);
      moves.push_back(std::move(move));
      place += operand.row;
    }
  }
  return moves;
}

}  // namespace lms::torch
