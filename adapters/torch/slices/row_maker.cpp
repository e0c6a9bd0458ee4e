#include "adapters/torch/slices/row_maker.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>

#include "adapters/torch/operators/call.h"

namespace lms::torch {

const RowMaker::Node* RowMaker::node_of(const at::Tensor& tensor) const {
  if (nodes_.empty()) return nullptr;
  const auto found = nodes_.find(storage_of(tensor));
  return found == nodes_.end() ? nullptr : &found->second;
}

bool RowMaker::prepare(const std::vector<Cut>& cuts, std::int64_t part_bytes) {
  return std::ranges::all_of(
      cuts, [&](const Cut& cut) { return add_operands(cut.operands, part_bytes); });
}

bool RowMaker::add_operands(const std::vector<CutOperand>& operands, std::int64_t part_bytes) {
  return std::ranges::all_of(operands, [&](const CutOperand& operand) {
    const Unmade* const unmade = rows_.find(storage_of(operand.tensor));
    if (unmade == nullptr) return true;
    // A view as another type has rows of other elements.
    return !operand.writes && operand.tensor.dtype() == unmade->result.dtype() &&
           add(*unmade, part_bytes);
  });
}

bool RowMaker::add(const Unmade& unmade, std::int64_t part_bytes) {
  const c10::StorageImpl* const storage = storage_of(unmade.result);
  if (nodes_.contains(storage)) return true;
  auto cuts = unmade.info->cut({unmade.info->name, *unmade.op, unmade.arguments, part_bytes});
  if (cuts.size() != 1 || cuts.front().moves || cuts.front().results.size() != 1) return false;
  Node node{.unmade = &unmade, .cut = std::move(cuts.front())};
  const std::int64_t elements = unmade.result.numel();
  if (node.cut.rows <= 0 || elements % node.cut.rows != 0) return false;
  node.row = elements / node.cut.rows;
  if (!add_operands(node.cut.operands, part_bytes)) return false;
  // What its kernel gets as it is.
  for (std::size_t i = 0; i < unmade.arguments.size(); ++i) {
    const bool is_cut =
        std::ranges::find(node.cut.operands, i, &CutOperand::argument) != node.cut.operands.end();
    if (is_cut) continue;
    StorageUses uses;
    collect_storages(unmade.arguments[i], /*writes=*/false, /*inside=*/false, uses);
    for (const StorageUse& use : uses) {
      if (rows_.find(use.storage) != nullptr) return false;
      others_.push_back(use);
    }
  }
  // What it makes, and what that is made from.
  node.bytes_per_element = element_bytes(unmade.result);
  for (const CutOperand& operand : node.cut.operands) {
    const Node* const source = operand.reads ? node_of(operand.tensor) : nullptr;
    const Bytes each =
        source != nullptr ? source->bytes_per_element : element_bytes(operand.tensor);
    node.bytes_per_element += each * operand.row / node.row;
  }
  cuts_.push_back(&nodes_.emplace(storage, std::move(node)).first->second.cut);
  return true;
}

Bytes RowMaker::bytes_for(const at::Tensor& tensor, std::int64_t elements) const {
  const Node* const node = node_of(tensor);
  return node == nullptr ? 0 : elements * node->bytes_per_element;
}

std::int64_t RowMaker::unit_of(const at::Tensor& tensor) const {
  const Node* const node = node_of(tensor);
  if (node == nullptr) return 1;
  const std::int64_t bytes = node->row * element_bytes(tensor);
  std::int64_t unit = node->row * (kBoundary / std::gcd(bytes, kBoundary));
  for (const CutOperand& operand : node->cut.operands) {
    if (operand.reads) unit = std::max(unit, unit_of(operand.tensor));
  }
  return unit;
}

at::Tensor RowMaker::make(const at::Tensor& tensor, std::int64_t begin, std::int64_t end,
                          Stage stage, Pins& pins) const {
  const Node& node = *node_of(tensor);
  const Cut& cut = node.cut;
  // Parts begin and end where those of the whole call might.
  const auto chunk_of = [&](std::int64_t row) {
    return cut.chunk == INT64_MAX ? 0 : row / cut.chunk * cut.chunk;
  };
  std::int64_t row = begin / node.row;
  const std::int64_t last = (end + node.row - 1) / node.row;
  row = chunk_of(row) + (row - chunk_of(row)) / cut.unit * cut.unit;
  const std::int64_t first = row;
  std::vector<at::Tensor> parts;
  while (row < last) {
    const std::int64_t chunk_end =
        cut.chunk == INT64_MAX ? cut.rows : std::min(cut.rows, chunk_of(row) + cut.chunk);
    std::int64_t rows = (last - row + cut.unit - 1) / cut.unit * cut.unit;
    rows = std::min({rows, std::max(cut.most / cut.unit * cut.unit, cut.unit), chunk_end - row});
    c10::Stack arguments = node.unmade->arguments;
    for (const auto& [position, value] : cut.replaced) arguments[position] = value;
    for (const CutOperand& operand : cut.operands) {
      arguments[operand.argument] = stage(operand, row, rows, pins);
    }
    node.unmade->kernel->callBoxed(*node.unmade->op, node.unmade->keys, &arguments);
    const at::Tensor made = arguments.back().toTensor();
    TORCH_INTERNAL_ASSERT(made.numel() == rows * node.row);
    const StorageUse use{storage_of(made), /*writes=*/false};
    pins.add({&use, 1});
    parts.push_back(made.contiguous().view(-1));
    row += rows;
  }
  const at::Tensor all = parts.size() == 1 ? parts.front() : at::cat(parts);
  return all.slice(0, begin - first * node.row, end - first * node.row);
}

}  // namespace lms::torch
