#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <array>
#include <cstddef>
#include <span>

namespace lms::torch {

/// Keeps an operator's arguments, with which it can be run again, in memory that the thread uses
/// for one call after the other: steady steps take nothing from the heap. Of one scope.
class KeptCall {
 public:
  KeptCall() : level_(spares().depth++) {}
  explicit KeptCall(std::span<const c10::IValue> arguments) : KeptCall() { keep(arguments); }
  ~KeptCall() {
    stack().clear();
    --spares().depth;
  }
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;

  void keep(std::span<const c10::IValue> arguments) {
    stack().assign(arguments.begin(), arguments.end());
  }
  [[nodiscard]] const c10::Stack& arguments() { return stack(); }

 private:
  /// One for each call that is within another.
  struct Spares {
    std::array<c10::Stack, 4> stacks;
    std::size_t depth = 0;
  };
  static Spares& spares() {
    static thread_local Spares all;
    return all;
  }
  c10::Stack& stack() {
    Spares& all = spares();
    return level_ < all.stacks.size() ? all.stacks[level_] : own_;
  }

  std::size_t level_;
  c10::Stack own_;  ///< deeper than that
};

}  // namespace lms::torch
