#include "adapters/torch/hook/list_splitter.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

/// A list operator is split once its lists take more than this part of the limit (the second once
/// blocks have had to leave), into chunks of at most that part: small enough that one is computed
/// while the next comes and the last leaves.
constexpr Bytes kSplitAbove = 4;
constexpr Bytes kSplitAbovePressed = 16;
constexpr Bytes kChunk = 64;

/// The arguments of one call, read as columns of equal length.
struct Lists {
  std::size_t length = 0;
  std::vector<std::size_t> columns;              ///< positions of the lists of tensors
  std::vector<std::vector<at::Tensor>> tensors;  ///< those lists
  std::vector<std::size_t> scalar_lists;         ///< positions of the lists of scalars
  std::size_t scalar_tensor = SIZE_MAX;  ///< position of a tensor with one scalar a position
  DeviceManager* manager = nullptr;
  std::vector<Bytes> bytes;  ///< managed bytes at each position of the lists
  Bytes total = 0;
};

Bytes split_above(const DeviceManager& manager) {
  return manager.limit() / (pressed() ? kSplitAbovePressed : kSplitAbove);
}

/// Whether the lists may take so much that they are split: asked of every list operator, before
/// anything is made of its lists.
bool may_be_split(const c10::IValue* arguments, std::size_t count) {
  const DeviceManager* manager = nullptr;
  Bytes total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!arguments[i].isTensorList()) continue;
    for (const c10::IValue& element : arguments[i].toListRef()) {
      const at::Tensor& tensor = element.toTensor();
      if (!tensor.defined() || !tensor.has_storage()) continue;
      if (manager == nullptr) manager = active_manager(tensor.device());
      if (manager == nullptr) continue;
      const auto bytes =
          static_cast<Bytes>(tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes());
      if (bytes >= manager->min_block()) total += bytes;
    }
  }
  return manager != nullptr && total > split_above(*manager);
}

/// False: not lists of one length.
bool read_lists(const c10::IValue* arguments, std::size_t count, Lists& lists) {
  for (std::size_t i = 0; i < count; ++i) {
    if (!arguments[i].isTensorList()) continue;
    auto tensors = arguments[i].toTensorVector();
    if (tensors.empty()) continue;
    if (lists.length != 0 && tensors.size() != lists.length) return false;
    lists.length = tensors.size();
    lists.columns.push_back(i);
    lists.tensors.push_back(std::move(tensors));
  }
  if (lists.length < 2) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isList() && !value.isTensorList() && value.toListRef().size() == lists.length) {
      lists.scalar_lists.push_back(i);
    }
  }
  return true;
}

void measure(Lists& lists) {
  lists.bytes.assign(lists.length, 0);
  for (const auto& tensors : lists.tensors) {
    for (std::size_t k = 0; k < lists.length; ++k) {
      const at::Tensor& tensor = tensors[k];
      if (!tensor.defined() || !tensor.has_storage()) continue;
      if (lists.manager == nullptr) lists.manager = active_manager(tensor.device());
      if (lists.manager == nullptr || tensor.device() != lists.manager->device()) continue;
      const auto bytes = static_cast<Bytes>(tensor.storage().nbytes());
      if (bytes < lists.manager->min_block()) continue;
      lists.bytes[k] += bytes;
      lists.total += bytes;
    }
  }
}

/// Kernels take their fast path only if all tensors agree. Part of a list that does not might, and
/// would then be computed by other code; so what does not agree is not split. Nor is a list with an
/// inference tensor: kernels in place write all of it before they complain of that one.
bool alike(const Lists& lists) {
  for (const auto& tensors : lists.tensors) {
    const at::Tensor& first = tensors.front();
    for (std::size_t k = 0; k < lists.length; ++k) {
      const at::Tensor& tensor = tensors[k];
      if (!tensor.defined() || tensor.layout() != at::kStrided ||
          tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device() ||
          !tensor.is_non_overlapping_and_dense() || tensor.is_inference()) {
        return false;
      }
      const at::Tensor& beside = lists.tensors.front()[k];
      if (tensor.sizes() == beside.sizes() && tensor.strides() != beside.strides()) return false;
    }
  }
  return true;
}

c10::IValue part_of(const c10::IValue& value, std::size_t begin, std::size_t end) {
  if (value.isTensorList()) {
    c10::List<at::Tensor> part;
    for (std::size_t k = begin; k < end; ++k) part.push_back(value.toTensorList().get(k));
    return part;
  }
  if (value.isTensor()) {
    return value.toTensor().narrow(0, static_cast<std::int64_t>(begin),
                                   static_cast<std::int64_t>(end - begin));
  }
  const auto list = value.toList();
  auto part = c10::impl::GenericList(list.elementType());
  for (std::size_t k = begin; k < end; ++k) part.push_back(list.get(k));
  return part;
}

}  // namespace

bool run_in_chunks(RunOperator run, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                   const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  const std::size_t base = stack.size() - info.argument_count;
  if (!may_be_split(&stack[base], info.argument_count)) return false;
  Lists lists;
  if (!read_lists(&stack[base], info.argument_count, lists)) return false;
  measure(lists);
  if (lists.manager == nullptr || lists.total <= split_above(*lists.manager) || !alike(lists)) {
    return false;
  }
  // One scalar a list element, in a CPU tensor (the ".Tensor" overloads of addcmul and addcdiv).
  const auto& schema = op.schema();
  for (std::size_t i = 0; i < info.argument_count; ++i) {
    if (schema.arguments()[i].name() == "scalars" && stack[base + i].isTensor()) {
      const at::Tensor scalars = stack[base + i].toTensor();
      if (scalars.dim() != 1 || scalars.size(0) != static_cast<std::int64_t>(lists.length)) {
        return false;  // let the operator itself complain
      }
      lists.scalar_tensor = i;
    }
  }
  // A list that returns something else than one list of tensors is none of the family.
  const std::size_t returned = schema.returns().size();
  if (returned > 1) return false;

  const c10::Stack arguments(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  stack.resize(base);
  c10::List<at::Tensor> results;
  const Bytes most = lists.manager->limit() / kChunk;
  OpInfo part_info = info;
  part_info.kind = OpKind::kPlain;
  for (std::size_t begin = 0; begin < lists.length;) {
    Bytes bytes = lists.bytes[begin];
    std::size_t end = begin + 1;
    while (end < lists.length && bytes + lists.bytes[end] <= most) bytes += lists.bytes[end++];

    c10::Stack part = arguments;
    for (const std::size_t column : lists.columns) {
      part[column] = part_of(arguments[column], begin, end);
    }
    for (const std::size_t list : lists.scalar_lists) {
      part[list] = part_of(arguments[list], begin, end);
    }
    if (lists.scalar_tensor != SIZE_MAX) {
      part[lists.scalar_tensor] = part_of(arguments[lists.scalar_tensor], begin, end);
    }
    run(part_info, kernel, op, keys, part);
    if (returned == 1) {
      // Complete tensors: what one part made may leave while the next is computed.
      StorageUses made;
      collect_storages(part.back(), /*writes=*/true, /*inside=*/false, made);
      Pins pins;
      pins.add(made);
      for (const at::Tensor& tensor : part.back().toTensorVector()) results.push_back(tensor);
    }
    begin = end;
  }
  ++lists.manager->list_splits;
  if (returned == 1) stack.emplace_back(std::move(results));
  return true;
}

}  // namespace lms::torch
