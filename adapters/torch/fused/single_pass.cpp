#include "adapters/torch/fused/single_pass.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "adapters/torch/operators/call_facts.h"

namespace lms::torch {
namespace {

/// Elements, if there are some, and PyTorch counts them in 32 bits.
std::optional<std::uint32_t> count_of(Numbers sizes) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size <= 0 || size >= kMost) return std::nullopt;
    count *= size;
    if (count >= kMost) return std::nullopt;
  }
  return static_cast<std::uint32_t>(count);
}

using With = SinglePass::With;

bool is_one(std::int64_t size) { return size == 1; }

/// What a tensor is multiplied by; kNothing: by something else.
With factors_of(Numbers sizes, Numbers strides, Numbers other, Numbers other_strides) {
  const auto count = count_of(sizes);
  if (!count || sizes.size() < 2 || other.empty() || other.size() > sizes.size() ||
      !is_contiguous(sizes, strides) || !is_contiguous(other, other_strides) ||
      static_cast<std::int64_t>(*count) == sizes.back()) {
    return With::kNothing;
  }
  if (other.back() == sizes.back() && std::all_of(other.begin(), other.end() - 1, is_one)) {
    return With::kColumnFactors;
  }
  const bool rows = other.size() == sizes.size() && is_one(other.back()) &&
                    std::equal(sizes.begin(), sizes.end() - 1, other.begin());
  return rows ? With::kRowFactors : With::kNothing;
}

bool is_16_bits(c10::ScalarType type) {
  return type == c10::ScalarType::BFloat16 || type == c10::ScalarType::Half;
}

bool is_plain_float(const TensorSpec& spec, c10::Device device) {
  return is_plain_on(spec, device) && type_of(spec) == c10::ScalarType::Float;
}

bool is_number_one(const c10::IValue& value) {
  return (value.isInt() && value.toInt() == 1) || (value.isDouble() && value.toDouble() == 1);
}

/// Of _to_copy's arguments, but the tensor: a type of 16 bits, and else what the tensor has.
template <typename Value>
std::optional<c10::ScalarType> target_of(std::size_t count, const Value& value) {
  constexpr std::size_t kArguments = 7, kType = 1, kNonBlocking = 5, kFormat = 6;
  if (count != kArguments || !value(kType).isInt()) return std::nullopt;
  for (std::size_t i = kType + 1; i < kArguments; ++i) {
    if (i == kNonBlocking || value(i).isNone()) continue;
    const bool preserves = i == kFormat && value(i).isInt() &&
                           value(i).toMemoryFormat() == c10::MemoryFormat::Preserve;
    if (!preserves) return std::nullopt;
  }
  const c10::ScalarType type = value(kType).toScalarType();
  return is_16_bits(type) ? std::optional(type) : std::nullopt;
}

const at::Tensor* plain_float_at(const c10::Stack& stack, std::size_t at) {
  if (!stack[at].isTensor() || !stack[at].toTensor().defined()) return nullptr;
  const at::Tensor& tensor = stack[at].toTensor();
  const bool plain = tensor.scalar_type() == at::kFloat && tensor.layout() == c10::kStrided &&
                     tensor.dim() > 0 && !tensor.is_neg();
  return plain ? &tensor : nullptr;
}

}  // namespace

std::optional<SinglePass> find_product(const Call& call, c10::Device device) {
  if (!is_call_of(call, "aten::mul", "Tensor")) return std::nullopt;
  const TensorSpec* const left = tensor_at(call, 0);
  const TensorSpec* const right = tensor_at(call, 1);
  for (const TensorSpec* spec : {left, right}) {
    if (spec == nullptr || !is_plain_float(*spec, device) ||
        spec->source == TensorSpec::Source::kSelf) {
      return std::nullopt;
    }
  }
  for (const auto& [factor, other] : {std::pair(left, right), std::pair(right, left)}) {
    const With with = factors_of(factor->sizes, factor->strides, other->sizes, other->strides);
    if (with == With::kNothing) continue;
    return SinglePass{.type = c10::kFloat,
                      .input = factor,
                      .other = other,
                      .with = with,
                      .elements = *count_of(factor->sizes),
                      .width = static_cast<std::uint32_t>(factor->sizes.back())};
  }
  return std::nullopt;
}

