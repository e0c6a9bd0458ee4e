#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "steps/repetition.h"
#include "steps/rough_steps.h"
#include "steps/step_log.h"
#include "steps/step_sizes.h"

namespace lms {
namespace {

using Touch = LoggedOperator::Touch;
using Change = LoggedOperator::Change;

class ShapeMaker {
 public:
  ShapeMaker(const StepLog& log, StepLog::Span span)
      : log_(log),
        blocks_(log.blocks()),
        begin_(static_cast<std::int64_t>(span.begin)),
        end_(static_cast<std::int64_t>(span.end)),
        ids_(blocks_.slots(), kNoBlock) {}

  /// The step before is as long.
  StepShape make() {
    before_ = begin_ - (end_ - begin_);
    for (std::int64_t number = begin_; number < end_; ++number) {
      partners_.push_back(number - (end_ - begin_));
    }
    make_with_partners();
    return std::move(shape_);
  }

  std::optional<StepShape> make_roughly(const RoughStep& rough) {
    before_ = static_cast<std::int64_t>(rough.before.begin);
    partners_ = rough.partners;
    find_ending();
    make_with_partners();
    if (!turns_little()) return {};
    return std::move(shape_);
  }

  std::optional<StepShape> make_after_another(const std::vector<BlockUid>& before) {
    number_used();
    if (shape_.uids.size() != before.size()) return {};
    for (TraceBlockId id = 0; id < before.size(); ++id) {
      if (shape_.uids[id] != before[id]) shape_.turning.push_back(id);
    }
    number_unused();
    for (std::int64_t number = begin_; number < end_; ++number) add_operator(number);
    const bool lasting = std::ranges::none_of(shape_.trace.operators, [&](const auto& op) {
      return std::ranges::any_of(op.frees, [&](auto id) { return id < before.size(); });
    });
    if (!lasting || !turns_little()) return {};
    return std::move(shape_);
  }

 private:
  void make_with_partners() {
    number_used();
    find_turning();
    number_unused();
    for (std::int64_t number = begin_; number < end_; ++number) add_operator(number);
    find_carried();
    widen();
  }
  /// The same operator of the step before; kNone: it was not there.
  [[nodiscard]] std::int64_t partner_of(std::int64_t number) const {
    return partners_[static_cast<std::size_t>(number - begin_)];
  }
  /// To `visit`, each operator that was there in the step before, and the one of then.
  template <typename Visit>
  void for_partners(Visit visit) const {
    for (std::int64_t number = begin_; number < end_; ++number) {
      if (partner_of(number) != RoughStep::kNone) visit(partner_of(number), number);
    }
  }
  /// Of the list, the temporaries, or what is none.
  template <typename One, typename List>
  [[nodiscard]] std::vector<One> those(const List& list, bool temporary) const {
    std::vector<One> found;
    std::ranges::copy_if(list, std::back_inserter(found), [&](const One& one) {
      return blocks_[one.slot].temporary() == temporary;
    });
    return found;
  }

  /// What corresponds in two runs of an operator, without temporaries: all of it, or, if some is
  /// missing in one of them, what does not vary with the size.
  template <typename List>
  [[nodiscard]] auto side_by_side(const List& earlier, const List& later) const {
    using One = std::remove_cvref_t<decltype(earlier[0])>;
    const std::vector<One> before = those<One>(earlier, /*temporary=*/false);
    const std::vector<One> now = those<One>(later, /*temporary=*/false);
    std::pair<std::vector<One>, std::vector<One>> both;
    const auto varies = [&](const One& one) {
      if constexpr (std::is_same_v<One, Touch>) {
        if (one.again) return true;
      }
      return blocks_[one.slot].marginal;
    };
    const auto add = [&](const std::vector<One>& list, std::vector<One>& to) {
      for (const One& one : list) {
        if (before.size() == now.size() || !varies(one)) to.push_back(one);
      }
    };
    add(before, both.first);
    add(now, both.second);
    const std::size_t least = std::min(both.first.size(), both.second.size());
    both.first.resize(least);
    both.second.resize(least);
    return both;
  }

