#include "tiers/address_map.h"

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
    holes_.erase({capacity_ - end, end});
    pieces_.erase(std::prev(pieces_.end()));
  }
  if (end < capacity) {
    holes_.emplace(capacity - end, end);
    pieces_.emplace_hint(pieces_.end(), end, Piece{capacity - end, false});
  }
  capacity_ = capacity;
}

void AddressMap::take_from(Pieces::iterator hole, Bytes address, Bytes size) {
  const Bytes begin = hole->first;
  const Bytes end = begin + hole->second.size;
  // The first that is put back has the memory of this one (NodeAllocator). Not by extract(): what
  // libstdc++ inserts of a node keeps the allocator for ever.
  holes_.erase({hole->second.size, begin});
  const auto put_hole = [&](Bytes from, Bytes bytes) { holes_.emplace(bytes, from); };
  const auto next = std::next(hole);
  if (begin < address) {
    hole->second.size = address - begin;
    put_hole(begin, address - begin);
    pieces_.emplace_hint(next, address, Piece{size, true});
  } else {
    hole->second = {size, true};
  }
  if (address + size < end) {
    put_hole(address + size, end - address - size);
    pieces_.emplace_hint(next, address + size, Piece{end - address - size, false});
  }
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
  const auto hole = holes_.lower_bound({size, 0});
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
  if (const auto next = std::next(piece); next != pieces_.end() && !next->second.taken) {
    holes_.erase({next->second.size, next->first});
    piece->second.size += next->second.size;
    pieces_.erase(next);
  }
  if (piece != pieces_.begin()) {
    if (const auto before = std::prev(piece); !before->second.taken) {
      holes_.erase({before->second.size, before->first});
      before->second.size += piece->second.size;
      pieces_.erase(piece);
      piece = before;
    }
  }
  holes_.emplace(piece->second.size, piece->first);
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
