#include "tiers/address_map.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace lms {
namespace {

void expect_bytes(Bytes size) {
  if (size <= 0) throw Error("AddressMap: a size of " + std::to_string(size) + " bytes");
}

}  // namespace

Bytes AddressMap::top() const {
  if (pieces_.empty()) return 0;
  const auto& [address, piece] = *pieces_.rbegin();
  return piece.taken ? capacity_ : address;
}

void AddressMap::set_capacity(Bytes capacity) {
  const Bytes end = top();
  if (capacity < end) {
    throw Error("AddressMap: a capacity of " + std::to_string(capacity) + " bytes, but " +
                std::to_string(end) + " are in use");
  }
  if (end < capacity_) {
    remove_hole({capacity_ - end, end});
    pieces_.erase(std::prev(pieces_.end()));
  }
  if (end < capacity) {
    add_hole({capacity - end, end});
    pieces_.emplace_hint(pieces_.end(), end, Piece{capacity - end, false});
  }
  capacity_ = capacity;
}

std::vector<AddressMap::Hole>::iterator AddressMap::first_from(Hole hole) {
  const auto below = [](const Hole& one, const Hole& other) {
    return one.first != other.first ? one.first < other.first : one.second < other.second;
  };
  return std::lower_bound(holes_.begin(), holes_.end(), hole, below);
}

void AddressMap::add_hole(Hole hole) { holes_.insert(first_from(hole), hole); }

void AddressMap::remove_hole(Hole hole) { holes_.erase(first_from(hole)); }

void AddressMap::change_hole(Hole from, Hole to) {
  const auto old = first_from(from);
  const auto place = first_from(to);
  if (place > old) {
    *std::move(old + 1, place, old) = to;
  } else {
    std::move_backward(place, old, old + 1);
    *place = to;
  }
}

void AddressMap::take_from(Pieces::iterator hole, Bytes address, Bytes size) {
  const Bytes begin = hole->first;
  const Bytes end = begin + hole->second.size;
  const Hole whole{hole->second.size, begin};
  const Hole below{address - begin, begin};
  const Hole above{end - address - size, address + size};
  const auto next = std::next(hole);
  if (below.first > 0) {
    hole->second.size = below.first;
    pieces_.emplace_hint(next, address, Piece{size, true});
    change_hole(whole, below);
    if (above.first > 0) add_hole(above);
  } else {
    hole->second = {size, true};
    above.first > 0 ? change_hole(whole, above) : remove_hole(whole);
  }
  if (above.first > 0) pieces_.emplace_hint(next, above.second, Piece{above.first, false});
  used_ += size;
}

bool AddressMap::take_at(Bytes address, Bytes size) {
  expect_bytes(size);
  if (address < 0 || size > capacity_ || address > capacity_ - size) return false;
  const auto piece = std::prev(pieces_.upper_bound(address));
  if (piece->second.taken || piece->first + piece->second.size < address + size) return false;
  take_from(piece, address, size);
  return true;
}

std::optional<Bytes> AddressMap::fit(Bytes size) const {
  expect_bytes(size);
  const auto hole = std::ranges::lower_bound(holes_, Hole{size, 0});
  if (hole == holes_.end()) return std::nullopt;
  return hole->second;
}

std::optional<Bytes> AddressMap::take(Bytes size) {
  const std::optional<Bytes> address = fit(size);
  if (address) take_from(pieces_.find(*address), *address, size);
  return address;
}

void AddressMap::give(Bytes address) {
  auto piece = pieces_.find(address);
  if (piece == pieces_.end() || !piece->second.taken) {
    throw Error("AddressMap: nothing that was taken begins at " + std::to_string(address));
  }
  used_ -= piece->second.size;
  piece->second.taken = false;
  const auto next = std::next(piece);
  const bool joins_next = next != pieces_.end() && !next->second.taken;
  const Hole above = joins_next ? Hole{next->second.size, next->first} : Hole{};
  if (joins_next) {
    piece->second.size += above.first;
    pieces_.erase(next);
  }
  const auto before = piece == pieces_.begin() ? pieces_.end() : std::prev(piece);
  if (before != pieces_.end() && !before->second.taken) {
    const Hole below{before->second.size, before->first};
    before->second.size += piece->second.size;
    pieces_.erase(piece);
    if (joins_next) remove_hole(above);
    change_hole(below, {before->second.size, below.second});
    return;
  }
  const Hole whole{piece->second.size, address};
  joins_next ? change_hole(above, whole) : add_hole(whole);
}

void AddressMap::for_each(const Visit& visit) const {
  for (const auto& [address, piece] : pieces_) {
    if (piece.taken) visit(address, piece.size);
  }
}

void AddressMap::for_overlapping(Bytes address, Bytes size, const Visit& visit) const {
  expect_bytes(size);
  auto piece = pieces_.upper_bound(address);
  if (piece != pieces_.begin()) --piece;
  for (; piece != pieces_.end() && piece->first < address + size; ++piece) {
    const Bytes end = piece->first + piece->second.size;
    if (piece->second.taken && end > address) visit(piece->first, piece->second.size);
  }
}

std::optional<AddressMap::Window> AddressMap::cheapest_window(
    Bytes size, const std::function<double(Bytes address, Bytes stretch)>& cost) const {
  expect_bytes(size);
  struct Stretch {
    Bytes address, size;
    double cost;
  };
  std::vector<Stretch> stretches;
  stretches.reserve(count());
  for_each([&](Bytes address, Bytes bytes) {
    stretches.push_back({address, bytes, cost(address, bytes)});
  });

  std::optional<Window> best;
  double best_cost = 0;
  // Moving a window down to the end of a stretch that is not in it brings no other stretch in, so
  // windows that begin there, or at 0, are enough.
  std::size_t last = 0;  // stretches [first, last) are in the window
  std::size_t fixed = 0;
  double sum = 0;
  Bytes evicted = 0;
  Bytes address = 0;
  for (std::size_t first = 0; address <= capacity_ - size; ++first) {
    for (; last < stretches.size() && stretches[last].address < address + size; ++last) {
      evicted += stretches[last].size;
      if (std::isinf(stretches[last].cost)) {
        ++fixed;
      } else {
        sum += stretches[last].cost;
      }
    }
    if (fixed == 0 && (!best || std::tie(sum, evicted) < std::tie(best_cost, best->evicted))) {
      best = Window{address, size, evicted};
      best_cost = sum;
    }
    if (first == stretches.size()) break;
    const Stretch& gone = stretches[first];
    address = gone.address + gone.size;
    if (last <= first) {
      last = first + 1;
      continue;
    }
    evicted -= gone.size;
    if (std::isinf(gone.cost)) {
      --fixed;
    } else {
      sum -= gone.cost;
    }
    if (last == first + 1) sum = 0;  // what rounding has left
  }
  return best;
}

}  // namespace lms
