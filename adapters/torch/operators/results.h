#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

#include "base/bytes.h"

namespace lms::torch {

/// Bytes of every storage that a call on `device` makes for its results, as the operator's meta
/// kernel has it, or, for convolutions, arithmetic. What its kernel allocates on the way is not
/// among them. Empty: it makes none, or nobody can tell before it runs. Slow, and may run Python:
/// no lock may be held.
std::vector<Bytes> result_bytes(const c10::OperatorHandle& op,
                                std::span<const c10::IValue> arguments, c10::Device device);

/// Likewise the results themselves, on the meta device. Empty: as above, or there are also others
/// than new tensors.
std::vector<at::Tensor> results_foreseen(const c10::OperatorHandle& op,
                                         std::span<const c10::IValue> arguments,
                                         c10::Device device);

}  // namespace lms::torch
