#pragma once

#include <cstdint>
#include <string_view>

namespace lms::torch {

/// What an operator over lists computes of each element, where it is of those that run together
/// with others in one pass over memory (fused/list_pass.h).
enum class StepKind : std::uint8_t {
  kNone,  ///< it is not
  kAdd,   ///< a + number · b, or a + number
  kSub,
  kMul,
  kDiv,
  kLerp,     ///< from a to b, by a number
  kAddcmul,  ///< a + number · b · c
  kAddcdiv,  ///< a + number · b / c
  kMaximum,
  kMinimum,
  kSqrt,
  kNeg,
  kReciprocal,
};

/// An operator's step, and where its operands are among its arguments. The first is a list, a.
struct PassStep {
  static constexpr std::uint8_t kNowhere = 0;

  StepKind kind = StepKind::kNone;
  std::uint8_t lists = 0;          ///< a, b, c: the first arguments
  std::uint8_t tensor = kNowhere;  ///< b, if it is one tensor for all positions
  std::uint8_t number = kNowhere;  ///< a number, or a list of them, one for each position
};

/// Of an operator, "aten::_foreach_mul_.Scalar".
PassStep pass_step(std::string_view name);

}  // namespace lms::torch
