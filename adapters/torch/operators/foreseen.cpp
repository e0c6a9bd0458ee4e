#include "adapters/torch/operators/foreseen.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "adapters/torch/operators/results.h"
#include "base/mixed.h"

namespace lms::torch {
namespace {

/// So many patterns are kept; then all are forgotten.
constexpr std::size_t kMost = 1024;

enum Tag : std::int64_t { kNothing, kNoTensor, kTensor, kInt, kBool, kDouble, kInts, kDevice };

/// A call but for what its sizes are.
class Pattern {
 public:
  /// Nothing: it has an argument of another kind, or memory in another order.
  static std::optional<Pattern> of(std::uint64_t operator_key,
                                   std::span<const c10::IValue> arguments) {
    Pattern pattern;
    pattern.add({std::bit_cast<std::int64_t>(operator_key),
                 static_cast<std::int64_t>(c10::get_default_dtype_as_scalartype())});
    for (const c10::IValue& value : arguments) {
      if (!pattern.add(value)) return std::nullopt;
    }
    return pattern;
  }

  /// A size of a result, as Known has it; nothing: it is not one of the call's, or may as well be
  /// one of its numbers.
  [[nodiscard]] std::optional<std::int64_t> place_of(std::int64_t size) const {
    if (size <= 1) return size;
    const auto place = std::ranges::find(sizes, size);
    if (place == sizes.end() || std::ranges::find(numbers_, size) != numbers_.end()) {
      return std::nullopt;
    }
    return place - sizes.begin() + 2;
  }

  std::vector<std::int64_t> key;
  std::vector<std::int64_t> sizes;  ///< each above 1, once

 private:
  bool add(const c10::IValue& value) {
    if (value.isNone()) return add({kNothing});
    if (value.isTensor()) return add_tensor(value.toTensor());
    if (value.isBool()) return add({kBool, static_cast<std::int64_t>(value.toBool())});
    if (value.isDouble()) return add({kDouble, std::bit_cast<std::int64_t>(value.toDouble())});
    if (value.isDevice()) {
      const c10::Device device = value.toDevice();
      return add({kDevice, static_cast<std::int64_t>(device.type()), device.index()});
    }
    if (value.isInt()) return add_number(kInt, value.toInt());
    if (!value.isIntList()) return false;
    const auto numbers = value.toIntVector();
    add({kInts, static_cast<std::int64_t>(numbers.size())});
    return std::ranges::all_of(numbers, [&](std::int64_t n) { return add_number(kInt, n); });
  }

  bool add(std::initializer_list<std::int64_t> parts) {
    key.insert(key.end(), parts);
    return true;
  }

  bool add_number(Tag tag, std::int64_t number) {
    numbers_.push_back(number);
    return add({tag, number});
  }

  bool add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return add({kNoTensor});
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) return false;
    add({kTensor, static_cast<std::int64_t>(tensor.scalar_type()),
         static_cast<std::int64_t>(tensor.device().type()),
         static_cast<std::int64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()),
         tensor.dim()});
    for (const std::int64_t size : tensor.sizes()) {
      if (size > 1 && std::ranges::find(sizes, size) == sizes.end()) sizes.push_back(size);
      key.push_back(size <= 1 ? size : std::ranges::find(sizes, size) - sizes.begin() + 2);
    }
    return true;
  }

  std::vector<std::int64_t> numbers_;
};

}  // namespace

std::size_t ForeseenResults::Hash::operator()(const std::vector<std::int64_t>& key) const noexcept {
  std::uint64_t state = key.size();
  for (const std::int64_t part : key) state = mixed(state, std::bit_cast<std::uint64_t>(part));
  return state;
}

ForeseenResults::Result ForeseenResults::of(std::uint64_t operator_key,
                                            const c10::OperatorHandle& op,
                                            std::span<const c10::IValue> arguments,
                                            c10::Device device) {
  auto pattern = Pattern::of(operator_key, arguments);
  if (pattern) {
    const auto row = known_.find(pattern->key);
    if (row != known_.end()) {
      if (!row->second.type) return {};
      std::vector<std::int64_t> sizes;
      for (const std::int64_t place : row->second.sizes) {
        sizes.push_back(place <= 1 ? place : pattern->sizes[static_cast<std::size_t>(place - 2)]);
      }
      return {at::detail::empty_meta(sizes, *row->second.type), /*asked=*/false};
    }
  }
  std::vector<at::Tensor> made = results_foreseen(op, arguments, device);
  Result result{made.size() == 1 ? std::move(made.front()) : at::Tensor(), /*asked=*/true};
  if (!pattern) return result;
  Known known;
  if (result.tensor.defined()) {
    if (!result.tensor.is_contiguous()) return result;
    known.type = result.tensor.scalar_type();
    for (const std::int64_t size : result.tensor.sizes()) {
      const auto place = pattern->place_of(size);
      if (!place) return result;
      known.sizes.push_back(*place);
    }
  }
  if (known_.size() >= kMost) known_.clear();
  known_.emplace(std::move(pattern->key), std::move(known));
  return result;
}

}  // namespace lms::torch