  /// What was there before and dies in the step, with nothing in its place: no part of it.
  void find_ending() {
    std::unordered_set<std::uint32_t> made_again;
    for_partners([&](std::int64_t then, std::int64_t number) {
      const auto [before, now] = side_by_side(allocations_of(then), allocations_of(number));
      for (std::size_t i = 0; i < now.size(); ++i) {
        if (blocks_[now[i].slot].alive_before(end_)) made_again.insert(before[i].slot);
      }
    });
    for (std::uint32_t slot = 0; slot < blocks_.slots(); ++slot) {
      const KnownBlock& block = blocks_[slot];
      if (block.bytes == 0 || !block.alive_before(begin_) || block.death >= end_) continue;
      if (!made_again.contains(slot)) ending_.insert(slot);
    }
  }

  /// As in Repetition::is_step().
  [[nodiscard]] bool turns_little() const {
    if (shape_.turning.empty()) return true;
    Bytes read = 0;
    Bytes written = 0;
    for (const TraceBlockId id : shape_.turning) {
      (last_write_[id] >= 0 ? written : read) += shape_.trace.blocks[id].bytes;
    }
    const Bytes taken = std::ranges::max(shape_.trace.live_bytes());
    return read * kTurningRead <= taken && written * kTurningWritten <= taken;
  }
  /// An operator's allocations and releases, before it and in it, in order: to `visit`.
  template <typename Visit>
  void for_changes(std::int64_t number, Visit visit) const {
    if (number > static_cast<std::int64_t>(log_.first())) {
      for (const Change& change : at(number - 1).changes) {
        if (!change.inside) visit(change);
      }
    }
    for (const Change& change : at(number).changes) {
      if (change.inside) visit(change);
    }
  }
  [[nodiscard]] const LoggedOperator& at(std::int64_t number) const {
    return log_.at(static_cast<std::uint64_t>(number));
  }
  TraceBlockId number_block(std::uint32_t slot, bool born) {
    const KnownBlock& block = blocks_[slot];
    const auto id = static_cast<TraceBlockId>(shape_.trace.blocks.size());
    shape_.trace.blocks.push_back(
        {.bytes = block.bytes, .born_in_step = born, .movable = block.touched && !block.kept});
    shape_.uids.push_back(block.uid);
    last_read_.push_back(-1);
    last_write_.push_back(-1);
    ids_[slot] = id;
    return id;
  }

  void number_used() {
    for (std::int64_t number = begin_; number < end_; ++number) {
      for (const Touch& touch : at(number).touches) {
        const bool fresh = ids_[touch.slot] == kNoBlock;
        if (ending_.contains(touch.slot)) continue;
        if (fresh && blocks_[touch.slot].alive_before(begin_)) number_block(touch.slot, false);
      }
    }
  }

  void find_turning() {
    std::vector<TraceBlockId>& turning = shape_.turning;
    for_partners([&](std::int64_t then, std::int64_t number) {
      const auto [before, now] = side_by_side(at(then).touches, at(number).touches);
      for (std::size_t k = 0; k < now.size(); ++k) {
        const std::int64_t id = ids_[now[k].slot];
        if (id == kNoBlock || now[k].slot == before[k].slot) continue;
        const auto is_old = [&](const Touch& touch) { return blocks_[touch.slot].birth < before_; };
        if (is_old(now[k]) && is_old(before[k])) turning.push_back(static_cast<TraceBlockId>(id));
      }
    });
    std::ranges::sort(turning);
    turning.erase(std::unique(turning.begin(), turning.end()), turning.end());
    if (!turning.empty()) keep_shifted();
  }

  /// Where layers are left out, those behind them serve a place further on. Their weights are who
  /// they are; only two that change places turn.
  void keep_shifted() {
    std::unordered_set<TraceBlockId> written;
    std::unordered_map<std::uint32_t, TraceBlockId> served;  // in the step before: slot, where
    for_partners([&](std::int64_t then, std::int64_t number) {
      const auto [before, now] = side_by_side(at(then).touches, at(number).touches);
      for (std::size_t k = 0; k < now.size(); ++k) {
        if (ids_[now[k].slot] == kNoBlock) continue;
        const auto id = static_cast<TraceBlockId>(ids_[now[k].slot]);
        served.try_emplace(before[k].slot, id);
        if (now[k].writes) written.insert(id);
      }
    });
    const auto where = [&](TraceBlockId id) {
      const auto found = served.find(*blocks_.find(shape_.uids[id]));
      return found == served.end() ? id : found->second;
    };
    std::erase_if(shape_.turning, [&](TraceBlockId id) {
      const TraceBlockId other = where(id);
      return written.contains(id) && other != id && where(other) != id;
    });
  }

