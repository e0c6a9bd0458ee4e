#include "adapters/torch/operators/autograd_nodes.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>

#include <string_view>
#include <unordered_set>
#include <vector>

namespace lms::torch {
namespace {

using ::torch::autograd::Node;

/// Nodes from results back to what the call has taken, of which there are few: a call that makes
/// more is put together from PyTorch's operators.
constexpr std::size_t kMostNodes = 256;

bool is_unseen(const Node& node) {
  return std::string_view(node.name()).starts_with("torch::autograd::CppNode");
}

void collect_nodes(const c10::IValue& value, std::vector<Node*>& nodes) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && tensor.grad_fn()) nodes.push_back(tensor.grad_fn().get());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) collect_nodes(element, nodes);
  }
}

}  // namespace

std::uint64_t nodes_so_far() { return at::sequence_number::peek(); }

bool in_backward_pass() { return ::torch::autograd::get_current_node() != nullptr; }

bool made_unseen_nodes(std::span<const c10::IValue> results, std::uint64_t so_far) {
  std::vector<Node*> nodes;
  for (const c10::IValue& value : results) collect_nodes(value, nodes);
  std::unordered_set<const Node*> seen;
  while (!nodes.empty()) {
    if (seen.size() == kMostNodes) return true;  // for all that is known
    Node* const node = nodes.back();
    nodes.pop_back();
    // That of a leaf has the highest number.
    if (node->sequence_nr() < so_far || node->num_outputs() == 0) continue;
    if (!seen.insert(node).second) continue;
    if (is_unseen(*node)) return true;
    for (const auto& edge : node->next_edges()) {
      if (edge.function) nodes.push_back(edge.function.get());
    }
  }
  return false;
}

}  // namespace lms::torch
