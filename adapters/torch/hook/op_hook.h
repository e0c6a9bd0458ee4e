#pragma once

#include <c10/core/DeviceType.h>

#include <memory>
#include <string>
#include <vector>

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

/// What is done with each operator of ATen that has a kernel for the device type's own key, for the
/// reference: "aten::add.Tensor: pinned, may run again". Works without a device.
std::vector<std::string> operator_facts(c10::DeviceType type);

}  // namespace lms::torch
