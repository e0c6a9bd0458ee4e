#pragma once

#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lms::torch {

/// At which position of some lists a storage was met first. Asked for every tensor of an
/// optimizer's lists, so it takes memory once: a table by hash, in which the next free place is
/// taken.
class StoragePositions {
 public:
  /// `tensors`: how many will be asked for, at most.
  explicit StoragePositions(std::size_t tensors) {
    std::size_t places = 16;
    while (places < 2 * tensors) places *= 2;
    met_.resize(places);
  }

  /// `position`, if it has not been met before; null is met nowhere.
  std::size_t first(const c10::StorageImpl* storage, std::size_t position) {
    if (storage == nullptr) return position;
    const std::size_t mask = met_.size() - 1;
    std::size_t at = (reinterpret_cast<std::uintptr_t>(storage) >> 4) * 0x9E3779B97F4A7C15U;
    for (at >>= 20; met_[at & mask].first != nullptr; ++at) {
      if (met_[at & mask].first == storage) return met_[at & mask].second;
    }
    met_[at & mask] = {storage, position};
    return position;
  }

 private:
  std::vector<std::pair<const c10::StorageImpl*, std::size_t>> met_;
};

}  // namespace lms::torch
