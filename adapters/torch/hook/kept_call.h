#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <span>
#include <utility>

namespace lms::torch {

/// A call's arguments, kept in memory that the thread's next call takes over: steady steps take
/// nothing from the heap.
class KeptCall {
 public:
  KeptCall() : arguments_(std::move(spare())) { arguments_.clear(); }
  ~KeptCall() {
    arguments_.clear();
    spare() = std::move(arguments_);
  }
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;

  void keep(std::span<const c10::IValue> arguments) {
    arguments_.assign(arguments.begin(), arguments.end());
  }
  [[nodiscard]] const c10::Stack& arguments() const { return arguments_; }

 private:
  static c10::Stack& spare() {
    static thread_local c10::Stack stack;
    return stack;
  }
  c10::Stack arguments_;
};

}  // namespace lms::torch
