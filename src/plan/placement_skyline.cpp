#include "plan/placement_skyline.h"

#include <algorithm>

namespace lms {

Skyline::Skyline(const std::vector<Rectangle>& rectangles, std::int32_t period)
    : rectangles_(rectangles), period_(period) {
  while (leaves_ < rectangles.size()) leaves_ *= 2;
  tree_.resize(2 * static_cast<std::size_t>(leaves_));
  first_from_.resize(static_cast<std::size_t>(period) + 1);
  std::uint32_t next = 0;
  for (std::int32_t moment = 0; moment <= period; ++moment) {
    while (next < rectangles.size() && rectangles[next].begin < moment) ++next;
    first_from_[static_cast<std::size_t>(moment)] = next;
  }
}

void Skyline::plant(const std::vector<double>& keys) {
  for (std::size_t i = 0; i < leaves_; ++i) {
    tree_[leaves_ + i] =
        i < keys.size() ? Node{keys[i], rectangles_[i].begin + rectangles_[i].length} : Node{};
  }
  for (std::size_t node = leaves_ - 1; node > 0; --node) {
    const Node& left = tree_[2 * node];
    const Node& right = tree_[2 * node + 1];
    tree_[node] = {std::max(left.key, right.key), std::min(left.end, right.end)};
  }
}

void Skyline::fell(std::uint32_t rectangle) {
  std::uint32_t node = leaves_ + rectangle;
  tree_[node] = {};
  while ((node /= 2) > 0) {
    const Node& left = tree_[2 * node];
    const Node& right = tree_[2 * node + 1];
    tree_[node] = {std::max(left.key, right.key), std::min(left.end, right.end)};
  }
}

/// Of the leaves [from, to) below `node`, whose own are [first, last), the one with the highest key
/// that ends by `end`, if that beats what was found.
void Skyline::search(std::uint32_t node, std::uint32_t first, std::uint32_t last,
                     std::uint32_t from, std::uint32_t to, std::int32_t end) {
  if (last <= from || to <= first) return;
  if (tree_[node].key <= found_key_ || tree_[node].end > end) return;
  if (last - first == 1) {
    found_key_ = tree_[node].key;
    found_ = first;
    return;
  }
  const std::uint32_t middle = first + (last - first) / 2;
  const bool left_first = tree_[2 * node].key >= tree_[2 * node + 1].key;
  if (left_first) search(2 * node, first, middle, from, to, end);
  search(2 * node + 1, middle, last, from, to, end);
  if (!left_first) search(2 * node, first, middle, from, to, end);
}

bool Skyline::find(const Piece& valley, std::int32_t length) {
  found_key_ = -1;
  const auto all = static_cast<std::uint32_t>(rectangles_.size());
  const auto first = [this](std::int32_t t) { return first_from_[static_cast<std::size_t>(t)]; };
  const std::int32_t end = valley.begin + length;
  if (ring_ == 1) {
    search(1, 0, leaves_, 0, all, kNever - 1);
  } else if (end <= period_) {
    search(1, 0, leaves_, first(valley.begin), end == period_ ? all : first(end), end);
  } else {
    search(1, 0, leaves_, first(valley.begin), all, end);
    search(1, 0, leaves_, 0, first(end - period_), end - period_);
  }
  return found_key_ >= 0;
}

std::int32_t Skyline::length_of(std::uint32_t piece) const {
  const std::int32_t length = pieces_[pieces_[piece].after].begin - pieces_[piece].begin;
  return length > 0 ? length : length + period_;
}

/// Joins neighbours of the same height.
void Skyline::swallow_level(std::uint32_t piece) {
  Piece& self = pieces_[piece];
  while (ring_ > 1 && pieces_[self.after].height == self.height) {
    Piece& next = pieces_[self.after];
    next.gone = true;
    self.after = next.after;
    pieces_[self.after].before = piece;
    --ring_;
  }
  while (ring_ > 1 && pieces_[self.before].height == self.height) {
    Piece& previous = pieces_[self.before];
    previous.gone = true;
    self.begin = previous.begin;
    self.before = previous.before;
    pieces_[self.before].after = piece;
    --ring_;
  }
}

std::uint32_t Skyline::insert_after(std::uint32_t piece, std::int32_t begin, Bytes height) {
  const auto made = static_cast<std::uint32_t>(pieces_.size());
  const std::uint32_t after = pieces_[piece].after;
  pieces_.push_back({begin % period_, height, piece, after, false});
  pieces_[piece].after = made;
  pieces_[after].before = made;
  ++ring_;
  push(made);
  return made;
}

void Skyline::push(std::uint32_t piece) {
  lows_.push_back({pieces_[piece].height, piece});
  std::push_heap(lows_.begin(), lows_.end());
}

/// Raises the ground of a valley where the rectangle stands on it.
void Skyline::put_on(std::uint32_t piece, const Rectangle& rectangle) {
  if (ring_ == 1) pieces_[piece].begin = rectangle.begin;  // a plain has no walls
  const std::int32_t length = length_of(piece);
  const Bytes ground = pieces_[piece].height;
  std::int32_t offset = rectangle.begin - pieces_[piece].begin;
  if (offset < 0) offset += period_;
  std::uint32_t top = piece;
  if (offset > 0) {
    top = insert_after(piece, rectangle.begin, ground + rectangle.size);
  } else {
    pieces_[piece].height = ground + rectangle.size;
  }
  if (offset + rectangle.length < length) {
    insert_after(top, rectangle.begin + rectangle.length, ground);
  }
  push(piece);
}

Bytes Skyline::pack(const std::vector<double>& keys, std::vector<Bytes>& addresses, Bytes limit) {
  plant(keys);
  pieces_.assign(1, Piece{});
  ring_ = 1;
  lows_.clear();
  push(0);
  Bytes highest = 0;
  for (std::size_t left = rectangles_.size(); left > 0;) {
    const Low low = lows_.front();
    std::pop_heap(lows_.begin(), lows_.end());
    lows_.pop_back();
    Piece& valley = pieces_[low.piece];
    if (valley.gone || valley.height != low.height) continue;
    swallow_level(low.piece);
    if (!find(valley, length_of(low.piece))) {
      valley.height = std::min(pieces_[valley.before].height, pieces_[valley.after].height);
      push(low.piece);
      continue;
    }
    const Rectangle& rectangle = rectangles_[found_];
    addresses[found_] = low.height;
    highest = std::max(highest, low.height + rectangle.size);
    if (highest >= limit) return highest;
    fell(found_);
    put_on(low.piece, rectangle);
    --left;
  }
  return highest;
}

}  // namespace lms
