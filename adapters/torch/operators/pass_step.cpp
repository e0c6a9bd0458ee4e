#include "adapters/torch/operators/pass_step.h"

#include <algorithm>
#include <array>

namespace lms::torch {
namespace {

struct Named {
  std::string_view name;
  PassStep step;
};

// As their schemas have it: lists first, then what all positions share, the factor last.
constexpr std::array kSteps = std::to_array<Named>({
    {"add.Scalar", {StepKind::kAdd, 1, 0, 1}},
    {"add.List", {StepKind::kAdd, 2, 0, 2}},
    {"add.ScalarList", {StepKind::kAdd, 1, 0, 1}},
    {"sub.Scalar", {StepKind::kSub, 1, 0, 1}},
    {"sub.List", {StepKind::kSub, 2, 0, 2}},
    {"sub.ScalarList", {StepKind::kSub, 1, 0, 1}},
    {"mul.Scalar", {StepKind::kMul, 1, 0, 1}},
    {"mul.List", {StepKind::kMul, 2, 0, 0}},
    {"mul.ScalarList", {StepKind::kMul, 1, 0, 1}},
    {"mul.Tensor", {StepKind::kMul, 1, 1, 0}},
    {"div.Scalar", {StepKind::kDiv, 1, 0, 1}},
    {"div.List", {StepKind::kDiv, 2, 0, 0}},
    {"div.ScalarList", {StepKind::kDiv, 1, 0, 1}},
    {"div.Tensor", {StepKind::kDiv, 1, 1, 0}},
    {"lerp.Scalar", {StepKind::kLerp, 2, 0, 2}},
    {"lerp.ScalarList", {StepKind::kLerp, 2, 0, 2}},
    {"addcmul.Scalar", {StepKind::kAddcmul, 3, 0, 3}},
    {"addcmul.ScalarList", {StepKind::kAddcmul, 3, 0, 3}},
    {"addcdiv.Scalar", {StepKind::kAddcdiv, 3, 0, 3}},
    {"addcdiv.ScalarList", {StepKind::kAddcdiv, 3, 0, 3}},
    {"maximum.List", {StepKind::kMaximum, 2, 0, 0}},
    {"minimum.List", {StepKind::kMinimum, 2, 0, 0}},
    {"sqrt", {StepKind::kSqrt, 1, 0, 0}},
    {"neg", {StepKind::kNeg, 1, 0, 0}},
    {"reciprocal", {StepKind::kReciprocal, 1, 0, 0}},
});

}  // namespace

PassStep pass_step(std::string_view name) {
  constexpr std::string_view kPrefix = "aten::_foreach_";
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  const auto dot = std::min(name.find('.'), name.size());
  std::string_view base = name.substr(0, dot);
  const std::string_view overload = name.substr(dot);
  if (base.ends_with('_')) base.remove_suffix(1);
  const auto found = std::ranges::find_if(kSteps, [&](const Named& one) {
    return one.name.size() == base.size() + overload.size() && one.name.starts_with(base) &&
           one.name.ends_with(overload);
  });
  return found == kSteps.end() ? PassStep{} : found->step;
}

}  // namespace lms::torch
