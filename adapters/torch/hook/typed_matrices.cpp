#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_conv_depthwise2d_ops.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/cudnn_convolution_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/mm_ops.h>

#include <array>

#include "adapters/torch/hook/typed_call.h"
#include "adapters/torch/hook/typed_operators.h"

namespace lms::torch {

std::span<const TypedOperator> typed_matrices() {
  namespace op = at::_ops;
  static constexpr std::array kAll = std::to_array<TypedOperator>({
      typed<op::_conv_depthwise2d>(),
      typed<op::_scaled_dot_product_cudnn_attention>(),
      typed<op::_scaled_dot_product_cudnn_attention_backward>(),
      typed<op::_scaled_dot_product_efficient_attention>(),
      typed<op::_scaled_dot_product_efficient_attention_backward>(),
      typed<op::_scaled_dot_product_flash_attention>(),
      typed<op::_scaled_dot_product_flash_attention_backward>(),
      typed<op::addmm>(),
      typed<op::baddbmm>(),
      typed<op::bmm>(),
      typed<op::convolution>(),
      typed<op::convolution_backward>(),
      typed<op::cudnn_convolution>(),
      typed<op::embedding>(),
      typed<op::embedding_dense_backward>(),
      typed<op::mm>(),
  });
  return kAll;
}

}  // namespace lms::torch
