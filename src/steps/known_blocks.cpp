#include "steps/known_blocks.h"

namespace lms {

std::size_t KnownBlocks::home(BlockUid uid) const {
  return static_cast<std::size_t>((uid * 0x9E3779B97F4A7C15U) >> shift_);
}

/// Where `uid` is, or the empty place where it belongs.
std::size_t KnownBlocks::place_of(BlockUid uid) const {
  const std::size_t mask = places_.size() - 1;
  std::size_t place = home(uid);
  while (places_[place] != kNobody && blocks_[places_[place]].uid != uid) {
    place = (place + 1) & mask;
  }
  return place;
}

std::optional<std::uint32_t> KnownBlocks::find(BlockUid uid) const {
  if (places_.empty()) return std::nullopt;
  const std::uint32_t slot = places_[place_of(uid)];
  if (slot == kNobody) return std::nullopt;
  return slot;
}

std::uint32_t KnownBlocks::insert(BlockUid uid, Bytes bytes, std::int64_t birth) {
  if (2 * (count_ + 1) > places_.size()) grow();
  std::uint32_t slot = 0;
  if (free_.empty()) {
    slot = static_cast<std::uint32_t>(blocks_.size());
    blocks_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  places_[place_of(uid)] = slot;
  blocks_[slot] = {.uid = uid, .bytes = bytes, .birth = birth};
  ++count_;
  return slot;
}

void KnownBlocks::erase(std::uint32_t slot) {
  const std::size_t mask = places_.size() - 1;
  std::size_t hole = place_of(blocks_[slot].uid);
  places_[hole] = kNobody;
  // Those behind that would be looked for from before the hole move up into it.
  for (std::size_t at = (hole + 1) & mask; places_[at] != kNobody; at = (at + 1) & mask) {
    const std::size_t wanted = home(blocks_[places_[at]].uid);
    if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
    places_[hole] = places_[at];
    places_[at] = kNobody;
    hole = at;
  }
  blocks_[slot] = {};
  free_.push_back(slot);
  --count_;
}

void KnownBlocks::clear() { *this = {}; }

void KnownBlocks::grow() {
  const std::vector<std::uint32_t> old = std::move(places_);
  places_.assign(old.empty() ? 64 : 2 * old.size(), kNobody);
  shift_ = 64;
  for (std::size_t size = places_.size(); size > 1; size /= 2) --shift_;
  for (const std::uint32_t slot : old) {
    if (slot != kNobody) places_[place_of(blocks_[slot].uid)] = slot;
  }
}

}  // namespace lms
