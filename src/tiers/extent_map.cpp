#include "tiers/extent_map.h"

#include <iterator>

namespace lms {

void ExtentMap::insert(Bytes offset, Bytes size) {
  by_offset_.emplace(offset, size);
  by_size_.emplace(size, offset);
  free_bytes_ += size;
}

void ExtentMap::erase(ByOffset::iterator range) {
  by_size_.erase({range->second, range->first});
  free_bytes_ -= range->second;
  by_offset_.erase(range);
}

void ExtentMap::put(Bytes offset, Bytes size) {
  const auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      size += previous->second;
      erase(previous);
    }
  }
  if (next != by_offset_.end() && offset + size == next->first) {
    size += next->second;
    erase(next);
  }
  insert(offset, size);
}

std::optional<Bytes> ExtentMap::take(Bytes size) {
  const auto best = by_size_.lower_bound({size, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [whole, offset] = *best;
  erase(by_offset_.find(offset));
  if (whole > size) insert(offset + size, whole - size);
  return offset;
}

std::optional<Bytes> ExtentMap::fit(Bytes size) const {
  const auto best = by_size_.lower_bound({size, 0});
  if (best == by_size_.end()) return std::nullopt;
  return best->first;
}

Bytes ExtentMap::tail(Bytes end) const {
  const auto next = by_offset_.lower_bound(end);
  if (next == by_offset_.begin()) return 0;
  const auto last = std::prev(next);
  return last->first + last->second == end ? last->second : 0;
}

void ExtentMap::cut_tail(Bytes end, Bytes size) {
  if (size == 0) return;
  const auto last = std::prev(by_offset_.lower_bound(end));
  const auto [offset, whole] = *last;
  erase(last);
  if (whole > size) insert(offset, whole - size);
}

}  // namespace lms
