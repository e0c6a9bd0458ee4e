#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/constant_pad_nd_ops.h>
#include <ATen/ops/cudnn_batch_norm_backward_ops.h>
#include <ATen/ops/cudnn_batch_norm_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/roll_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/upsample_bilinear2d_backward_ops.h>
#include <ATen/ops/upsample_bilinear2d_ops.h>
#include <ATen/ops/upsample_nearest2d_backward_ops.h>
#include <ATen/ops/upsample_nearest2d_ops.h>

#include <array>

#include "adapters/torch/hook/typed_call.h"
#include "adapters/torch/hook/typed_operators.h"

namespace lms::torch {

std::span<const TypedOperator> typed_layers() {
  namespace op = at::_ops;
  static constexpr std::array kAll = std::to_array<TypedOperator>({
      typed<op::_adaptive_avg_pool2d>(),
      typed<op::_adaptive_avg_pool2d_backward>(),
      typed<op::_index_put_impl_>(),
      typed<op::_log_softmax>(),
      typed<op::_log_softmax_backward_data>(),
      typed<op::_softmax>(),
      typed<op::_softmax_backward_data>(),
      typed<op::avg_pool2d>(),
      typed<op::avg_pool2d_backward>(),
      typed<op::bernoulli__float>(),
      typed<op::cat>(),
      typed<op::constant_pad_nd>(),
      typed<op::cudnn_batch_norm>(),
      typed<op::cudnn_batch_norm_backward>(),
      typed<op::gather>(),
      typed<op::index_Tensor>(),
      typed<op::max_pool2d_with_indices>(),
      typed<op::max_pool2d_with_indices_backward>(),
      typed<op::mean>(),
      typed<op::mean_dim>(),
      typed<op::native_batch_norm>(),
      typed<op::native_batch_norm_backward>(),
      typed<op::native_dropout>(),
      typed<op::native_dropout_backward>(),
      typed<op::native_group_norm>(),
      typed<op::native_group_norm_backward>(),
      typed<op::native_layer_norm>(),
      typed<op::native_layer_norm_backward>(),
      typed<op::nll_loss_backward>(),
      typed<op::nll_loss_forward>(),
      typed<op::roll>(),
      typed<op::select_backward>(),
      typed<op::slice_backward>(),
      typed<op::stack>(),
      typed<op::sum>(),
      typed<op::sum_dim_IntList>(),
      typed<op::upsample_bilinear2d>(),
      typed<op::upsample_bilinear2d_backward>(),
      typed<op::upsample_nearest2d>(),
      typed<op::upsample_nearest2d_backward>(),
  });
  return kAll;
}

}  // namespace lms::torch
