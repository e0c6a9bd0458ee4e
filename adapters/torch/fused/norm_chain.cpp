#include "adapters/torch/fused/norm_chain.h"

#include <limits>
#include <vector>

#include "adapters/torch/operators/call_facts.h"

namespace lms::torch {
namespace {

using Sizes = std::vector<std::int64_t>;

/// The strides of dimensions of one element say nothing.
bool same_layout(const TensorSpec& one, const TensorSpec& other) {
  if (one.sizes != other.sizes || one.strides.size() != other.strides.size()) return false;
  for (std::size_t i = 0; i < one.sizes.size(); ++i) {
    if (one.sizes[i] != 1 && one.strides[i] != other.strides[i]) return false;
  }
  return true;
}

/// True if memory has the elements side by side, the dimensions of `order` from the inside out.
bool dense_in(Numbers sizes, Numbers strides, const std::vector<std::size_t>& order) {
  std::int64_t stride = 1;
  for (const std::size_t dimension : order) {
    if (sizes[dimension] != 1 && strides[dimension] != stride) return false;
    stride *= sizes[dimension];
  }
  return true;
}

bool is_channels_last(Numbers sizes, Numbers strides) {
  return sizes.size() == 4 && dense_in(sizes, strides, {1, 3, 2, 0});
}

/// One value a channel, side by side.
bool is_of_channels(const TensorSpec& spec, std::int64_t channels, c10::Device device) {
  return is_plain_on(spec, device) && spec.sizes == Sizes{channels} &&
         is_contiguous(spec.sizes, spec.strides);
}

bool is_none(const Call& call, std::size_t at) {
  const Call::Argument& argument = call.arguments[at];
  if (argument.kind == Call::Argument::Kind::kTensor) return argument.tensors.front() < 0;
  return argument.kind == Call::Argument::Kind::kValue && argument.value.isNone();
}

class Finder {
 public:
  Finder(std::span<const std::shared_ptr<const Call>> calls, c10::Device device)
      : calls_(calls), device_(device) {}

  std::optional<NormChain> find() {
    if (calls_.empty() || !takes_norm(*calls_[0])) return std::nullopt;
    chain_.calls = 1;
    if (calls_.size() > 1 && takes_add(*calls_[1])) chain_.calls = 2;
    if (chain_.calls < calls_.size() && takes_relu(*calls_[chain_.calls])) ++chain_.calls;
    return chain_;
  }

 private:
  bool takes_norm(const Call& call) {
    using c10::ScalarType;
    const bool norm = is_call_of(call, "aten::native_batch_norm", "") ||
                      is_call_of(call, "aten::cudnn_batch_norm", "");
    if (!norm || call.saved.size() != 2 || call.rounding == Rounding::kOther) return false;
    chain_.rounding = call.rounding;
    chain_.input = tensor_at(call, 0);
    if (chain_.input == nullptr || chain_.input->source == TensorSpec::Source::kSelf) return false;
    const TensorSpec& input = *chain_.input;
    chain_.type = type_of(input);
    if (chain_.type != ScalarType::Float && chain_.type != ScalarType::BFloat16 &&
        chain_.type != ScalarType::Half) {
      return false;
    }
    if (!is_plain_on(input, device_) || input.sizes.size() < 2 ||
        !chain_.set_geometry(input.sizes, input.strides)) {
      return false;
    }
    const auto channels = input.sizes[1];
    for (const TensorSpec& spec : call.saved) {
      if (type_of(spec) != ScalarType::Float || !is_of_channels(spec, channels, device_)) {
        return false;
      }
    }
    chain_.mean = &call.saved[0];
    chain_.deviation = &call.saved[1];
    return takes_parameter(call, 1, channels, chain_.weight) &&
           takes_parameter(call, 2, channels, chain_.bias);
  }

  bool takes_parameter(const Call& call, std::size_t at, std::int64_t channels,
                       const TensorSpec*& taken) {
    if (at >= call.arguments.size()) return false;
    taken = tensor_at(call, at);
    if (taken == nullptr) return is_none(call, at);
    const c10::ScalarType type = type_of(*taken);
    if (type != chain_.type && type != c10::ScalarType::Float) return false;
    if (chain_.parameters != c10::ScalarType::Undefined && chain_.parameters != type) return false;
    chain_.parameters = type;
    return taken->source != TensorSpec::Source::kSelf && is_of_channels(*taken, channels, device_);
  }

  /// The call's first argument is all of what the batch norm has made.
  [[nodiscard]] bool on_result(const Call& call) const {
    const TensorSpec* self = tensor_at(call, 0);
    return self != nullptr && self->source == TensorSpec::Source::kSelf && self->offset == 0 &&
           self->type == chain_.input->type && is_plain_on(*self, device_) &&
           same_layout(*self, *chain_.input);
  }

  bool takes_add(const Call& call) {
    if (!is_call_of(call, "aten::add_", "Tensor") || call.arguments.size() != 3 ||
        !on_result(call)) {
      return false;
    }
    const TensorSpec* other = tensor_at(call, 1);
    if (other == nullptr || other->source == TensorSpec::Source::kSelf ||
        other->type != chain_.input->type || !is_plain_on(*other, device_) ||
        !same_layout(*other, *chain_.input)) {
      return false;
    }
    const c10::IValue& alpha = call.arguments[2].value;
    const bool one =
        (alpha.isInt() && alpha.toInt() == 1) || (alpha.isDouble() && alpha.toDouble() == 1.0);
    if (call.arguments[2].kind != Call::Argument::Kind::kValue || !one) return false;
    chain_.other = other;
    return true;
  }

  bool takes_relu(const Call& call) {
    const bool leaky = is_call_of(call, "aten::leaky_relu_", "");
    if ((!leaky && !is_call_of(call, "aten::relu_", "")) || !on_result(call)) return false;
    if (leaky) {
      if (call.arguments.size() != 2 || call.arguments[1].kind != Call::Argument::Kind::kValue) {
        return false;
      }
      const c10::IValue& slope = call.arguments[1].value;
      if (!slope.isDouble() && !slope.isInt()) return false;
      chain_.slope = static_cast<float>(slope.toScalar().toDouble());
    }
    return chain_.relu = true;
  }

  std::span<const std::shared_ptr<const Call>> calls_;
  c10::Device device_;
  NormChain chain_;
};

}  // namespace

bool NormChain::set_geometry(Numbers sizes, Numbers strides) {
  // PyTorch counts in 64 bits beyond that, with another kernel.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size <= 0 || size >= kMost) return false;
    count *= size;
    if (count >= kMost) return false;
  }
  if (sizes.size() < 2) return false;
  const bool whole = is_contiguous(sizes, strides);
  if (!whole && !is_channels_last(sizes, strides)) return false;
  elements = static_cast<std::uint32_t>(count);
  channels = static_cast<std::uint32_t>(sizes[1]);
  plane = whole ? static_cast<std::uint32_t>(count / (sizes[0] * sizes[1])) : 1;
  return true;
}

Bytes NormChain::bytes() const {
  return static_cast<Bytes>(elements) * static_cast<Bytes>(c10::elementSize(type));
}

std::optional<NormChain> find_norm_chain(std::span<const std::shared_ptr<const Call>> calls,
                                         c10::Device device) {
  return Finder(calls, device).find();
}

}  // namespace lms::torch
