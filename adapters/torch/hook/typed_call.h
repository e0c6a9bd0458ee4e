#pragma once

// What the compiler makes of an operator's signature: a call whose arguments need no boxes, and the
// kernel that PyTorch finds in the place of the operator's own.

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/boxing/impl/boxing.h>

#include <iterator>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "adapters/torch/hook/op_run.h"
#include "adapters/torch/hook/typed_kernel.h"
#include "adapters/torch/hook/typed_operators.h"
#include "adapters/torch/hook/unboxed_call.h"
#include "adapters/torch/version.h"

namespace lms::torch {

inline void collect_of(const at::Tensor& tensor, bool writes, StorageUses& found) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !impl->has_storage()) return;
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (storage != nullptr) found.push_back({storage, writes});
}
inline void collect_of(const std::optional<at::Tensor>& tensor, bool writes, StorageUses& found) {
  if (tensor) collect_of(*tensor, writes, found);
}
inline void collect_of(at::TensorList tensors, bool writes, StorageUses& found) {
  for (const at::Tensor& tensor : tensors) collect_of(tensor, writes, found);
}
inline void collect_of(const at::ITensorListRef& tensors, bool writes, StorageUses& found) {
  for (const at::Tensor& tensor : tensors) collect_of(tensor, writes, found);
}
inline void collect_of(const c10::List<std::optional<at::Tensor>>& tensors, bool writes,
                       StorageUses& found) {
  for (const std::optional<at::Tensor> tensor : tensors) collect_of(tensor, writes, found);
}
inline void collect_of(const std::vector<at::Tensor>& tensors, bool writes, StorageUses& found) {
  collect_of(at::TensorList(tensors), writes, found);
}

template <typename Value>
inline constexpr bool holds_tensors = requires(const std::decay_t<Value>& value,
                                               StorageUses& found) {
  collect_of(value, true, found);
};

template <typename Value>
void collect_if_any(const Value& value, bool writes, StorageUses& found) {
  if constexpr (holds_tensors<Value>) collect_of(value, writes, found);
}
template <typename... Types>
void collect_if_any(const std::tuple<Types...>& values, bool writes, StorageUses& found) {
  std::apply([&](const auto&... each) { (collect_if_any(each, writes, found), ...); }, values);
}

template <typename Result, typename... Args>
class TypedCall final : public UnboxedCall {
  static constexpr bool kInPlace = std::is_same_v<Result, at::Tensor&>;
  static constexpr bool kNothing = std::is_void_v<Result>;
  static constexpr bool kMakesList = std::is_same_v<Result, std::vector<at::Tensor>>;
  static constexpr bool kOverLists =
      (kNothing || kMakesList) && (std::is_same_v<Args, at::TensorList> || ...);
  static_assert(kInPlace || !std::is_reference_v<Result>);

 public:
  TypedCall(const OpInfo& info, const c10::SafeKernelFunction& kernel,
            const c10::OperatorHandle& op, c10::DispatchKeySet keys, Args&... args)
      : UnboxedCall(info, kernel, op, keys), args_(args...) {}
  ~TypedCall() = default;

  void collect_arguments(StorageUses& found) const override {
    auto next = info().arguments.begin();
    const auto end = info().arguments.end();
    std::uint32_t index = 0;
    const auto collect = [&](const auto& value) {
      const bool looked_at = next != end && next->index == index;
      ++index;
      if (!looked_at) return;
      const bool writes = (next++)->writes;
      collect_if_any(value, writes, found);
    };
    std::apply([&](const auto&... each) { (collect(each), ...); }, args_);
  }

  void run() override {
    const auto& kernel_function = unboxed(kernel());
    std::apply(
        [&](auto&... each) {
          if constexpr (kInPlace) {
            result_ = &kernel_function.template call<Result, Args...>(op(), keys(), each...);
          } else if constexpr (kNothing) {
            kernel_function.template call<Result, Args...>(op(), keys(), each...);
          } else {
            result_.emplace(kernel_function.template call<Result, Args...>(op(), keys(), each...));
          }
        },
        args_);
  }

  void collect_results(StorageUses& found) const override {
    if constexpr (!kNothing) collect_if_any(*result_, /*writes=*/true, found);
  }

  void box(c10::Stack& stack) const override {
    std::apply([&](auto&... each) { ::torch::jit::push(stack, copy_of<Args>(each)...); }, args_);
  }

