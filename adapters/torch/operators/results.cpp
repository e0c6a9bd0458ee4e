#include "adapters/torch/operators/results.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "adapters/torch/operators/convolution_results.h"

namespace lms::torch {
namespace {

/// Stands for the arguments of a call, and knows them again among its results.
class MetaCall {
 public:
  explicit MetaCall(c10::Device device) : device_(device) {}

  /// False: a value that no meta kernel can take in this one's place.
  bool add(const c10::IValue& value) {
    if (value.isTensor()) {
      stack.emplace_back(meta_of(value.toTensor()));
      return ok_;
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(meta_of(tensor));
      stack.emplace_back(std::move(list));
      return ok_;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(meta_of(*tensor)) : std::nullopt);
      }
      stack.emplace_back(std::move(list));
      return ok_;
    }
    if (value.isDevice()) {
      if (value.toDevice().type() != device_.type()) return false;
      stack.emplace_back(c10::Device(c10::kMeta));
      return true;
    }
    stack.push_back(value);
    return !value.isGenerator() && !value.isStorage();
  }

  [[nodiscard]] bool has_tensors() const { return !known_.empty(); }

  /// Of the results that it has left on the stack, those that are new.
  [[nodiscard]] std::vector<at::Tensor> made() {
    std::vector<at::Tensor> made;
    const auto look_at = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.has_storage()) return;
      const bool known = std::ranges::any_of(
          known_, [&](const at::Tensor& other) { return tensor.is_alias_of(other); });
      if (known) return;
      known_.push_back(tensor);
      made.push_back(tensor);
    };
    for (const c10::IValue& value : stack) {
      if (value.isTensor()) look_at(value.toTensor());
      if (!value.isTensorList()) continue;
      for (const at::Tensor& tensor : value.toTensorVector()) look_at(tensor);
    }
    return made;
  }

  c10::Stack stack;

 private:
  at::Tensor meta_of(const at::Tensor& tensor) {
    if (!tensor.defined()) return {};
    if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.is_quantized() ||
        tensor.is_conj() || tensor.is_neg()) {
      ok_ = false;
      return {};
    }
    at::Tensor meta =
        at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    known_.push_back(meta);
    return meta;
  }

  const c10::Device device_;
  std::vector<at::Tensor> known_;
  bool ok_ = true;
};

/// Those that are new, and how many there are in all.
std::pair<std::vector<at::Tensor>, std::size_t> run_meta(const c10::OperatorHandle& op,
                                                         std::span<const c10::IValue> arguments,
                                                         c10::Device device) {
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return {};
  try {
    MetaCall call(device);
    for (const c10::IValue& value : arguments) {
      if (!call.add(value)) return {};
    }
    if (!call.has_tensors()) return {};
    // callBoxedForDispatchKey() would miss kernels of all backends, clone() among them.
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &call.stack);
    return {call.made(), call.stack.size()};
  } catch (const std::exception&) {
    return {};  // what depends on the numbers in a tensor, for instance
  }
}

}  // namespace

std::vector<Bytes> result_bytes(const c10::OperatorHandle& op,
                                std::span<const c10::IValue> arguments, c10::Device device) {
  std::vector<Bytes> bytes;
  for (const at::Tensor& tensor : run_meta(op, arguments, device).first) {
    bytes.push_back(static_cast<Bytes>(tensor.storage().nbytes()));
  }
  return bytes.empty() ? convolution_results(op, arguments) : bytes;
}

std::vector<at::Tensor> results_foreseen(const c10::OperatorHandle& op,
                                         std::span<const c10::IValue> arguments,
                                         c10::Device device) {
  auto [made, all] = run_meta(op, arguments, device);
  if (made.size() != all) made.clear();
  return std::move(made);
}

}  // namespace lms::torch
