#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

/// Lists of tensors, as the caller has them.
using TensorLists = c10::SmallVector<at::TensorList, 6>;

/// Consecutive positions of an operator's lists.
struct ListPart {
  std::size_t begin;
  std::size_t end;
  std::size_t length;   ///< of the lists
  std::size_t scalars;  ///< the argument that is a tensor with one scalar a position; or none
};

/// One call of an operator with its arguments as the caller has them. PyTorch boxes arguments
/// (makes values of one type of them, on a stack) for whoever does not know their types; that takes
/// as long as all that LMS does for an operator whose blocks are at hand. Here only who looks at
/// the arguments one by one has them boxed.
class UnboxedCall {
 public:
  UnboxedCall(const OpInfo& info, const c10::SafeKernelFunction& kernel,
              const c10::OperatorHandle& op, c10::DispatchKeySet keys)
      : info_(info), kernel_(kernel), op_(op), keys_(keys) {}
  UnboxedCall(const UnboxedCall&) = delete;
  UnboxedCall& operator=(const UnboxedCall&) = delete;

  [[nodiscard]] const OpInfo& info() const { return info_; }
  [[nodiscard]] const c10::SafeKernelFunction& kernel() const { return kernel_; }
  [[nodiscard]] const c10::OperatorHandle& op() const { return op_; }
  [[nodiscard]] c10::DispatchKeySet keys() const { return keys_; }

  /// Appends the storages of the arguments.
  virtual void collect_arguments(StorageUses& found) const = 0;
  /// Calls the kernel. Once more, if it has thrown; the arguments are as they were.
  virtual void run() = 0;
  /// Appends the storages of what the kernel has returned.
  virtual void collect_results(StorageUses& found) const = 0;
  /// Pushes the arguments.
  virtual void box(c10::Stack& stack) const = 0;
  /// The results are what is on the stack, which a boxed call has left there.
  virtual void take_results(c10::Stack& stack) = 0;

  /// Of an operator over lists (OpKind::kList): appends its lists of tensors that are not empty.
  virtual void collect_lists(TensorLists& /*lists*/) const {}
  /// Likewise: has `run` run a call of a part of the lists. What that returns is added to what this
  /// call returns.
  virtual void run_part(const ListPart& /*part*/, c10::function_ref<void(UnboxedCall&)> /*run*/) {}

 protected:
  ~UnboxedCall() = default;

 private:
  const OpInfo& info_;
  const c10::SafeKernelFunction& kernel_;
  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
};

}  // namespace lms::torch
