#include "foresight/ahead.h"

#include <algorithm>

namespace lms {
namespace {

/// Operators that are looked ahead, at most.
constexpr std::uint64_t kHorizon = 256;
/// What has come and is not needed yet may take this part of the limit.
constexpr Bytes kFlying = 8;
/// What will have to leave next is copied out up to this part of the limit.
constexpr Bytes kClean = 16;
/// Operators between two looks for what will have to leave, at least.
constexpr std::uint64_t kLookEvery = 8;
/// Blocks of all, to be looked at, for each operator between two looks. In so many operators far
/// less is made than what is copied out in one go.
constexpr std::int64_t kLooked = 32;
/// Who has found no room tries again when this part of the way to its use has gone by.
constexpr std::uint64_t kTries = 4;

}  // namespace

void Ahead::collect(const Forecast& forecast, std::vector<Wanted>& wanted) {
  const std::uint64_t now = forecast.now();
  const std::uint64_t end = std::min(now + kHorizon, forecast.horizon());
  // After a jump back, or far ahead, from here.
  if (seen_ < now || seen_ > now + kHorizon) seen_ = now;
  while (seen_ < end) {
    ++seen_;
    forecast.for_expected(seen_, [&](BlockUid uid) { wanted.push_back({uid, seen_}); });
  }
}

void Ahead::act(EngineLock& lock, std::uint64_t now, const std::vector<Wanted>& wanted, Bytes limit,
                const MakeRoom& make_room) {
  for (const Wanted& one : wanted) {
    if (one.block == nullptr || one.due <= now) continue;
    // After a jump back some come a second time.
    while (!wanted_.empty() && wanted_.back().due > one.due) wanted_.pop_back();
    wanted_.push_back(one);
  }
  while (!flying_.empty() && flying_.front().due <= now) {
    flying_bytes_ -= flying_.front().bytes;
    flying_.pop_front();
  }
  if (now < refused_ || now >= next_try_) bring(lock, now, limit, make_room);
  const auto pause = static_cast<std::uint64_t>(engine_.stats(lock).blocks.current / kLooked);
  if (now < looked_ || now >= looked_ + std::max(kLookEvery, pause)) {
    looked_ = now;
    copy_out(lock, limit);
  }
}

void Ahead::bring(EngineLock& lock, std::uint64_t now, Bytes limit, const MakeRoom& make_room) {
  while (!wanted_.empty()) {
    const Wanted one = wanted_.front();
    // It has been foretold of this block itself, and not only of what was there then.
    const bool away = one.due > now && engine_.knows(lock, one.block, one.uid) &&
                      one.block->state == BlockState::kAbsent &&
                      one.block->expected_use == one.due && !one.block->expected_end;
    if (!away) {
      wanted_.pop_front();
      continue;
    }
    const Bytes bytes = one.block->size;
    if (flying_bytes_ + bytes > limit / kFlying && !flying_.empty()) return;
    const std::uint64_t clock = engine_.clock(lock);
    const auto spare = [&](const Block& other) {
      return other.copy_valid && ForesightPolicy::until_needed(other, now, clock) >
                                     2 * static_cast<double>(one.due - now) + 16;
    };
    if (!make_room(lock, bytes, spare)) {
      refused_ = now;
      next_try_ = now + 1 + (one.due - now) / kTries;
      return;
    }
    if (!engine_.knows(lock, one.block, one.uid)) continue;
    if (!engine_.fetch(lock, *one.block)) return;
    if (!wanted_.empty() && wanted_.front().uid == one.uid) wanted_.pop_front();
    flying_.push_back({one.due, bytes});
    flying_bytes_ += bytes;
    copied_ += bytes;
  }
}

void Ahead::begin_anew(EngineLock& /*lock*/) {
  wanted_.clear();
  flying_.clear();
  flying_bytes_ = most_ = 0;
  looked_ = refused_ = next_try_ = 0;
}

bool Ahead::make_room(EngineLock& lock, Engine& engine, Bytes bytes,
                      const std::function<bool(const Block&)>& spare) {
  for (;;) {
    const Bytes over = engine.stats(lock).device.current + bytes - engine.options(lock).limit;
    if (over <= 0) return true;
    Block* const block = engine.next_victim(lock, spare);
    if (block == nullptr || !engine.evict(lock, *block)) return false;
  }
}

/// The next that will have to leave.
void Ahead::copy_out(EngineLock& lock, Bytes limit) {
  const Bytes wanted = limit / kClean;
  const Bytes here = engine_.stats(lock).device.current;
  most_ = std::max(most_, here);
  if (here + 2 * wanted < most_) return;
  std::vector<std::pair<double, Block*>> next;
  engine_.for_each_victim(lock,
                          [&](Block& block, double cost) { next.emplace_back(cost, &block); });
  // Few of many: the cheapest.
  std::ranges::make_heap(next, std::greater<>());
  std::vector<std::pair<Block*, BlockUid>> dirty;
  for (Bytes bytes = 0; bytes < wanted && !next.empty();) {
    std::ranges::pop_heap(next, std::greater<>());
    Block* const block = next.back().second;
    next.pop_back();
    bytes += block->size;
    if (!block->copy_valid) dirty.emplace_back(block, block->uid);
  }
  for (const auto& [block, uid] : dirty) {
    try {
      if (!engine_.knows(lock, block, uid)) continue;
      const Bytes bytes = block->size;
      if (engine_.clean(lock, *block)) copied_ += bytes;
    } catch (const TierFull&) {
      return;
    }
  }
}

}  // namespace lms
