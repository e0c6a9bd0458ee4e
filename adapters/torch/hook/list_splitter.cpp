#include "adapters/torch/hook/list_splitter.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "adapters/torch/operators/call.h"
#include "adapters/torch/operators/storage_positions.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

/// A list operator is split once its lists take more than this part of the limit (the second once
/// blocks have had to leave), into chunks (DeviceManager::list_chunk).
constexpr Bytes kSplitAbove = 4;
constexpr Bytes kSplitAbovePressed = 16;

/// The lists of one call, as columns of equal length.
struct Lists {
  std::size_t length = 0;
  TensorLists columns;  ///< that are not empty
  DeviceManager* manager = nullptr;
  c10::SmallVector<Bytes, 64> bytes;  ///< managed bytes at each position of the lists
  Bytes total = 0;
};

Bytes split_above(const DeviceManager& manager) {
  return manager.limit() / (pressed() ? kSplitAbovePressed : kSplitAbove);
}

/// The bytes of the tensor's storage, if it is one of those that are managed.
Bytes managed_bytes(const at::Tensor& tensor, DeviceManager*& manager) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !impl.has_storage()) return 0;
  if (manager == nullptr) manager = active_manager(tensor.device());
  if (manager == nullptr) return 0;
  const auto bytes = static_cast<Bytes>(impl.unsafe_storage().nbytes());
  return bytes >= manager->min_block() ? bytes : 0;
}

/// Whether the lists may take so much that they are split: asked of every list operator, before
/// anything is made of its lists.
template <typename ForEachTensor>
bool may_be_split(ForEachTensor for_each_tensor) {
  DeviceManager* manager = nullptr;
  Bytes total = 0;
  for_each_tensor([&](const at::Tensor& tensor) { total += managed_bytes(tensor, manager); });
  return manager != nullptr && total > split_above(*manager);
}

/// False: not lists of one length.
bool of_one_length(Lists& lists) {
  if (lists.columns.empty()) return false;
  lists.length = lists.columns.front().size();
  const auto has_length = [&](at::TensorList column) { return column.size() == lists.length; };
  return lists.length >= 2 && std::ranges::all_of(lists.columns, has_length);
}

void measure(Lists& lists) {
  lists.bytes.assign(lists.length, 0);
  std::optional<c10::Device> device;
  for (const at::TensorList column : lists.columns) {
    for (std::size_t k = 0; k < lists.length; ++k) {
      const Bytes bytes = managed_bytes(column[k], lists.manager);
      if (bytes == 0) continue;
      if (!device) device = lists.manager->device();
      if (column[k].device() != *device) continue;
      lists.bytes[k] += bytes;
      lists.total += bytes;
    }
  }
}

/// Kernels take their fast path only if all tensors agree. Part of a list that does not might, and
/// would then be computed by other code; so what does not agree is not split. Nor is a list with an
/// inference tensor: kernels in place write all of it before they complain of that one.
bool alike(const Lists& lists) {
  const at::TensorList front = lists.columns.front();
  for (const at::TensorList column : lists.columns) {
    if (!column.front().defined()) return false;
    const at::ScalarType type = column.front().scalar_type();
    const c10::Device device = column.front().device();
    for (std::size_t k = 0; k < lists.length; ++k) {
      const at::Tensor& tensor = column[k];
      if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.scalar_type() != type ||
          tensor.device() != device || !tensor.is_non_overlapping_and_dense() ||
          tensor.is_inference()) {
        return false;
      }
      const at::Tensor& beside = front[k];
      if (tensor.is_same(beside)) continue;
      if (tensor.sizes() == beside.sizes() && tensor.strides() != beside.strides()) return false;
    }
  }
  return true;
}

/// Whether lists whose columns are filled in are to be split.
bool to_be_split(Lists& lists) {
  if (!of_one_length(lists)) return false;
  measure(lists);
  return lists.manager != nullptr && lists.total > split_above(*lists.manager) && alike(lists);
}

/// The argument that is a tensor with one scalar a list element (the ".Tensor" overloads of addcmul
/// and addcdiv), as a ListPart names it.
std::size_t scalar_tensor(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "scalars" &&
        arguments[i].type()->kind() == c10::TypeKind::TensorType) {
      return i;
    }
  }
  return SIZE_MAX;
}

bool has_length(const at::Tensor& scalars, std::size_t length) {
  return scalars.dim() == 1 && scalars.size(0) == static_cast<std::int64_t>(length);
}

/// The lists of a call in boxes.
struct BoxedLists {
  BoxedLists(const OpInfo& info, const c10::Stack& stack)
      : base(stack.size() - info.argument_count), tensors(info.argument_count) {
    const auto is_list = [&](std::size_t i) { return stack[base + i].isTensorList(); };
    const auto for_each_tensor = [&](auto visit) {
      for (std::size_t i = 0; i < info.argument_count; ++i) {
        if (!is_list(i)) continue;
        for (const c10::IValue& element : stack[base + i].toListRef()) visit(element.toTensor());
      }
    };
    if (!may_be_split(for_each_tensor)) return;
    for (std::size_t i = 0; i < info.argument_count; ++i) {
      if (!is_list(i)) continue;
      tensors[i] = stack[base + i].toTensorVector();
      if (!tensors[i].empty()) lists.columns.emplace_back(tensors[i]);
    }
    split = to_be_split(lists);
  }
  BoxedLists(const BoxedLists&) = delete;
  BoxedLists& operator=(const BoxedLists&) = delete;

