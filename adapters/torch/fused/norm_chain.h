#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "adapters/torch/operators/call.h"

namespace lms::torch {

/// The head of a lineage that one pass over memory can compute: a batch norm from its saved
/// statistics, then perhaps other + result, then perhaps relu(result) or leaky_relu(result), in
/// place. The specs belong to the calls.
struct NormChain {
  std::size_t calls = 0;  ///< that are taken
  c10::ScalarType type = c10::ScalarType::Undefined;
  c10::ScalarType parameters =
      c10::ScalarType::Undefined;  ///< of weight and bias, if there are any
  const TensorSpec* input = nullptr;
  const TensorSpec* weight = nullptr;  ///< null: 1
  const TensorSpec* bias = nullptr;    ///< null: 0
  const TensorSpec* mean = nullptr;
  const TensorSpec* deviation = nullptr;  ///< inverse
  const TensorSpec* other = nullptr;      ///< null: nothing is added
  bool relu = false;                      ///< or, with a slope, leaky_relu
  std::optional<float> slope;
  Rounding rounding = Rounding::kPlain;
  /// Element i, as memory has them, is of channel (i / plane) % channels.
  std::uint32_t elements = 0;
  std::uint32_t channels = 0;
  std::uint32_t plane = 0;

  [[nodiscard]] Bytes bytes() const;
  /// Sets how elements and channels lie. False: no kernel knows tensors like these.
  [[nodiscard]] bool set_geometry(std::span<const std::int64_t> sizes,
                                  std::span<const std::int64_t> strides);
};

/// Nothing unless the calls begin with a chain on `device` of which it is certain that one kernel
/// (see NormKernels) gives the same bits as one call after the other.
std::optional<NormChain> find_norm_chain(std::span<const std::shared_ptr<const Call>> calls,
                                         c10::Device device);

}  // namespace lms::torch
