#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_ops.h>
#include <ATen/ops/_foreach_abs_ops.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_clamp_max_ops.h>
#include <ATen/ops/_foreach_clamp_min_ops.h>
#include <ATen/ops/_foreach_copy_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_exp_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_maximum_ops.h>
#include <ATen/ops/_foreach_minimum_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_neg_ops.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/_foreach_pow_ops.h>
#include <ATen/ops/_foreach_reciprocal_ops.h>
#include <ATen/ops/_foreach_rsqrt_ops.h>
#include <ATen/ops/_foreach_sigmoid_ops.h>
#include <ATen/ops/_foreach_sign_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_foreach_sub_ops.h>
#include <ATen/ops/_foreach_zero_ops.h>
#include <ATen/ops/_fused_adagrad_ops.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>

#include <array>

#include "adapters/torch/hook/typed_call.h"
#include "adapters/torch/hook/typed_operators.h"

namespace lms::torch {

std::span<const TypedOperator> typed_lists() {
  namespace op = at::_ops;
  static constexpr std::array kAll = std::to_array<TypedOperator>({
      typed<op::_amp_foreach_non_finite_check_and_unscale_>(),
      typed<op::_foreach_abs>(),
      typed<op::_foreach_abs_>(),
      typed<op::_foreach_add_List>(),
      typed<op::_foreach_add_Scalar>(),
      typed<op::_foreach_add_ScalarList>(),
      typed<op::_foreach_add_Tensor>(),
      typed<op::_foreach_add__List>(),
      typed<op::_foreach_add__Scalar>(),
      typed<op::_foreach_add__ScalarList>(),
      typed<op::_foreach_add__Tensor>(),
      typed<op::_foreach_addcdiv_Scalar>(),
      typed<op::_foreach_addcdiv_ScalarList>(),
      typed<op::_foreach_addcdiv_Tensor>(),
      typed<op::_foreach_addcdiv__Scalar>(),
      typed<op::_foreach_addcdiv__ScalarList>(),
      typed<op::_foreach_addcdiv__Tensor>(),
      typed<op::_foreach_addcmul_Scalar>(),
      typed<op::_foreach_addcmul_ScalarList>(),
      typed<op::_foreach_addcmul_Tensor>(),
      typed<op::_foreach_addcmul__Scalar>(),
      typed<op::_foreach_addcmul__ScalarList>(),
      typed<op::_foreach_addcmul__Tensor>(),
      typed<op::_foreach_clamp_max_List>(),
      typed<op::_foreach_clamp_max_Scalar>(),
      typed<op::_foreach_clamp_max_ScalarList>(),
      typed<op::_foreach_clamp_max__List>(),
      typed<op::_foreach_clamp_max__Scalar>(),
      typed<op::_foreach_clamp_max__ScalarList>(),
      typed<op::_foreach_clamp_min_List>(),
      typed<op::_foreach_clamp_min_Scalar>(),
      typed<op::_foreach_clamp_min_ScalarList>(),
      typed<op::_foreach_clamp_min__List>(),
      typed<op::_foreach_clamp_min__Scalar>(),
      typed<op::_foreach_clamp_min__ScalarList>(),
      typed<op::_foreach_copy>(),
      typed<op::_foreach_copy_>(),
      typed<op::_foreach_div_List>(),
      typed<op::_foreach_div_Scalar>(),
      typed<op::_foreach_div_ScalarList>(),
      typed<op::_foreach_div_Tensor>(),
      typed<op::_foreach_div__List>(),
      typed<op::_foreach_div__Scalar>(),
      typed<op::_foreach_div__ScalarList>(),
      typed<op::_foreach_div__Tensor>(),
      typed<op::_foreach_exp>(),
      typed<op::_foreach_exp_>(),
      typed<op::_foreach_lerp_List>(),
      typed<op::_foreach_lerp_Scalar>(),
      typed<op::_foreach_lerp_ScalarList>(),
      typed<op::_foreach_lerp__List>(),
      typed<op::_foreach_lerp__Scalar>(),
      typed<op::_foreach_lerp__ScalarList>(),
      typed<op::_foreach_maximum_List>(),
      typed<op::_foreach_maximum_Scalar>(),
      typed<op::_foreach_maximum_ScalarList>(),
      typed<op::_foreach_maximum__List>(),
      typed<op::_foreach_maximum__Scalar>(),
      typed<op::_foreach_maximum__ScalarList>(),
      typed<op::_foreach_minimum_List>(),
      typed<op::_foreach_minimum_Scalar>(),
      typed<op::_foreach_minimum_ScalarList>(),
      typed<op::_foreach_minimum__List>(),
      typed<op::_foreach_minimum__Scalar>(),
      typed<op::_foreach_minimum__ScalarList>(),
      typed<op::_foreach_mul_List>(),
      typed<op::_foreach_mul_Scalar>(),
      typed<op::_foreach_mul_ScalarList>(),
      typed<op::_foreach_mul_Tensor>(),
      typed<op::_foreach_mul__List>(),
      typed<op::_foreach_mul__Scalar>(),
      typed<op::_foreach_mul__ScalarList>(),
      typed<op::_foreach_mul__Tensor>(),
      typed<op::_foreach_neg>(),
      typed<op::_foreach_neg_>(),
      typed<op::_foreach_norm_Scalar>(),
      typed<op::_foreach_pow_List>(),
      typed<op::_foreach_pow_Scalar>(),
      typed<op::_foreach_pow_ScalarAndTensor>(),
      typed<op::_foreach_pow_ScalarList>(),
      typed<op::_foreach_pow__List>(),
      typed<op::_foreach_pow__Scalar>(),
      typed<op::_foreach_pow__ScalarList>(),
      typed<op::_foreach_reciprocal>(),
      typed<op::_foreach_reciprocal_>(),
      typed<op::_foreach_rsqrt>(),
      typed<op::_foreach_rsqrt_>(),
      typed<op::_foreach_sigmoid>(),
      typed<op::_foreach_sigmoid_>(),
      typed<op::_foreach_sign>(),
      typed<op::_foreach_sign_>(),
      typed<op::_foreach_sqrt>(),
      typed<op::_foreach_sqrt_>(),
      typed<op::_foreach_sub_List>(),
      typed<op::_foreach_sub_Scalar>(),
      typed<op::_foreach_sub_ScalarList>(),
      typed<op::_foreach_sub__List>(),
      typed<op::_foreach_sub__Scalar>(),
      typed<op::_foreach_sub__ScalarList>(),
      typed<op::_foreach_zero_>(),
      typed<op::_fused_adagrad_>(),
      typed<op::_fused_adagrad__tensor_lr>(),
      typed<op::_fused_adam_>(),
      typed<op::_fused_adam__tensor_lr>(),
      typed<op::_fused_adamw_>(),
      typed<op::_fused_adamw__tensor_lr>(),
      typed<op::_fused_sgd_>(),
      typed<op::_fused_sgd__tensor_lr>(),
  });
  return kAll;
}

}  // namespace lms::torch