  void number_unused() {
    std::set<Bytes> turning;
    for (const TraceBlockId id : shape_.turning) turning.insert(shape_.trace.blocks[id].bytes);
    std::vector<std::pair<BlockUid, std::uint32_t>> unused;
    for (std::uint32_t slot = 0; slot < blocks_.slots(); ++slot) {
      const KnownBlock& block = blocks_[slot];
      if (block.bytes == 0 || ids_[slot] != kNoBlock || !block.alive_before(begin_)) continue;
      if (ending_.contains(slot)) continue;
      if (block.touched && block.death >= end_ && turning.contains(block.bytes)) continue;
      unused.emplace_back(block.uid, slot);
    }
    std::ranges::sort(unused);
    for (const auto& [uid, slot] : unused) number_block(slot, false);
  }

  void add_operator(std::int64_t number) {
    const LoggedOperator& logged = at(number);
    TraceOperator op;
    op.name = log_.name_of(logged);
    op.ms = logged.ms;
    op.repeatable = logged.repeatable;
    StepShape::Operator beside;
    beside.key = logged.key;
    beside.replay_cost = logged.replay_cost;
    add_allocations(number, op, beside);
    add_uses(number, op, beside);
    for (const Change& change : logged.changes) {
      if (change.alloc) continue;
      const std::int64_t id = ids_[change.slot];
      if (id != kNoBlock) op.frees.push_back(static_cast<TraceBlockId>(id));
    }
    shape_.trace.operators.push_back(std::move(op));
    shape_.operators.push_back(std::move(beside));
  }

  void add_allocations(std::int64_t number, TraceOperator& op, StepShape::Operator& beside) {
    std::vector<std::pair<std::uint32_t, std::size_t>> held;  // temporaries: slot, position
    for_changes(number, [&](const Change& change) {
      const KnownBlock& block = blocks_[change.slot];
      if (change.alloc) {
        const auto made = static_cast<std::uint32_t>(beside.allocations.size());
        std::int64_t id = kNoBlock;
        if (block.temporary()) {
          held.emplace_back(change.slot, op.temporaries.size());
          op.temporaries.push_back({block.bytes, made, made + 1});
        } else {
          id = number_block(change.slot, true);
          op.allocs.push_back(static_cast<TraceBlockId>(id));
        }
        beside.allocations.push_back({id, block.bytes, change.inside});
        return;
      }
      const auto found =
          std::ranges::find(held, change.slot, [](const auto& one) { return one.first; });
      if (found == held.end()) return;
      op.temporaries[found->second].end = static_cast<std::uint32_t>(beside.allocations.size());
      held.erase(found);
    });
    op.workspace = shape_.trace.beside_results(op);
  }

  void add_uses(std::int64_t number, TraceOperator& op, StepShape::Operator& beside) {
    for (const Touch& touch : at(number).touches) {
      if (ids_[touch.slot] == kNoBlock) continue;  // a temporary
      const auto id = static_cast<TraceBlockId>(ids_[touch.slot]);
      beside.touches.push_back({id, touch.writes, 0, touch.again});
      if (blocks_[touch.slot].birth == number) continue;  // its own result
      if (std::exchange(last_read_[id], number) != number) op.reads.push_back(id);
      if (touch.writes && std::exchange(last_write_[id], number) != number) op.writes.push_back(id);
    }
  }

  struct Made {
    std::uint32_t slot;
    std::size_t index;
  };
  /// The allocations that belong to operator `number`.
  [[nodiscard]] std::vector<Made> allocations_of(std::int64_t number) const {
    std::vector<Made> made;
    for_changes(number, [&](const Change& change) {
      if (change.alloc) made.push_back({change.slot, made.size()});
    });
    return made;
  }

  void find_carried() {
    auto& blocks = shape_.trace.blocks;
    for_partners([&](std::int64_t then, std::int64_t number) {
      const std::vector<Made> made = allocations_of(then);
      if (std::ranges::none_of(made, [&](auto one) { return ids_[one.slot] != kNoBlock; })) return;
      const auto [before, now] = side_by_side(made, allocations_of(number));
      for (std::size_t i = 0; i < now.size(); ++i) {
        const std::int64_t id = ids_[before[i].slot];
        const std::int64_t next = ids_[now[i].slot];
        const bool lasts = blocks_[now[i].slot].alive_before(end_);
        if (id == kNoBlock || next == kNoBlock || !lasts) continue;
        TraceBlock& block = blocks[static_cast<std::size_t>(id)];
        TraceBlock& successor = blocks[static_cast<std::size_t>(next)];
        // One that neither dies nor is used any more is only forgotten, with every step one more.
        const bool used = last_read_[static_cast<std::size_t>(id)] >= 0;
        if (!used && blocks_[before[i].slot].death >= end_) continue;
        block.carried_from = next;
        const bool kept = blocks_[before[i].slot].kept || blocks_[now[i].slot].kept;
        block.movable = successor.movable = !kept && (block.movable || successor.movable);
      }
    });
  }

