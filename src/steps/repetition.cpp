#include "steps/repetition.h"

#include <algorithm>

namespace lms {
namespace {

/// A step may leave this part of what it takes in between.
constexpr Bytes kTrifle = 64;

Bytes live_before(const StepLog& log, std::uint64_t number) {
  return log.at(number - 1).live_after;
}

/// Between two operators: its release belongs to the earlier, its allocation to the later.
bool came_and_went(const KnownBlock& block) { return block.death < block.birth; }

/// True if the operators from `a` on, `lag` of them in a circle that begins at `start`, come before
/// those from `b` on in an order that does not depend on where the circle begins.
bool comes_before(const StepLog& log, std::uint64_t start, std::uint64_t lag, std::uint64_t a,
                  std::uint64_t b) {
  for (std::uint64_t i = 0; i < lag; ++i) {
    const std::uint64_t left = log.at(start + (a - start + i) % lag).signature;
    const std::uint64_t right = log.at(start + (b - start + i) % lag).signature;
    if (left != right) return left < right;
  }
  return false;
}

}  // namespace

void Repetition::begin(std::uint64_t lag, std::uint64_t next) {
  lag_ = lag;
  begun_ = next;
  restart(next);
}

void Repetition::restart(std::uint64_t next) {
  start_ = next_ = next;
  looked_ = false;
  boundary_.reset();
  if (++epoch_ == 0) {
    partners_.clear();
    epoch_ = 1;
  }
}

Repetition::Verdict Repetition::follow(const StepLog& log) {
  const bool alike = log.at(next_).signature == log.at(next_ - lag_).signature;
  if (alike && same_blocks(log)) {
    ++next_;
    return Verdict::kSame;
  }
  restart(next_ + 1);
  return alike ? Verdict::kOtherBlocks : Verdict::kOther;
}

bool Repetition::same_blocks(const StepLog& log) {
  const KnownBlocks& blocks = log.blocks();
  if (partners_.size() < blocks.slots()) {
    partners_.resize(std::max(blocks.slots(), 2 * partners_.size()));
  }
  const std::uint64_t past = next_ - lag_;
  if (past > log.first() && !pair_changes(log, past - 1, next_ - 1, Part::kAllocsAfter)) {
    return false;
  }
  // Uses before changes: a temporary must not be gone before it is used.
  const auto& before = log.at(past).touches;
  const auto& now = log.at(next_).touches;
  if (before.size() != now.size()) return false;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (!pair(blocks, before[i].slot, now[i].slot)) return false;
  }
  return pair_changes(log, past, next_, Part::kInside) &&
         pair_changes(log, past, next_, Part::kReleasesAfter);
}

bool Repetition::pair_changes(const StepLog& log, std::uint64_t earlier, std::uint64_t later,
                              Part part) {
  const auto& before = log.at(earlier).changes;
  const auto& now = log.at(later).changes;
  const auto wanted = [&](const LoggedOperator::Change& change) {
    if (part == Part::kInside) return change.inside;
    return !change.inside && change.alloc == (part == Part::kAllocsAfter);
  };
  const auto find = [&](const auto& changes, std::size_t at) {
    while (at < changes.size() && !wanted(changes[at])) ++at;
    return at;
  };
  std::size_t i = find(before, 0);
  std::size_t k = find(now, 0);
  for (; i < before.size() && k < now.size(); i = find(before, i + 1), k = find(now, k + 1)) {
    if (before[i].alloc != now[k].alloc) return false;
    const std::uint32_t from = before[i].slot;
    const std::uint32_t to = now[k].slot;
    if (now[k].alloc) {
      const bool gone = came_and_went(log.blocks()[from]);
      if (gone != came_and_went(log.blocks()[to])) return false;
      if (!gone && !match(from, to)) return false;
    } else {
      if (!pair(log.blocks(), from, to)) return false;
      // Neither is ever met again in this role; their slots may become others'.
      partners_[from].later_epoch = 0;
      partners_[to].earlier_epoch = 0;
    }
  }
  return i >= before.size() && k >= now.size();
}

/// Notes that they correspond. False if that contradicts what has been noted.
bool Repetition::match(std::uint32_t earlier, std::uint32_t later) {
  Partners& from = partners_[earlier];
  Partners& to = partners_[later];
  if (from.later_epoch == epoch_) return from.later == later;
  if (to.earlier_epoch == epoch_) return false;
  from.later = later;
  from.later_epoch = epoch_;
  to.earlier = earlier;
  to.earlier_epoch = epoch_;
  return true;
}

/// The same for blocks that are met otherwise than by being born.
bool Repetition::pair(const KnownBlocks& blocks, std::uint32_t earlier, std::uint32_t later) {
  const bool met = partners_[earlier].later_epoch == epoch_;
  if (!met && earlier != later && !may_correspond(blocks[earlier], blocks[later])) return false;
  return match(earlier, later);
}

bool Repetition::may_correspond(const KnownBlock& earlier, const KnownBlock& later) const {
  const auto lag = static_cast<std::int64_t>(lag_);
  const auto begin = static_cast<std::int64_t>(start_) - lag;
  // Their allocations belong to this very operator or the next, and must agree when paired.
  if (earlier.birth >= begin) return later.birth == earlier.birth + lag;
  return later.birth >= begin && later.birth < begin + lag;
}

std::optional<std::uint64_t> Repetition::boundary(const StepLog& log) {
  if (looked_ || !active() || next_ - start_ < lag_) return boundary_;
  // The last whole period, counted from the start.
  const std::uint64_t end = next_ - (next_ - start_) % lag_;
  const std::uint64_t begin = end - lag_;
  if (begin <= log.first()) return std::nullopt;
  looked_ = true;
  Bytes least = live_before(log, begin);
  Bytes most = least;
  for (std::uint64_t i = begin; i < end; ++i) {
    least = std::min(least, live_before(log, i));
    most = std::max(most, live_before(log, i));
  }
  const Bytes growth = live_before(log, end) - live_before(log, begin);
  if (std::max(growth, -growth) * kTrifle > most - least) return boundary_;

  std::uint64_t last = begin;  // the last point with the fewest bytes, a period before
  for (std::uint64_t i = begin; i < end; ++i) {
    if (live_before(log, i) == least) last = i;
  }
  std::uint64_t longest = 0;
  std::uint64_t way = lag_ - (last - begin);
  for (std::uint64_t i = begin; i < end; ++i, ++way) {
    if (live_before(log, i) != least) continue;
    if (way > longest || (way == longest && comes_before(log, begin, lag_, i, *boundary_))) {
      longest = way;
      boundary_ = i;
    }
    way = 0;
  }
  return boundary_;
}

}  // namespace lms
