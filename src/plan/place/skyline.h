#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "plan/place/pack.h"

namespace lms {

/// One way to pack rectangles, from the bottom up. The skyline is, for every moment, the end of
/// what has been placed there. Again and again its lowest valley is taken: of the rectangles that
/// fit between its walls the one with the highest key is placed on its ground; if none fits, the
/// ground rises to the lower wall (what lies below is wasted). About O(n log n).
class Skyline {
 public:
  /// `rectangles` ascending by `begin`, each shorter than `period`; they stay the caller's.
  Skyline(const std::vector<Rectangle>& rectangles, std::int32_t period);

  /// Packs by finite `keys`, writes `addresses` (of the same size) and returns the end of the
  /// highest. Gives up once that cannot be below `limit`, and returns `limit` or more.
  Bytes pack(const std::vector<float>& keys, float touch, std::vector<Bytes>& addresses,
             Bytes limit);

 private:
  static constexpr float kNoKey = -std::numeric_limits<float>::infinity();
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

  /// A piece of the skyline, in a ring by time.
  struct Piece {
    std::int32_t begin = 0;
    Bytes height = 0;
    std::uint32_t before = 0;
    std::uint32_t after = 0;
    bool gone = false;
  };
  /// Of the rectangles below a node of the tree that are not placed yet.
  struct Node {
    float key = kNoKey;         ///< the highest
    std::int32_t end = kNever;  ///< the first moment at which one ends
  };
  struct Low {
    Bytes height;
    std::uint32_t piece;
    bool operator<(const Low& other) const { return height > other.height; }  // lowest first
  };
  void plant(const std::vector<float>& keys);
  void join(std::size_t node);
  void fell(std::uint32_t rectangle);
  void search(std::size_t node, std::uint32_t first, std::uint32_t last, std::uint32_t from,
              std::uint32_t to, std::int32_t end);
  bool find(const Piece& valley, std::int32_t length);
  void prefer_walls(const Piece& valley, std::int32_t length);
  [[nodiscard]] std::int32_t length_of(std::uint32_t piece) const;
  void swallow_level(std::uint32_t piece);
  std::uint32_t insert_after(std::uint32_t piece, std::int32_t begin, Bytes height);
  void push(std::uint32_t piece);
  void put_on(std::uint32_t piece, const Rectangle& rectangle);

  const std::vector<Rectangle>& rectangles_;
  std::int32_t period_;
  std::uint32_t leaves_ = 1;
  std::vector<Node> tree_;
  std::vector<std::uint32_t> first_from_;    // first rectangle that begins at a moment or later
  std::vector<std::uint32_t> ending_;        // rectangles by the moment at which they end
  std::vector<std::uint32_t> first_ending_;  // the first in ending_ of a moment or later
  std::vector<Piece> pieces_;
  std::size_t ring_ = 0;   // number of pieces that are not gone
  std::vector<Low> lows_;  // a heap; entries of other heights than their piece are void
  float touch_ = 0;
  float found_key_ = kNoKey;
  std::uint32_t found_ = 0;
};

}  // namespace lms