std::optional<SinglePass> find_cast(const Call& call, c10::Device device) {
  if (!is_call_of(call, "aten::_to_copy", "")) return std::nullopt;
  const TensorSpec* const made = tensor_at(call, 0);
  if (made == nullptr || !is_plain_float(*made, device) ||
      made->source == TensorSpec::Source::kSelf || !is_contiguous(made->sizes, made->strides)) {
    return std::nullopt;
  }
  const auto type = target_of(call.arguments.size(), [&](std::size_t i) -> const c10::IValue& {
    return call.arguments[i].value;
  });
  const auto count = count_of(made->sizes);
  if (!type || !count) return std::nullopt;
  return SinglePass{.type = *type, .input = made, .elements = *count, .width = *count};
}

std::optional<SinglePass> find_sum(const Call& call, c10::Device device) {
  constexpr std::size_t kArguments = 3, kAlpha = 2;
  if (!is_call_of(call, "aten::add", "Tensor") || call.arguments.size() != kArguments ||
      !is_number_one(call.arguments[kAlpha].value)) {
    return std::nullopt;
  }
  const TensorSpec* wide = tensor_at(call, 0);
  const TensorSpec* narrow = tensor_at(call, 1);
  for (const TensorSpec* spec : {wide, narrow}) {
    if (spec == nullptr || !is_plain_on(*spec, device) ||
        spec->source == TensorSpec::Source::kSelf || !is_contiguous(spec->sizes, spec->strides)) {
      return std::nullopt;
    }
  }
  if (is_16_bits(type_of(*wide))) std::swap(wide, narrow);
  const auto count = count_of(wide->sizes);
  // Of a tensor without dimensions the type counts for less.
  if (!count || wide->sizes.empty() || wide->sizes != narrow->sizes ||
      type_of(*wide) != c10::ScalarType::Float || !is_16_bits(type_of(*narrow))) {
    return std::nullopt;
  }
  return SinglePass{.type = c10::kFloat,
                    .input = wide,
                    .other = narrow,
                    .with = With::kAddend,
                    .addend = type_of(*narrow),
                    .elements = *count,
                    .width = *count};
}

std::optional<SinglePass> find_cast_of_product(const Call& product, const Call& cast,
                                               c10::Device device) {
  const auto converted = find_cast(cast, device);
  auto result = find_product(product, device);
  // Converted may be another view of the product, as long as it is all of it in the same order.
  if (!converted || !result || converted->input->offset != 0 ||
      converted->elements != result->elements) {
    return std::nullopt;
  }
  result->type = converted->type;
  return result;
}

bool may_be_product(const c10::Stack& stack, std::size_t base) {
  const at::Tensor* const one = plain_float_at(stack, base);
  const at::Tensor* const other = plain_float_at(stack, base + 1);
  if (one == nullptr || other == nullptr) return false;
  const auto fits = [](const at::Tensor& factor, const at::Tensor& by) {
    return factors_of(factor.sizes(), factor.strides(), by.sizes(), by.strides()) != With::kNothing;
  };
  return fits(*one, *other) || fits(*other, *one);
}

bool may_be_cast(const c10::Stack& stack, std::size_t base) {
  const at::Tensor* const made = plain_float_at(stack, base);
  return made != nullptr && made->storage_offset() == 0 &&
         is_contiguous(made->sizes(), made->strides()) &&
         target_of(stack.size() - base,
                   [&](std::size_t i) -> const c10::IValue& { return stack[base + i]; });
}

bool may_be_sum(const c10::Stack& stack, std::size_t base) {
  constexpr std::size_t kArguments = 3, kAlpha = 2;
  if (stack.size() - base != kArguments || !is_number_one(stack[base + kAlpha])) return false;
  const at::Tensor* const first = plain_float_at(stack, base);
  const at::Tensor* const wide = first != nullptr ? first : plain_float_at(stack, base + 1);
  const c10::IValue& other = stack[first != nullptr ? base + 1 : base];
  if (wide == nullptr || !other.isTensor() || !other.toTensor().defined()) return false;
  const at::Tensor& narrow = other.toTensor();
  return narrow.layout() == c10::kStrided && is_16_bits(narrow.scalar_type()) && !narrow.is_neg() &&
         count_of(wide->sizes()) && wide->sizes() == narrow.sizes() &&
         is_contiguous(wide->sizes(), wide->strides()) &&
         is_contiguous(narrow.sizes(), narrow.strides());
}

}  // namespace lms::torch
