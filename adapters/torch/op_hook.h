#pragma once

#include <c10/core/DeviceType.h>

#include <memory>

namespace lms::torch {

/// Wraps every operator of a device type at its backend slot, so that each pins its inputs, runs,
/// and lets them go. While it lives the operators are wrapped; its destruction restores them.
///
/// Operators registered later are wrapped as soon as another hooked operator runs.
class OpHook {
 public:
  explicit OpHook(c10::DeviceType type);
  ~OpHook();
  OpHook(const OpHook&) = delete;
  OpHook& operator=(const OpHook&) = delete;

  /// Number of (operator, backend key) pairs wrapped.
  [[nodiscard]] std::size_t wrapped() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace lms::torch
