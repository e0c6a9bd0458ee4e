// Operators that take rows by their numbers, or add rows to others by these.

#include <ATen/Context.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "adapters/torch/slices/cut.h"

namespace lms::torch {
namespace {

/// Tensors of as many rows, in their first dimension.
std::optional<std::vector<CutOperand>> rows_of_each(const CallToCut& call,
                                                    std::span<const std::size_t> positions,
                                                    std::int64_t rows) {
  std::vector<CutOperand> operands;
  for (const std::size_t position : positions) {
    const at::Tensor tensor = plain_tensor(call.arguments[position]);
    if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != rows) return std::nullopt;
    auto operand = rows_of(tensor, 1, position);
    if (!operand) return std::nullopt;
    operands.push_back(std::move(*operand));
  }
  return operands;
}

std::optional<std::int64_t> dimension_of(const CallToCut& call, const at::Tensor& self) {
  if (!self.defined() || self.dim() == 0) return std::nullopt;
  return at::maybe_wrap_dim(call.arguments[1].toInt(), self.dim());
}

/// No two of its elements are one, as far as that can be told from their steps in memory.
bool lies_apart(const at::Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::ranges::sort(steps);
  std::int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

/// Parts that follow each other add in the order in which the whole does, or in which it may: on
/// GPUs additions are atomic, in any order, unless that is forbidden. On the CPU 16-bit sums of
/// rows may be kept in 32 bits until the end. Where elements are one, others come in between.
bool adds_in_parts(const at::Tensor& self) {
  if (!lies_apart(self)) return false;
  if (!self.device().is_cpu()) return !at::globalContext().deterministicAlgorithms();
  const auto type = self.scalar_type();
  return type == at::kFloat || type == at::kDouble ||
         at::isIntegralType(type, /*includeBool=*/false);
}

}  // namespace

// index_select(self, dim, index)
std::vector<Cut> cut_index_select(const CallToCut& call) {
  const at::Tensor self = plain_tensor(call.arguments[0]);
  const at::Tensor index = plain_tensor(call.arguments[2]);
  if (dimension_of(call, self) != 0 || !index.defined() || index.dim() != 1) return {};
  constexpr std::array<std::size_t, 1> kIndex = {2};
  auto operands = rows_of_each(call, kIndex, index.size(0));
  if (!operands) return {};
  Cut cut{.rows = index.size(0), .operands = std::move(*operands)};
  cut.results.push_back({.leading = {cut.rows}});
  return {std::move(cut)};
}

// gather(self, dim, index, sparse_grad)
std::vector<Cut> cut_gather(const CallToCut& call) {
  const at::Tensor self = plain_tensor(call.arguments[0]);
  const at::Tensor index = plain_tensor(call.arguments[2]);
  const auto dim = dimension_of(call, self);
  if (!dim || !index.defined() || index.dim() != self.dim()) return {};
  constexpr std::array<std::size_t, 2> kBoth = {0, 2};
  // Along the first dimension each row of the index may look anywhere.
  const auto positions = std::span(kBoth).subspan(*dim == 0 ? 1 : 0);
  auto operands = rows_of_each(call, positions, index.size(0));
  if (!operands) return {};
  Cut cut{.rows = index.size(0), .operands = std::move(*operands)};
  cut.results.push_back({.leading = {cut.rows}});
  return {std::move(cut)};
}

// index_add_(self, dim, index, source, alpha)
std::vector<Cut> cut_index_add(const CallToCut& call) {
  const at::Tensor self = plain_tensor(call.arguments[0]);
  const at::Tensor index = plain_tensor(call.arguments[2]);
  if (dimension_of(call, self) != 0 || !index.defined() || index.dim() != 1) return {};
  if (!adds_in_parts(self)) return {};
  constexpr std::array<std::size_t, 2> kTensors = {2, 3};
  auto operands = rows_of_each(call, kTensors, index.size(0));
  if (!operands) return {};
  return {{.rows = index.size(0), .operands = std::move(*operands)}};
}

// scatter_add_(self, dim, index, src)
std::vector<Cut> cut_scatter_add(const CallToCut& call) {
  const at::Tensor self = plain_tensor(call.arguments[0]);
  const at::Tensor index = plain_tensor(call.arguments[2]);
  const auto dim = dimension_of(call, self);
  if (!dim || !index.defined() || index.dim() != self.dim() || !adds_in_parts(self)) return {};
  constexpr std::array<std::size_t, 3> kAll = {0, 2, 3};
  const auto positions = std::span(kAll).subspan(*dim == 0 ? 1 : 0);
  auto operands = rows_of_each(call, positions, index.size(0));
  if (!operands) return {};
  if (*dim != 0) operands->front().writes = true;
  return {{.rows = index.size(0), .operands = std::move(*operands)}};
}

}  // namespace lms::torch