  void take_results(c10::Stack& stack) override {
    if constexpr (kInPlace) {
      result_ = &written();
    } else if constexpr (!kNothing) {
      result_.emplace(c10::impl::PopResult<Result>::call(stack));
    }
  }

  void collect_lists(TensorLists& lists) const override {
    if constexpr (kOverLists) {
      const auto collect = [&](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::TensorList>) {
          if (!value.empty()) lists.push_back(value);
        }
      };
      std::apply([&](const auto&... each) { (collect(each), ...); }, args_);
    }
  }

  void run_part(const ListPart& part, c10::function_ref<void(UnboxedCall&)> run) override {
    if constexpr (kOverLists) {
      std::size_t index = 0;
      const auto cut = [&](const auto& value) { return part_of(value, part, index++); };
      // In braces: in this order.
      auto values = std::apply(
          [&](const auto&... each) { return std::tuple<std::decay_t<Args>...>{cut(each)...}; },
          args_);
      std::apply(
          [&](auto&... each) {
            TypedCall call(info(), kernel(), op(), keys(), each...);
            run(call);
            if constexpr (kMakesList) {
              if (!result_) result_.emplace();
              std::move(call.result_->begin(), call.result_->end(), std::back_inserter(*result_));
            }
          },
          values);
    }
  }

  Result result() {
    if constexpr (kInPlace) {
      return *result_;
    } else if constexpr (!kNothing) {
      return *std::move(result_);
    }
  }

 private:
  template <typename Argument>
  static std::decay_t<Argument> copy_of(std::remove_reference_t<Argument>& value) {
    return value;
  }

  template <typename Value>
  static Value part_of(const Value& value, const ListPart& part, std::size_t index) {
    const std::size_t count = part.end - part.begin;
    if constexpr (std::is_same_v<Value, at::TensorList>) {
      return value.empty() ? value : value.slice(part.begin, count);
    } else if constexpr (std::is_same_v<Value, at::ArrayRef<at::Scalar>>) {
      return value.size() == part.length ? value.slice(part.begin, count) : value;
    } else if constexpr (std::is_same_v<Value, at::Tensor>) {
      return index != part.scalars ? value
                                   : value.narrow(0, static_cast<std::int64_t>(part.begin),
                                                  static_cast<std::int64_t>(count));
    } else {
      return value;
    }
  }

  /// What an operator in place, or with `out=`, returns.
  at::Tensor& written() {
    at::Tensor* found = nullptr;
    const auto look = [&](auto& each) {
      if constexpr (std::is_same_v<decltype(each), at::Tensor&>) found = &each;
    };
    std::apply([&](auto&... each) { (look(each), ...); }, args_);
    return *found;
  }

  std::tuple<Args&...> args_;
  using Made = std::conditional_t<kNothing, std::monostate, std::decay_t<Result>>;
  std::conditional_t<kInPlace, at::Tensor*, std::optional<Made>> result_{};
};

template <typename Signature>
class TypedKernel;

template <typename Result, typename... Args>
class TypedKernel<Result(Args...)> final : public c10::OperatorKernel {
 public:
  TypedKernel(OpInfo info, c10::SafeKernelFunction kernel, const c10::OperatorHandle& op)
      : info_(std::move(info)), kernel_(std::move(kernel)), op_(op) {}

  // PyTorch decides how a kernel is called.
  // NOLINTNEXTLINE(performance-unnecessary-value-param)
  Result operator()(c10::DispatchKeySet keys, Args... args) {
    notice_new_operators();
    TypedCall<Result, Args...> call(info_, kernel_, op_, keys, args...);
    run_operator(call);
    return call.result();
  }

  static c10::KernelFunction make(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                                  const c10::OperatorHandle& op) {
    return c10::KernelFunction::makeFromUnboxedFunctor<false, TypedKernel>(
        std::make_unique<TypedKernel>(info, kernel, op));
  }

 private:
  const OpInfo info_;
  const c10::SafeKernelFunction kernel_;
  const c10::OperatorHandle op_;
};

/// The entry of one of at::_ops.
template <typename Op>
constexpr TypedOperator typed() {
  return {Op::name, Op::overload_name, &TypedKernel<typename Op::schema>::make};
}

}  // namespace lms::torch
