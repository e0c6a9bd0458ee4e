#include "plan/place/skyline.h"

#include <algorithm>
#include <numeric>

namespace lms {

namespace {

/// For moments 0 to `period`, the first position whose moment is not earlier; moments ascend.
template <class MomentOf>
std::vector<std::uint32_t> first_by_moment(std::size_t count, std::int32_t period,
                                           const MomentOf& moment_of) {
  std::vector<std::uint32_t> first(static_cast<std::size_t>(period) + 1);
  std::uint32_t next = 0;
  for (std::int32_t moment = 0; moment <= period; ++moment) {
    while (next < count && moment_of(next) < moment) ++next;
    first[static_cast<std::size_t>(moment)] = next;
  }
  return first;
}

}  // namespace

Skyline::Skyline(const std::vector<Rectangle>& rectangles, std::int32_t period)
    : rectangles_(rectangles), period_(period), ending_(rectangles.size()) {
  while (leaves_ < rectangles.size()) leaves_ *= 2;
  tree_.resize(2 * static_cast<std::size_t>(leaves_));
  const auto end = [&](std::uint32_t i) {
    return (rectangles[i].begin + rectangles[i].length) % period;
  };
  std::iota(ending_.begin(), ending_.end(), 0);
  std::ranges::stable_sort(ending_, {}, end);
  first_ending_ =
      first_by_moment(ending_.size(), period, [&](std::uint32_t i) { return end(ending_[i]); });
  first_from_ = first_by_moment(rectangles.size(), period,
                                [&](std::uint32_t i) { return rectangles[i].begin; });
}

void Skyline::plant(const std::vector<float>& keys) {
  for (std::size_t i = 0; i < leaves_; ++i) {
    tree_[leaves_ + i] =
        i < keys.size() ? Node{keys[i], rectangles_[i].begin + rectangles_[i].length} : Node{};
  }
  for (std::size_t node = leaves_ - 1; node > 0; --node) join(node);
}

void Skyline::join(std::size_t node) {
  const Node& left = tree_[2 * node];
  const Node& right = tree_[2 * node + 1];
  tree_[node] = {std::max(left.key, right.key), std::min(left.end, right.end)};
}

void Skyline::fell(std::uint32_t rectangle) {
  std::size_t node = leaves_ + rectangle;
  tree_[node] = {};
  while ((node /= 2) > 0) join(node);
}

/// Of the leaves [from, to) below `node`, whose own are [first, last), the one with the highest key
/// that ends by `end`, if that beats what was found.
void Skyline::search(std::size_t node, std::uint32_t first, std::uint32_t last, std::uint32_t from,
                     std::uint32_t to, std::int32_t end) {
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
  found_key_ = kNoKey;
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
  if (found_key_ == kNoKey) return false;
  if (ring_ > 1 && touch_ > 0) prefer_walls(valley, length);
  return true;
}

void Skyline::prefer_walls(const Piece& valley, std::int32_t length) {
  const std::int32_t end = (valley.begin + length) % period_;
  float best = kNoKey;
  const auto consider = [&](std::uint32_t i) {
    const Rectangle& rectangle = rectangles_[i];
    if (rectangle.length > length) return;
    float key = tree_[leaves_ + i].key;  // of a rectangle that is placed: kNoKey
    if (rectangle.begin == valley.begin) key += touch_;
    if ((rectangle.begin + rectangle.length) % period_ == end) key += touch_;
    if (key <= best) return;
    best = key;
    found_ = i;
  };
  consider(found_);
  const auto at = [](const std::vector<std::uint32_t>& first, std::int32_t moment) {
    return first[static_cast<std::size_t>(moment)];
  };
  for (auto i = at(first_from_, valley.begin); i < at(first_from_, valley.begin + 1); ++i) {
    consider(i);
  }
  for (auto i = at(first_ending_, end); i < at(first_ending_, end + 1); ++i) consider(ending_[i]);
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

Bytes Skyline::pack(const std::vector<float>& keys, float touch, std::vector<Bytes>& addresses,
                    Bytes limit) {
  plant(keys);
  touch_ = touch;
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
