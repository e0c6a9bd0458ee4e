#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// Whether kernels over lists count the versions of what they write, as autograd counts those of
/// other operators. Most do; on CUDA some do not (PyTorch 2.11: `_foreach_lerp_` with numbers, and
/// `_foreach_zero_`), and autograd is to notice neither more nor less than without LMS. Whoever
/// gives a kernel aliases counts the versions of the program's tensors where it would. Thread-safe.
class CountedVersions {
 public:
  /// Whether a call with these `arguments` counts. An operator's kernel is asked the first time,
  /// with tensors of no elements: nothing is launched. No lock may be held.
  bool counts(const OpInfo& info, const c10::SafeKernelFunction& kernel,
              const c10::OperatorHandle& op, c10::DispatchKeySet keys,
              std::span<const c10::IValue> arguments);

  /// A child of the calling thread finds the lock free. Innermost.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  /// Of calls whose tensors are alike; by whether autograd counts those of other operators there.
  std::map<std::pair<const OpInfo*, bool>, bool> known_;
};

}  // namespace lms::torch
