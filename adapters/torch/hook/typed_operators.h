#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string_view>

#include "adapters/torch/operators/op_info.h"

namespace lms::torch {

/// An operator whose signature the compiler has seen.
struct TypedOperator {
  std::string_view name;      ///< "aten::add"
  std::string_view overload;  ///< "Tensor"; empty: there is none
  c10::KernelFunction (*make)(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                              const c10::OperatorHandle& op);
};

/// Matrices, convolutions, attention.
std::span<const TypedOperator> typed_matrices();
/// Norms, pools, losses, dropout, sums; and what puts tensors together.
std::span<const TypedOperator> typed_layers();
/// Operators on every element by itself.
std::span<const TypedOperator> typed_pointwise();
/// Operators over lists: what optimizers and gradient clipping are made of.
std::span<const TypedOperator> typed_lists();

}  // namespace lms::torch