  /// To what the step before had where that was larger.
  void widen() {
    StepSizes sizes = StepSizes::of(shape_);
    std::size_t allocated = 0;
    const auto take = [](Bytes& mine, Bytes theirs) { mine = std::max(mine, theirs); };
    for (std::int64_t number = begin_; number < end_; ++number) {
      const std::vector<Made> all = allocations_of(number);
      const std::size_t first = std::exchange(allocated, allocated + all.size());
      const std::int64_t then = partner_of(number);
      if (then == RoughStep::kNone) continue;
      const auto [before, now] = side_by_side(at(then).touches, at(number).touches);
      for (std::size_t k = 0; k < now.size(); ++k) {
        const std::int64_t id = ids_[now[k].slot];
        if (id != kNoBlock) {
          take(sizes.blocks[static_cast<std::size_t>(id)], blocks_[before[k].slot].bytes);
        }
      }
      const std::vector<Made> all_then = allocations_of(then);
      const auto [earlier, made] = side_by_side(all_then, all);
      for (std::size_t k = 0; k < made.size(); ++k) {
        const Bytes bytes = blocks_[earlier[k].slot].bytes;
        take(sizes.allocations[first + made[k].index], bytes);
        const std::int64_t id = ids_[made[k].slot];
        if (id != kNoBlock) take(sizes.blocks[static_cast<std::size_t>(id)], bytes);
      }
      const std::vector<Made> held_then = those<Made>(all_then, /*temporary=*/true);
      const std::vector<Made> held = those<Made>(all, /*temporary=*/true);
      if (held_then.size() == held.size()) {
        for (std::size_t k = 0; k < held.size(); ++k) {
          take(sizes.allocations[first + held[k].index], blocks_[held_then[k].slot].bytes);
        }
      } else {
        take(sizes.beyond[static_cast<std::size_t>(number - begin_)],
             most_held(then) - most_held(number));
      }
    }
    sizes.put_into(shape_);
  }

  /// Bytes of temporaries of operator `number` at a time.
  [[nodiscard]] Bytes most_held(std::int64_t number) const {
    Bytes held = 0;
    Bytes most = 0;
    for_changes(number, [&](const Change& change) {
      const KnownBlock& block = blocks_[change.slot];
      if (!block.temporary()) return;
      held += change.alloc ? block.bytes : -block.bytes;
      most = std::max(most, held);
    });
    return most;
  }

  const StepLog& log_;
  const KnownBlocks& blocks_;
  const std::int64_t begin_;
  const std::int64_t end_;
  StepShape shape_;
  std::int64_t before_ = 0;             ///< where the step before begins
  std::vector<std::int64_t> partners_;  ///< RoughStep::partners
  std::unordered_set<std::uint32_t> ending_;
  std::vector<std::int64_t> ids_;         ///< by slot: the block of the trace
  std::vector<std::int64_t> last_read_;   ///< by block of the trace: the operator
  std::vector<std::int64_t> last_write_;  ///< likewise
};

}  // namespace

std::optional<StepShape> make_shape(StepLog& log, StepLog::Span span,
                                    const std::vector<BlockUid>& before) {
  if (span.begin >= span.end || span.begin < log.first() || span.end > log.end()) return {};
  return ShapeMaker(log, span).make_after_another(before);
}

std::optional<StepShape> make_shape(StepLog& log, const RoughStep& rough) {
  return ShapeMaker(log, rough.step).make_roughly(rough);
}

StepShape make_shape(StepLog& log, StepLog::Span span) {
  if (span.begin >= span.end || span.end > log.end() ||
      2 * span.begin < span.end + log.first_whole()) {
    throw Error("make_shape: operators " + std::to_string(span.begin) + " to " +
                std::to_string(span.end) + " and as many before them are not all in the log of " +
                std::to_string(log.first_whole()) + " to " + std::to_string(log.end()));
  }
  return ShapeMaker(log, span).make();
}

}  // namespace lms
