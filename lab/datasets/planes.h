#pragma once

// Parts and resamplings of planes: what augmentations are made of. For the sources of this folder.

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "lab/datasets/augment.h"
#include "lab/datasets/dataset.h"

namespace lms::data {

/// Throws DataError unless the sample's input is C×H×W (axes = 3) or C×D×H×W (axes = 4), not empty,
/// and target and extras have its sides (or are a single number).
void check_sample(const Sample& sample, std::size_t axes, const char* transform);

/// Each plane of `array` (all axes but the last two) as height × width, where pixel (y, x) is that
/// of (y + top, x + left), `outside` (one value a plane; missing ones are 0) where there is none.
template <typename T>
void cut(Array<T>& array, std::int64_t top, std::int64_t left, std::int64_t height,
         std::int64_t width, const std::vector<T>& outside) {
  const std::size_t axes = array.shape.size();
  const std::int64_t old_height = array.shape[axes - 2];
  const std::int64_t old_width = array.shape[axes - 1];
  std::int64_t planes = 1;
  for (std::size_t i = 0; i + 2 < axes; ++i) planes *= array.shape[i];
  std::vector<T> values(static_cast<std::size_t>(planes * height * width));
  const std::int64_t first = std::clamp<std::int64_t>(-left, 0, width);
  const std::int64_t last = std::clamp<std::int64_t>(old_width - left, first, width);
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    const auto at = static_cast<std::size_t>(plane);
    const T other = at < outside.size() ? outside[at] : T{0};
    for (std::int64_t y = 0; y < height; ++y) {
      T* to = values.data() + (plane * height + y) * width;
      const std::int64_t from_y = y + top;
      if (from_y < 0 || from_y >= old_height || first == last) {
        std::fill_n(to, width, other);
        continue;
      }
      const T* from = array.values.data() + (plane * old_height + from_y) * old_width + left;
      std::fill(to, to + first, other);
      std::copy(from + first, from + last, to + first);
      std::fill(to + last, to + width, other);
    }
  }
  array.shape[axes - 2] = height;
  array.shape[axes - 1] = width;
  array.values = std::move(values);
}

}  // namespace lms::data
