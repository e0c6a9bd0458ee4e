#pragma once

#include <algorithm>
#include <vector>

namespace lms {

/// The upper median of values in any order, of which there is at least one. Puts them in another.
inline double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace lms
