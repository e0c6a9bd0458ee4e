#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "adapters/torch/operators/call.h"

/// What those ask who look for calls that one kernel can run together.
namespace lms::torch {

using Numbers = std::span<const std::int64_t>;

/// Memory has the elements side by side, the last dimension inside. (The strides of dimensions of
/// one element say nothing.)
inline bool is_contiguous(Numbers sizes, Numbers strides) {
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != stride) return false;
    stride *= sizes[i];
  }
  return true;
}

/// Its bytes are what the elements are, and lie on the device.
inline bool is_plain_on(const TensorSpec& spec, c10::Device device) {
  const auto backend =
      device.is_cuda() ? c10::BackendComponent::CUDABit : c10::BackendComponent::CPUBit;
  return spec.keys.has_backend(backend) && !spec.keys.has(c10::DispatchKey::Conjugate) &&
         !spec.keys.has(c10::DispatchKey::Negative) && !spec.wrapped_number && spec.offset >= 0;
}

inline c10::ScalarType type_of(const TensorSpec& spec) {
  return c10::typeMetaToScalarType(spec.type);
}

inline bool is_call_of(const Call& call, const char* name, const char* overload) {
  const auto& full = call.op->operator_name();
  return full.name == name && full.overload_name == overload;
}

/// The tensor that is argument number `at`; null if it is another kind of argument, or undefined.
inline const TensorSpec* tensor_at(const Call& call, std::size_t at) {
  if (at >= call.arguments.size()) return nullptr;
  const Call::Argument& argument = call.arguments[at];
  if (argument.kind != Call::Argument::Kind::kTensor || argument.tensors.front() < 0) {
    return nullptr;
  }
  return &call.tensors[static_cast<std::size_t>(argument.tensors.front())];
}

}  // namespace lms::torch
