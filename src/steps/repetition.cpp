#include "steps/repetition.h"

#include <algorithm>
#include <ranges>
#include <unordered_map>
#include <unordered_set>

namespace lms {
namespace {

/// A step may leave this part of what it takes in between.
constexpr Bytes kTrifle = 64;
/// Where sizes differ, what is carried over the step's end is larger or smaller, too.
constexpr Bytes kTrifleOfSizes = 8;

Bytes live_before(const StepLog& log, std::uint64_t number) {
  return log.at(number - 1).live_after;
}

/// Others may be there in one size of the step, and not in another.
bool counts_for_form(const KnownBlock& block) { return !block.marginal && !block.temporary(); }

/// By how much the run [begin, end) makes more live. What it has been the first to use was there
/// before, and so is no growth.
Bytes growth_of(const StepLog& log, std::uint64_t begin, std::uint64_t end) {
  Bytes growth = live_before(log, end) - live_before(log, begin);
  const KnownBlocks& blocks = log.blocks();
  std::unordered_set<std::uint32_t> seen;
  for (std::uint64_t i = begin; i < end; ++i) {
    for (const auto& touch : log.at(i).touches) {
      const KnownBlock& block = blocks[touch.slot];
      const bool first = block.birth == KnownBlock::kBefore &&
                         block.heard == static_cast<std::int64_t>(i) &&
                         block.death >= static_cast<std::int64_t>(end);
      if (first && seen.insert(touch.slot).second) growth -= block.bytes;
    }
  }
  return growth;
}

/// True if the operators from `a` on, `lag` of them in a circle that begins at `start`, come before
/// those from `b` on in an order that does not depend on where the circle begins.
bool comes_before(const StepLog& log, Repetition::Alike alike, std::uint64_t start,
                  std::uint64_t lag, std::uint64_t a, std::uint64_t b) {
  for (std::uint64_t i = 0; i < lag; ++i) {
    const std::uint64_t left = log.at(start + (a - start + i) % lag).*alike;
    const std::uint64_t right = log.at(start + (b - start + i) % lag).*alike;
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
  checked_ = turned_ = 0;
}

Repetition::Verdict Repetition::follow(const StepLog& log) {
  const bool alike = log.at(next_).*alike_ == log.at(next_ - lag_).*alike_;
  if (alike && same_blocks(log)) {
    ++next_;
    return Verdict::kSame;
  }
  restart(next_ + 1);
  return alike ? Verdict::kOtherBlocks : Verdict::kOther;
}

/// Looks at who it is alone: the signatures have told that there are as many of everything, in the
/// same order.
bool Repetition::same_blocks(const StepLog& log) {
  const KnownBlocks& blocks = log.blocks();
  const LoggedOperator& before = log.at(next_ - lag_);
  const LoggedOperator& now = log.at(next_);
  const auto skip = [&](const auto& list, std::size_t at, auto passed) {
    while (at < list.size() &&
           (passed(list[at]) || (by_form() && !counts_for_form(blocks[list[at].slot])))) {
      ++at;
    }
    return at;
  };
  // Both lists side by side, as far as they count; false if `visit` is, or one ends before the
  // other.
  const auto all = [&](const auto& earlier, const auto& later, auto passed, auto visit) {
    std::size_t i = 0;
    std::size_t k = 0;
    while (true) {
      i = skip(earlier, i, passed);
      k = skip(later, k, passed);
      if (i == earlier.size() || k == later.size()) break;
      if (!visit(earlier[i++].slot, later[k++].slot)) return false;
    }
    return i == earlier.size() && k == later.size();
  };
  const auto same = [&](std::uint32_t one, std::uint32_t other) {
    return correspond(blocks[one], blocks[other]);
  };
  const auto is_again = [&](const auto& touch) { return by_form() && touch.again; };
  if (!all(before.touches, now.touches, is_again, same)) return false;
  // Releases. Of the allocations, some belong to the next operator, and who is born corresponds.
  const auto is_allocation = [](const auto& change) { return change.alloc; };
  return all(
      before.changes, now.changes, is_allocation, [&](std::uint32_t earlier, std::uint32_t later) {
        if (!same(earlier, later)) return false;
        // Of what was there before, some other dies each time only where it comes each time
        // from outside, so that nobody has told of its allocation.
        return earlier == later || blocks[earlier].birth >= first_run() ||
               blocks[later].birth >= first_run() ||
               blocks[later].heard == blocks[earlier].heard + static_cast<std::int64_t>(lag_);
      });
}

bool Repetition::correspond(const KnownBlock& earlier, const KnownBlock& later) {
  const auto lag = static_cast<std::int64_t>(lag_);
  const auto begin = static_cast<std::int64_t>(start_) - lag;
  if (earlier.birth < begin && later.birth < begin) {
    turned_ = next_ + 1;
    return true;
  }
  if (earlier.birth == KnownBlock::kBefore) return false;
  const auto place = by_form() ? &KnownBlock::form_place : &KnownBlock::place;
  return later.birth == earlier.birth + lag && later.*place == earlier.*place &&
         later.birth >= first_run();
}

bool Repetition::is_step(const StepLog& log, std::uint64_t end) {
  if (checked_ == end || turned_ + lag_ <= end) return true;
  if (end < log.first_whole() + 2 * lag_) return false;
  if (one_to_one(log, end)) {
    checked_ = end;
    return true;
  }
  restart(next_);
  return false;
}

bool Repetition::one_to_one(const StepLog& log, std::uint64_t end) const {
  const KnownBlocks& blocks = log.blocks();
  struct Partner {
    std::uint32_t slot;
    bool written;
  };
  std::unordered_map<std::uint32_t, Partner> later;
  std::unordered_map<std::uint32_t, std::uint32_t> earlier;
  const auto pair = [&](std::uint32_t one, std::uint32_t other, bool writes) {
    const auto [there, is_new] = later.try_emplace(one, Partner{other, writes});
    there->second.written |= writes;
    return there->second.slot == other && (!is_new || earlier.try_emplace(other, one).second);
  };
  Bytes most = live_before(log, end);
  Bytes least = most;
  for (std::uint64_t i = end - lag_; i < end; ++i) {
    most = std::max(most, live_before(log, i));
    least = std::min(least, live_before(log, i));
    const auto counts = [&](const auto& touch) {
      return !by_form() || (!touch.again && counts_for_form(blocks[touch.slot]));
    };
    auto before = log.at(i - lag_).touches | std::views::filter(counts);
    auto at = before.begin();
    for (const auto& now : log.at(i).touches | std::views::filter(counts)) {
      if (at == before.end() || !pair((*at).slot, now.slot, now.writes)) return false;
      ++at;
    }
  }
  Bytes taken = most - least;
  Bytes read = 0;
  Bytes written = 0;
  const auto begin = static_cast<std::int64_t>(end - 2 * lag_);
  for (const auto& [slot, partner] : later) {
    const KnownBlock& block = blocks[slot];
    if (block.birth >= begin) continue;
    // Where sizes differ, parameters in turn: a small one, and then a large one that takes much.
    const Bytes bytes = std::max(block.bytes, blocks[partner.slot].bytes);
    taken += bytes;
    if (slot == partner.slot || blocks[partner.slot].birth >= begin) continue;
    (partner.written ? written : read) += bytes;
  }
  return read * kTurningRead <= taken && written * kTurningWritten <= taken;
}

std::optional<std::uint64_t> Repetition::boundary(const StepLog& log) {
  if (looked_ || !active() || next_ - start_ < lag_) return boundary_;
  // The last whole period, counted from the start.
  const std::uint64_t end = next_ - (next_ - start_) % lag_;
  const std::uint64_t begin = end - lag_;
  if (begin <= log.first()) return std::nullopt;
  looked_ = true;
  Bytes most = live_before(log, begin);
  Bytes least = most;
  for (std::uint64_t i = begin; i < end; ++i) {
    most = std::max(most, live_before(log, i));
    least = std::min(least, live_before(log, i));
  }
  const Bytes growth = growth_of(log, begin, end);
  const Bytes trifle = by_form() ? kTrifleOfSizes : kTrifle;
  if (std::max(growth, -growth) * trifle > most - least) return boundary_;

  std::vector<std::uint64_t> points;
  const std::vector<bool> possible = possible_boundaries(log, begin);
  for (std::uint64_t i = begin; i < end; ++i) {
    if (!possible[i - begin]) continue;
    if (points.empty() || live_before(log, i) < live_before(log, points[0])) points.assign(1, i);
    if (points.back() != i && live_before(log, i) == live_before(log, points[0])) {
      points.push_back(i);
    }
  }
  std::uint64_t longest = 0;
  for (std::size_t k = 0; k < points.size(); ++k) {
    const std::uint64_t way = k > 0 ? points[k] - points[k - 1] : points[0] + lag_ - points.back();
    if (way < longest) continue;
    if (way == longest && !comes_before(log, alike_, begin, lag_, points[k], *boundary_)) continue;
    longest = way;
    boundary_ = points[k];
  }
  return boundary_;
}

/// The points of the period from `begin` on that no block is carried over and then, a period later,
/// over again: what is alive at the one or the other is either the same, or its successor.
std::vector<bool> Repetition::possible_boundaries(const StepLog& log, std::uint64_t begin) const {
  std::vector<int> change(lag_ + 1, 0);  // in the number of blocks that are against a point
  const auto look = [&](std::uint64_t number, const KnownBlock& block) {
    if (block.birth < static_cast<std::int64_t>(start_ - lag_)) return;  // there all the time
    const auto birth = static_cast<std::uint64_t>(block.birth);
    if (number <= birth + lag_) return;
    // Of the points after its birth, those that have another one before this operator.
    const std::uint64_t count = std::min(number - birth - lag_, lag_);
    const std::uint64_t from = (birth + 1 + 2 * lag_ - begin % lag_) % lag_;
    const std::uint64_t to = from + count;
    ++change[from];
    --change[std::min(to, lag_)];
    if (to <= lag_) return;
    ++change[0];
    --change[to - lag_];
  };
  for (std::uint64_t i = begin; i < begin + lag_; ++i) {
    for (const auto& touch : log.at(i).touches) look(i, log.blocks()[touch.slot]);
    for (const auto& one : log.at(i).changes) {
      if (!one.alloc) look(i, log.blocks()[one.slot]);
    }
  }
  std::vector<bool> possible(lag_);
  int against = 0;
  for (std::uint64_t i = 0; i < lag_; ++i) possible[i] = (against += change[i]) == 0;
  return possible;
}

}  // namespace lms
