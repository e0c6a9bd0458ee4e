#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/node_allocator.h"

namespace lms {

/// The free ranges of an address space: best fit, neighbours coalesced. Knows offsets only, owns
/// nothing. Not thread-safe. Operations take O(log ranges).
class ExtentMap {
 public:
  /// Adds `[offset, offset + size)`, which must not overlap a free range (size > 0).
  void put(Bytes offset, Bytes size);

  /// Takes `size` bytes (> 0) from the beginning of the smallest range that holds them, the lowest
  /// of equals. Returns the offset, or nothing.
  std::optional<Bytes> take(Bytes size);

  /// The size of the range that take(size) would cut, or nothing.
  [[nodiscard]] std::optional<Bytes> fit(Bytes size) const;

  /// The size of the free range that ends at `end`; 0 when there is none.
  [[nodiscard]] Bytes tail(Bytes end) const;

  /// Removes the last `size` bytes of the free range that ends at `end` (size <= tail(end)).
  void cut_tail(Bytes end, Bytes size);

  [[nodiscard]] Bytes free_bytes() const { return free_bytes_; }
  [[nodiscard]] Bytes largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  [[nodiscard]] std::size_t ranges() const { return by_offset_.size(); }

 private:
  using ByOffset =
      std::map<Bytes, Bytes, std::less<>, NodeAllocator<std::pair<const Bytes, Bytes>>>;
  using Extent = std::pair<Bytes, Bytes>;

  void insert(Bytes offset, Bytes size);
  void erase(ByOffset::iterator range);

  ByOffset by_offset_;                                            // offset -> size
  std::set<Extent, std::less<>, NodeAllocator<Extent>> by_size_;  // (size, offset)
  Bytes free_bytes_ = 0;
};

}  // namespace lms
