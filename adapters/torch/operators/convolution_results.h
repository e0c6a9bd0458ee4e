#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

#include "base/bytes.h"

namespace lms::torch {

/// Bytes of every result of a call of aten::convolution or aten::convolution_backward, by the
/// arithmetic of convolutions: their meta kernels are Python's, and a program in C++ has none.
/// Empty: it is another operator, or the arguments do not go together.
std::vector<Bytes> convolution_results(const c10::OperatorHandle& op,
                                       std::span<const c10::IValue> arguments);

}  // namespace lms::torch
