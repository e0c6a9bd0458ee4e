// What goes over lists element by element, of which the call has one position: updates, and others.

#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>

#include "adapters/torch/operators/call.h"
#include "adapters/torch/slices/cut.h"

namespace lms::torch {
namespace {

/// Elements that kernels of a GPU take as one chunk. Whether they load several elements at a time
/// is decided for each chunk: by what is left of the tensor, and where it lies.
constexpr std::int64_t kChunk = 65536;
constexpr std::int64_t kAtATime = 4;
/// Elements at a thread's share on the CPU, or a multiple: at the end of others other code
/// computes.
constexpr std::int64_t kShare = 4096;
constexpr std::int64_t kVector = 64;

bool lies_as(const at::Tensor& tensor, const at::Tensor& first) {
  return tensor.sizes() == first.sizes() && tensor.strides() == first.strides() &&
         tensor.scalar_type() == first.scalar_type() && tensor.device() == first.device();
}

/// Elements of which parts are to be multiples. Nothing: parts might be computed by other code.
std::optional<std::int64_t> unit_for(const CallToCut& call, const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    return tensor.numel() % kAtATime == 0 ? std::optional(kChunk) : std::nullopt;
  }
  const std::int64_t threads = at::get_num_threads();
  // What is not fused is shared out otherwise (pointwise.cpp), and whole there anyway but in tests.
  if (threads > 1 && call.name.starts_with("aten::_foreach_")) return std::nullopt;
  if (threads > 1 && tensor.numel() % (threads * kVector) != 0) return std::nullopt;
  return threads * kShare;
}

/// PyTorch's kernel of the CPU takes momenta of 16 bits for floats, and so reads those of other
/// elements.
bool reads_others(const CallToCut& call, const at::Tensor& tensor) {
  return tensor.device().is_cpu() && call.name.starts_with("aten::_fused_sgd_") &&
         tensor.element_size() == 2;
}

}  // namespace

std::vector<Cut> cut_lists(const CallToCut& call) {
  Cut cut;
  at::Tensor first;
  const auto& schema = call.op.schema().arguments();
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    if (!call.arguments[i].isTensorList()) continue;
    const auto list = call.arguments[i].toTensorVector();
    if (list.empty()) continue;
    if (list.size() != 1) return {};
    at::Tensor tensor = plain_tensor(list.front());
    if (!tensor.defined()) return {};
    if (!first.defined()) {
      if (tensor.numel() < 2 || !tensor.is_non_overlapping_and_dense()) return {};
      first = tensor;
    }
    if (tensor.dim() == 0) continue;  // a number for each position
    // Of one memory they are the same elements, or none.
    const bool overlaps = std::ranges::any_of(cut.operands, [&](const CutOperand& operand) {
      return operand.tensor.is_alias_of(tensor) &&
             operand.tensor.storage_offset() != tensor.storage_offset();
    });
    if (overlaps || !lies_as(tensor, first)) return {};
    const bool writes = schema[i].alias_info() != nullptr && schema[i].alias_info()->isWrite();
    if (writes && is_refused_in_lists(list.front())) return {};
    cut.operands.push_back({.argument = i, .element = 0, .tensor = tensor, .writes = writes});
  }
  const auto unit = first.defined() ? unit_for(call, first) : std::nullopt;
  if (!unit || reads_others(call, first)) return {};
  const auto& returns = call.op.schema().returns();
  const bool makes = !returns.empty() && returns.front().alias_info() == nullptr;
  if (makes)
    cut.results.push_back({.sizes = first.sizes().vec(), .strides = first.strides().vec()});
  cut.rows = first.numel();
  cut.unit = *unit;
  return {std::move(cut)};
}

}  // namespace lms::torch
