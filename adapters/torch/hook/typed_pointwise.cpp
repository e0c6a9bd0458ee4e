#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/hardsigmoid_backward_ops.h>
#include <ATen/ops/hardsigmoid_ops.h>
#include <ATen/ops/hardswish_backward_ops.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/leaky_relu_backward_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>

#include <array>

#include "adapters/torch/hook/typed_call.h"
#include "adapters/torch/hook/typed_operators.h"

namespace lms::torch {

std::span<const TypedOperator> typed_pointwise() {
  namespace op = at::_ops;
  static constexpr std::array kAll = std::to_array<TypedOperator>({
      typed<op::_to_copy>(),
      typed<op::add_Scalar>(),
      typed<op::add_Tensor>(),
      typed<op::add__Tensor>(),
      typed<op::clone>(),
      typed<op::copy_>(),
      typed<op::cos>(),
      typed<op::div_Scalar>(),
      typed<op::div_Tensor>(),
      typed<op::div__Tensor>(),
      typed<op::empty_like>(),
      typed<op::exp>(),
      typed<op::fill__Scalar>(),
      typed<op::gelu>(),
      typed<op::gelu_backward>(),
      typed<op::hardsigmoid>(),
      typed<op::hardsigmoid_backward>(),
      typed<op::hardswish>(),
      typed<op::hardswish_>(),
      typed<op::hardswish_backward>(),
      typed<op::leaky_relu>(),
      typed<op::leaky_relu_>(),
      typed<op::leaky_relu_backward>(),
      typed<op::masked_fill_Scalar>(),
      typed<op::masked_fill__Scalar>(),
      typed<op::mul_Scalar>(),
      typed<op::mul_Tensor>(),
      typed<op::mul__Tensor>(),
      typed<op::neg>(),
      typed<op::pow_Tensor_Scalar>(),
      typed<op::relu>(),
      typed<op::relu_>(),
      typed<op::rsqrt>(),
      typed<op::sigmoid>(),
      typed<op::sigmoid_backward>(),
      typed<op::silu>(),
      typed<op::silu_>(),
      typed<op::silu_backward>(),
      typed<op::sin>(),
      typed<op::sqrt>(),
      typed<op::sub_Tensor>(),
      typed<op::tanh>(),
      typed<op::tanh_backward>(),
      typed<op::threshold_backward>(),
      typed<op::where_self>(),
      typed<op::zero_>(),
  });
  return kAll;
}

}  // namespace lms::torch
