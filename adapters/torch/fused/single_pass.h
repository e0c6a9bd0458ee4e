#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "adapters/torch/operators/call.h"

namespace lms::torch {

/// What one pass over memory can compute from a float32 tensor: it times one number for each of its
/// columns or of its rows, perhaps converted to 16 bits without the product; only converted; or the
/// sum of it and a tensor of 16 bits. The specs belong to the calls.
struct SinglePass {
  /// What `other` is.
  enum class With : std::uint8_t { kNothing, kColumnFactors, kRowFactors, kAddend };

  c10::ScalarType type = c10::ScalarType::Undefined;  ///< BFloat16, Half; Float: not converted
  const TensorSpec* input = nullptr;
  const TensorSpec* other = nullptr;  ///< null: nothing
  With with = With::kNothing;
  c10::ScalarType addend = c10::ScalarType::Undefined;  ///< of 16 bits, if there is one
  std::uint32_t elements = 0;
  std::uint32_t width = 0;  ///< elements of a row; without factors: as many as there are

  [[nodiscard]] Bytes bytes() const {
    return static_cast<Bytes>(c10::elementSize(type)) * static_cast<Bytes>(elements);
  }
};

/// Nothing unless `call` is such a product, such a conversion, or such a sum on `device`, and it is
/// certain that one kernel (pass_rule.cpp) gives the same bits.
std::optional<SinglePass> find_product(const Call& call, c10::Device device);
std::optional<SinglePass> find_cast(const Call& call, c10::Device device);
std::optional<SinglePass> find_sum(const Call& call, c10::Device device);
/// Nothing unless both are, and the second converts all of what the first makes.
std::optional<SinglePass> find_cast_of_product(const Call& product, const Call& cast,
                                               c10::Device device);

/// The same for calls that have not been recorded: what plans may reckon with. `base`: where the
/// arguments are.
[[nodiscard]] bool may_be_product(const c10::Stack& stack, std::size_t base);
[[nodiscard]] bool may_be_cast(const c10::Stack& stack, std::size_t base);
[[nodiscard]] bool may_be_sum(const c10::Stack& stack, std::size_t base);

}  // namespace lms::torch
