#include "adapters/torch/operators/counted_versions.h"

#include <ATen/Functions.h>
#include <ATen/native/ForeachUtils.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/torch/replay/replay.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

/// With as many elements as it takes for the kernel to accept it.
c10::IValue stand_in_for(const c10::IValue& value) {
  if (value.isTensorList()) {
    const c10::List<at::Tensor> given = value.toTensorList();
    c10::List<at::Tensor> list;
    if (given.empty()) return list;
    const at::Tensor first = given.get(0);
    const at::Tensor none = at::empty({0}, first.options());
    for (std::size_t k = 0; k < given.size(); ++k) list.push_back(none);
    return list;
  }
  if (value.isTensor() && value.toTensor().defined()) {
    // Numbers: kernels for GPUs read those of the CPU at once.
    const at::Tensor& given = value.toTensor();
    return given.is_cpu() ? at::ones(given.sizes(), given.options())
                          : at::empty(given.sizes(), given.options());
  }
  return value;
}

bool ask(const OpInfo& info, const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
         c10::DispatchKeySet keys, std::span<const c10::IValue> arguments, bool autograd_counts) {
  const c10::DispatchKeySet counting(c10::DispatchKey::ADInplaceOrView);
  const c10::impl::ExcludeDispatchKeyGuard below(autograd_counts ? above_kernels() - counting
                                                                 : above_kernels());
  const c10::impl::DisablePythonDispatcher no_python;
  const c10::InferenceMode versions(false);
  const InParts in_parts;
  c10::Stack stack;
  for (const c10::IValue& value : arguments) stack.push_back(stand_in_for(value));
  std::vector<at::Tensor> written;
  for (const auto& argument : info.arguments) {
    const c10::IValue& value = stack[argument.index];
    if (!argument.writes || !value.isTensorList() || value.toTensorList().empty()) continue;
    written.push_back(value.toTensorList().get(0));
  }
  kernel.callBoxed(op, keys, &stack);
  return std::ranges::any_of(written, [](const at::Tensor& each) { return each._version() > 0; });
}

/// As PyTorch's kernels for lists want their tensors. They take others one by one, by operators.
bool all_alike(std::span<const c10::IValue> arguments) {
  std::vector<std::vector<at::Tensor>> tensors;
  std::vector<at::Scalar> numbers;
  for (const c10::IValue& value : arguments) {
    if (value.isTensorList()) tensors.push_back(value.toTensorVector());
    if (!value.isList() || value.isTensorList()) continue;
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isScalar()) numbers.push_back(each.toScalar());
    }
  }
  std::erase_if(tensors, [](const auto& list) { return list.empty(); });
  if (tensors.empty()) return true;
  const std::vector<at::TensorList> lists(tensors.begin(), tensors.end());
  for (const auto& list : lists) {
    if (list.size() != lists.front().size()) return true;  // the kernel refuses them
  }
  return at::native::can_use_fast_route(lists, numbers);
}

}  // namespace

bool CountedVersions::counts(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                             const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             std::span<const c10::IValue> arguments) {
  if (!std::string_view(info.name).starts_with("aten::_foreach_")) return false;
  // Of operators that kernels call in their turn.
  const bool autograd_counts =
      !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
  const std::pair call(&info, autograd_counts);
  std::optional<bool> known;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = known_.find(call); it != known_.end()) known = it->second;
  }
  if (known == true) return true;
  if (!all_alike(arguments)) return autograd_counts;
  if (known) return false;
  bool counts = true;
  try {
    counts = ask(info, kernel, op, keys, arguments, autograd_counts);
  } catch (const c10::Error&) {
    return true;  // what is wrong with the call is the operator's to say
  }
  const std::lock_guard lock(mutex_);
  return known_.emplace(call, counts).first->second;
}

}  // namespace lms::torch
