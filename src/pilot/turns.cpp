#include "pilot/turns.h"

#include <algorithm>
#include <utility>

namespace lms {
namespace {

/// Blocks that never come back are forgotten now and then.
constexpr std::size_t kMostRemembered = 4096;
/// After a wrong guess, so many must be right.
constexpr int kDoubt = 2;

}  // namespace

Turns::Turns(const StepShape& shape)
    : may_turn_(shape.trace.blocks.size()),
      first_use_(may_turn_.size(), shape.operators.size()),
      last_use_(may_turn_.size(), 0),
      only_(may_turn_.size(), 0),
      turning_(may_turn_.size(), kNone) {
  for (std::size_t id = 0; id < may_turn_.size(); ++id) {
    const TraceBlock& block = shape.trace.blocks[id];
    may_turn_[id] = block.lasts();
  }
  for (std::size_t i = 0; i < shape.operators.size(); ++i) {
    for (const auto& touch : shape.operators[i].touches) {
      const auto id = static_cast<std::size_t>(touch.block);
      first_use_[id] = std::min(first_use_[id], i);
      last_use_[id] = i + 1;
      if (touch.writes) may_turn_[id] = false;
    }
  }
  for (const TraceBlockId id : shape.turning) turn(id);
}

void Turns::turn(TraceBlockId id) {
  may_turn_[id] = true;
  turning_[id] = static_cast<std::int32_t>(places_.size());
  places_.emplace_back();
  all_.push_back(id);
  done_[last_use_[id]].push_back(id);
}

std::span<const TraceBlockId> Turns::done(std::size_t moment) const {
  const auto found = done_.find(moment);
  return found == done_.end() ? std::span<const TraceBlockId>() : found->second;
}

void Turns::serves(TraceBlockId id, BlockUid uid) {
  if (!turns(id)) {
    if (only_[id] == 0) only_[id] = uid;
    if (only_[id] == uid) return;
    turn(id);
    places_.back().last = only_[id];
  }
  Place& place = places_[static_cast<std::size_t>(turning_[id])];
  if (place.last != 0) {
    if (place.next.size() >= kMostRemembered) place.next.clear();
    const auto [next, is_new] = place.next.try_emplace(place.last, uid);
    if (!is_new) {
      place.doubt = next->second == uid ? std::max(place.doubt - 1, 0) : kDoubt;
      next->second = uid;
    }
  }
  place.last_but_one = std::exchange(place.last, uid);
}

BlockUid Turns::next(TraceBlockId id, BlockUid uid) const {
  if (!turns(id)) return 0;
  const Place& place = places_[static_cast<std::size_t>(turning_[id])];
  const auto next = place.next.find(uid);
  return place.doubt > 0 || next == place.next.end() ? 0 : next->second;
}

BlockUid Turns::last(TraceBlockId id) const {
  return turns(id) ? places_[static_cast<std::size_t>(turning_[id])].last : 0;
}

BlockUid Turns::last_but_one(TraceBlockId id) const {
  return turns(id) ? places_[static_cast<std::size_t>(turning_[id])].last_but_one : 0;
}

}  // namespace lms
