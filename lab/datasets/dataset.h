#pragma once

// Data sets as sources of samples in plain memory. No PyTorch: see docs/design/0014.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace lms::data {

/// A file that is missing, broken, or says what cannot be. The message names the file, the field or
/// index, what was found, and what would do.
class DataError : public Error {
 public:
  using Error::Error;
};

/// Row-major and dense.
template <typename T>
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<T> values;
};

/// One example, unbatched.
struct Sample {
  std::string name;    ///< unique in its data set: a path or an id, without extension
  Array<float> input;  ///< C×H×W or C×D×H×W; images in RGB, 0 to 1, before normalisation
  Array<std::uint8_t> target;  ///< H×W class ids, 255 void; L×D×H×W of 0 and 1; or {1}: the class
  std::vector<Array<std::uint8_t>> extras;  ///< such as the edges of the labels
};

using Generator = std::mt19937_64;

/// All functions are thread-safe, and functions of their arguments alone.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::size_t size() const = 0;
  /// The sample; whatever is random in it comes from `seed`. Throws DataError.
  [[nodiscard]] virtual Sample get(std::size_t index, std::uint64_t seed) const = 0;
  /// Number of classes (segmentation), or labels (volumes).
  [[nodiscard]] virtual std::size_t classes() const = 0;
  /// One name a class, or empty.
  [[nodiscard]] virtual std::vector<std::string> class_names() const { return {}; }
  /// One RGB colour a class, for pictures; or empty.
  [[nodiscard]] virtual std::vector<std::array<std::uint8_t, 3>> palette() const { return {}; }
};

/// Changes a sample in place.
using Transform = std::function<void(Sample&, Generator&)>;

}  // namespace lms::data
