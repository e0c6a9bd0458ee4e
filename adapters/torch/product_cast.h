#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "adapters/torch/recipe.h"

namespace lms::torch {

/// A float32 tensor, perhaps times one number for each of its columns or of its rows, and perhaps
/// converted to 16 bits, without the product: what one pass over memory can compute. The specs
/// belong to the calls.
struct ProductCast {
  enum class By : std::uint8_t { kNothing, kColumns, kRows };

  c10::ScalarType type = c10::ScalarType::Undefined;  ///< BFloat16, Half; Float: not converted
  const TensorSpec* factor = nullptr;
  const TensorSpec* other = nullptr;  ///< factors are exchangeable; null: by nothing
  By by = By::kNothing;               ///< what `other` has a number for each of
  std::uint32_t elements = 0;
  std::uint32_t width = 0;  ///< elements of a row; by nothing: as many as there are

  [[nodiscard]] Bytes bytes() const {
    return static_cast<Bytes>(c10::elementSize(type)) * static_cast<Bytes>(elements);
  }
};

/// Nothing unless `call` is such a product or such a conversion on `device`, and it is certain that
/// one kernel (see ProductCasts) gives the same bits.
std::optional<ProductCast> find_product(const Call& call, c10::Device device);
std::optional<ProductCast> find_cast(const Call& call, c10::Device device);
/// Nothing unless both are, and the second converts all of what the first makes.
std::optional<ProductCast> find_product_cast(const Call& product, const Call& cast,
                                             c10::Device device);

/// The same for calls that have not been recorded: what plans may reckon with. `base`: where the
/// arguments are.
[[nodiscard]] bool may_be_product(const c10::Stack& stack, std::size_t base);
[[nodiscard]] bool may_be_cast(const c10::Stack& stack, std::size_t base);

/// A device's kernels for them. Thread-safe.
class ProductCasts {
 public:
  virtual ~ProductCasts() = default;
  /// False once it has turned out that there are none here.
  [[nodiscard]] virtual bool available() const noexcept = 0;
  /// Queues the kernel on the current stream. False: it has not been queued, and nothing was
  /// written.
  [[nodiscard]] virtual bool launch(const ProductCast& cast, const void* factor, const void* other,
                                    void* result) noexcept = 0;
};

}  // namespace lms::torch
