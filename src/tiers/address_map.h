#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/node_allocator.h"

namespace lms {

/// Which stretches of an address range [0, capacity) are taken. Knows addresses only, owns nothing;
/// what sizes and addresses are multiples of is the caller's affair. Not thread-safe. Sizes given
/// are > 0 (else Error). n: number of stretches taken. Callbacks must not change the map. Where it
/// says O(log n), holes are also moved in a list, by the thousand in a microsecond.
class AddressMap {
 public:
  using Visit = std::function<void(Bytes address, Bytes size)>;

  explicit AddressMap(Bytes capacity = 0) { set_capacity(capacity); }

  /// Grows or shrinks the range at its end. Throws Error if a taken stretch would lie outside.
  void set_capacity(Bytes capacity);

  /// Takes exactly [address, address + size). False, with nothing changed, if a byte of it is taken
  /// or lies outside the range. O(log n).
  bool take_at(Bytes address, Bytes size);

  /// Takes `size` bytes at the beginning of the smallest hole that holds them, the lowest of
  /// equals. Returns the address, or nothing. O(log n).
  std::optional<Bytes> take(Bytes size);

  /// Where take(size) would go. O(log n).
  [[nodiscard]] std::optional<Bytes> fit(Bytes size) const;

  /// Frees the stretch that begins at `address`. Throws Error if none does. O(log n).
  void give(Bytes address);

  [[nodiscard]] Bytes used() const { return used_; }
  [[nodiscard]] Bytes capacity() const { return capacity_; }
  [[nodiscard]] Bytes top() const;  ///< end of the highest taken stretch; 0 if there is none
  [[nodiscard]] Bytes largest_hole() const { return holes_.empty() ? 0 : holes_.back().first; }
  [[nodiscard]] std::size_t count() const { return pieces_.size() - holes_.size(); }

  /// Every taken stretch, by ascending address.
  void for_each(const Visit& visit) const;

  /// The taken stretches that share a byte with [address, address + size), by ascending address.
  /// O(log n + stretches visited).
  void for_overlapping(Bytes address, Bytes size, const Visit& visit) const;

  /// A place for something, if the taken stretches in it go away first.
  struct Window {
    Bytes address = 0;
    Bytes size = 0;     ///< as asked for
    Bytes evicted = 0;  ///< bytes of all stretches that share a byte with it
  };

  /// The `size` contiguous bytes that are cheapest to clear: `cost` (>= 0; infinite: may not move)
  /// is asked once for every stretch, and added up over those that share a byte with the window.
  /// Of equals the one with fewer bytes to evict, then the lowest. Nothing if every window holds a
  /// stretch that may not move, or `size` exceeds the capacity. O(n).
  [[nodiscard]] std::optional<Window> cheapest_window(
      Bytes size, const std::function<double(Bytes address, Bytes stretch)>& cost) const;

 private:
  struct Piece {
    Bytes size = 0;
    bool taken = false;
  };
  using Pieces = std::map<Bytes, Piece, std::less<>, NodeAllocator<std::pair<const Bytes, Piece>>>;

  void take_from(Pieces::iterator hole, Bytes address, Bytes size);

  // Taken stretches and holes cover the range without a gap, and no hole follows another.
  Pieces pieces_;                        // address -> piece
  using Hole = std::pair<Bytes, Bytes>;  // (size, address)
  /// The first hole that is no smaller, and of equals no lower.
  std::vector<Hole>::iterator first_from(Hole hole);
  void add_hole(Hole hole);
  void remove_hole(Hole hole);
  void change_hole(Hole from, Hole to);

  std::vector<Hole> holes_;  // ascending: there are few, and one changes with every call
  Bytes capacity_ = 0;
  Bytes used_ = 0;
};

}  // namespace lms