  const std::size_t base;
  std::vector<std::vector<at::Tensor>> tensors;  ///< by argument
  Lists lists;
  bool split = false;
};

struct Stretch {
  std::size_t begin;
  std::size_t end;
  Bytes bytes;
};

std::vector<Stretch> stretches(const Lists& lists) {
  const Bytes most = lists.manager->list_chunk();
  std::vector<Stretch> all;
  for (std::size_t begin = 0; begin < lists.length;) {
    Bytes bytes = lists.bytes[begin];
    std::size_t end = begin + 1;
    while (end < lists.length && bytes + lists.bytes[end] <= most) bytes += lists.bytes[end++];
    all.push_back({begin, end, bytes});
    begin = end;
  }
  return all;
}

/// No memory is behind two positions: then their order does not matter.
bool positions_differ(const Lists& lists) {
  StoragePositions met(lists.columns.size() * lists.length);
  for (const at::TensorList column : lists.columns) {
    for (std::size_t k = 0; k < lists.length; ++k) {
      if (met.first(storage_of(column[k]), k) != k) return false;
    }
  }
  return true;
}

template <typename RunPart>
void run_parts(const OpInfo& info, const Lists& lists, RunPart run_part) {
  const InParts in_parts;
  const bool writes = std::ranges::any_of(info.arguments, &OpInfo::Argument::writes);
  std::vector<Stretch> all = stretches(lists);
  // What needs most comes first: if it finds no room, nothing has been written.
  const auto largest = std::ranges::max_element(all, {}, &Stretch::bytes);
  if (writes && largest != all.begin() && positions_differ(lists)) {
    std::rotate(all.begin(), largest, largest + 1);
  }
  for (const Stretch& stretch : all) {
    run_part(stretch.begin, stretch.end);
    if (writes) in_parts.one_has_written();
  }
  ++lists.manager->list_splits;
}

/// Complete tensors: what one part made may leave while the next is computed.
void release_made(const StorageUses& made) {
  Pins pins;
  pins.add(made);
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

bool would_be_split(const OpInfo& info, const c10::Stack& stack) {
  return !thread_state().in_parts && BoxedLists(info, stack).split;
}

bool would_be_split(const UnboxedCall& call) {
  Lists lists;
  call.collect_lists(lists.columns);
  return !thread_state().in_parts && to_be_split(lists);
}

bool run_in_chunks(RunOperator run, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                   const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  if (thread_state().in_parts) return false;
  const BoxedLists boxed(info, stack);
  if (!boxed.split) return false;
  const auto& [base, tensors, lists, split] = boxed;
  const std::size_t scalars = scalar_tensor(op);
  if (scalars != SIZE_MAX && !has_length(stack[base + scalars].toTensor(), lists.length)) {
    return false;  // let the operator itself complain
  }
  // A list that returns something else than one list of tensors is none of the family.
  const std::size_t returned = op.schema().returns().size();
  if (returned > 1) return false;

  const c10::Stack arguments(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  stack.resize(base);
  c10::List<at::Tensor> results;
  const auto is_cut = [&](std::size_t i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensorList()) return !tensors[i].empty();
    return i == scalars || (value.isList() && value.toListRef().size() == lists.length);
  };
  run_parts(info, lists, [&](std::size_t begin, std::size_t end) {
    c10::Stack part = arguments;
    for (std::size_t i = 0; i < info.argument_count; ++i) {
      if (is_cut(i)) part[i] = part_of(arguments[i], begin, end);
    }
    run(info, kernel, op, keys, part);
    if (returned == 0) return;
    StorageUses made;
    collect_storages(part.back(), /*writes=*/true, /*inside=*/false, made);
    release_made(made);
    for (const at::Tensor& tensor : part.back().toTensorVector()) results.push_back(tensor);
  });
  if (returned == 1) stack.emplace_back(std::move(results));
  return true;
}

bool run_in_chunks(UnboxedCall& call, c10::function_ref<void(UnboxedCall&)> run) {
  if (thread_state().in_parts) return false;
  Lists lists;
  call.collect_lists(lists.columns);
  const auto for_each_tensor = [&](auto visit) {
    for (const at::TensorList column : lists.columns) std::ranges::for_each(column, visit);
  };
  if (!may_be_split(for_each_tensor) || !to_be_split(lists)) return false;
  const std::size_t scalars = scalar_tensor(call.op());
  if (scalars != SIZE_MAX) {
    c10::Stack boxed;
    call.box(boxed);
    if (!has_length(boxed[scalars].toTensor(), lists.length)) return false;
  }
  run_parts(call.info(), lists, [&](std::size_t begin, std::size_t end) {
    call.run_part({begin, end, lists.length, scalars}, [&](UnboxedCall& part) {
      run(part);
      StorageUses made;
      part.collect_results(made);
      if (!made.empty()) release_made(made);
    });
  });
  return true;
}

}  // namespace lms::torch
