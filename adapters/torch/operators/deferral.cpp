#include "adapters/torch/operators/deferral.h"

#include <algorithm>
#include <array>

namespace lms::torch {
namespace {

constexpr std::string_view kNamespace = "aten::";
constexpr std::string_view kForeach = "_foreach_";

/// Of one, two or three tensors of one size and type, and numbers: nothing to refuse.
constexpr std::array kElementwise = {"abs_",  "add_",  "addcdiv_", "addcmul_",    "copy_", "div_",
                                     "fill_", "lerp_", "maximum_", "minimum_",    "mul_",  "neg_",
                                     "sign_", "sqrt_", "sub_",     "reciprocal_", "zero_"};
/// Their results are as their first list.
constexpr std::array kMakers = {"abs", "add", "addcdiv",    "addcmul", "div", "lerp",
                                "mul", "neg", "reciprocal", "sqrt",    "sub"};
constexpr std::array kUpdates = {"_fused_adagrad_", "_fused_adam_", "_fused_adamw_", "_fused_sgd_"};
/// What lies between a language model's logits and their gradient, or may.
constexpr std::array kRows = {"_to_copy",
                              "_log_softmax",
                              "_log_softmax_backward_data",
                              "_softmax",
                              "_softmax_backward_data",
                              "div",
                              "mul",
                              "neg",
                              "nll_loss_backward",
                              "tanh",
                              "tanh_backward"};
/// Not those that take a rounding mode, or write a tensor given beside.
constexpr std::array kOverloads = {"",     "Scalar",     "Tensor",   "Scalar_Tensor",
                                   "List", "ScalarList", "tensor_lr"};

template <class Names>
bool lists(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

Deferral deferral_rule(std::string_view name) {
  if (!name.starts_with(kNamespace)) return Deferral::kNever;
  name.remove_prefix(kNamespace.size());
  const auto dot = name.find('.');
  const auto overload = dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
  name = name.substr(0, dot);
  if (!lists(kOverloads, overload)) return Deferral::kNever;
  if (lists(kUpdates, name)) return Deferral::kUpdates;
  if (lists(kElementwise, name)) return Deferral::kElements;
  if (lists(kRows, name)) return Deferral::kRows;
  if (!name.starts_with(kForeach)) return Deferral::kNever;
  name.remove_prefix(kForeach.size());
  if (lists(kMakers, name)) return Deferral::kMakes;
  return lists(kElementwise, name) ? Deferral::kLists : Deferral::kNever;
}

}  // namespace lms::torch
