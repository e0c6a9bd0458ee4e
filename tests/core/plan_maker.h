#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/plan_machine.h"
#include "core/plan_random.h"
#include "plan/plan.h"
#include "trace/trace.h"

namespace lms::testing {

/// Moves blocks about and mostly brings them back in time; what lineages need, too, and ghosts.
class PlanMaker {
 public:
  explicit PlanMaker(const Trace& trace, bool drops = true)
      : trace_(trace), drops_(drops), where_(trace.blocks.size(), kUnborn) {}

  Plan make() {
    for (TraceBlockId id = 0; id < where_.size(); ++id) {
      if (trace_.blocks[id].born_in_step) continue;
      where_[id] = chance(trace_.blocks[id].movable ? 25 : 1) ? kBelow : kHere;
      if (where_[id] == kBelow) plan_.absent_at_start.push_back(id);
    }
    for (now_ = 0; now_ < trace_.operators.size(); ++now_) {
      for (TraceBlockId id = 0; id < where_.size(); ++id) move_at_random(id);
      const TraceOperator& op = trace_.operators[now_];
      for (const auto id : op.reads) bring(id, false);
      for (const auto id : op.writes) bring(id, true);
      for (const auto id : op.allocs) where_[id] = kHere;
      for (const auto id : op.frees) {
        if (where_[id] == kLeaving) finish_started(id);
        where_[id] = kDead;
      }
    }
    for (TraceBlockId id = 0; id < where_.size(); ++id) restore(id);
    std::ranges::stable_sort(plan_.directives, {}, &Directive::before);
    return plan_;
  }

 private:
  enum Where : std::uint8_t { kUnborn, kHere, kLeaving, kBelow, kGone, kDead, kGhost };
  static constexpr int kDeepest = 4;

  void tell(Action action, TraceBlockId id, Where then) {
    plan_.directives.push_back({now_, action, id});
    where_[id] = then;
  }
  void move_at_random(TraceBlockId id) {
    if (!chance(trace_.blocks[id].movable ? (where_[id] == kDead ? 5 : 35) : 1)) return;
    if (where_[id] == kHere) {
      if (drops_ && trace_.blocks[id].born_in_step && chance(40)) {
        tell(Action::kDrop, id, kGone);
      } else {
        tell(Action::kStartOut, id, kLeaving);
      }
    } else if (where_[id] == kLeaving) {
      tell(Action::kFinishOut, id, kBelow);
    } else if (where_[id] == kBelow) {
      tell(Action::kStartIn, id, kHere);
    } else if (where_[id] == kGone || (drops_ && where_[id] == kDead)) {
      again(id);
    } else if (where_[id] == kGhost) {
      tell(Action::kDrop, id, kDead);
    }
  }
  /// What its lineage reads first, as far as it is known to be right.
  void again(TraceBlockId id, int depth = 0) {
    std::vector<TraceBlockId> served;
    for (std::size_t at = 0; at < now_ && depth < kDeepest; ++at) {
      const TraceOperator& op = trace_.operators[at];
      if (!names(op.allocs, id) && !names(op.writes, id)) continue;
      for (const auto read : op.reads) {
        if (read == id || op.spares(read) || chance(2)) continue;
        if (where_[read] == kBelow) tell(Action::kStartIn, read, kHere);
        if (where_[read] != kGone && where_[read] != kDead) continue;
        again(read, depth + 1);
        served.push_back(read);
      }
    }
    tell(Action::kRematerialise, id, where_[id] == kDead ? kGhost : kHere);
    for (const auto read : served) {
      if (where_[read] == kGhost && chance(70)) tell(Action::kDrop, read, kDead);
      if (where_[read] == kHere && chance(40)) tell(Action::kDrop, read, kGone);
    }
  }
  void bring(TraceBlockId id, bool writes) {
    if (chance(2)) return;
    if (where_[id] == kLeaving && writes) tell(Action::kFinishOut, id, kBelow);
    if (where_[id] == kBelow) tell(Action::kStartIn, id, kHere);
    if (where_[id] == kGone) again(id);
  }
  /// The operator that ends the block may not have it half copied.
  void finish_started(TraceBlockId id) {
    const bool used = names(trace_.operators[now_].reads, id);
    tell(Action::kFinishOut, id, kBelow);
    if (used) tell(Action::kStartIn, id, kHere);
  }
  void restore(TraceBlockId id) {
    if (where_[id] == kUnborn || where_[id] == kDead) return;
    if (where_[id] == kGhost) tell(Action::kDrop, id, kDead);
    bool absent = names(plan_.absent_at_start, id);
    bool lasts = !trace_.blocks[id].born_in_step;
    for (TraceBlockId heir = 0; heir < where_.size(); ++heir) {
      if (trace_.blocks[heir].carried_from != id) continue;
      absent = names(plan_.absent_at_start, heir);
      lasts = true;
    }
    if (where_[id] == kLeaving) tell(Action::kFinishOut, id, kBelow);
    if (!lasts) return;
    if (where_[id] == kGone) again(id);
    if (where_[id] == kBelow && !absent) tell(Action::kStartIn, id, kHere);
    if (where_[id] == kHere && absent) {
      tell(Action::kStartOut, id, kLeaving);
      tell(Action::kFinishOut, id, kBelow);
    }
  }

  const Trace& trace_;
  bool drops_;
  std::vector<Where> where_;
  Plan plan_;
  std::size_t now_ = 0;
};

/// Removes, moves, changes or exchanges a directive, or forgets an absent block.
inline Plan spoiled(Plan plan, std::size_t operators, std::size_t blocks) {
  auto& list = plan.directives;
  if (!plan.absent_at_start.empty() && chance(10)) {
    plan.absent_at_start.pop_back();
    return plan;
  }
  if (list.empty()) return plan;
  const auto at = static_cast<std::size_t>(upto(static_cast<int>(list.size()) - 1));
  switch (upto(4)) {
    case 0:
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      list[at].before = static_cast<std::size_t>(upto(static_cast<int>(operators)));
      std::ranges::stable_sort(list, {}, &Directive::before);
      break;
    case 2: {
      const auto other = static_cast<std::size_t>(upto(static_cast<int>(list.size()) - 1));
      std::swap(list[at].action, list[other].action);
      std::swap(list[at].block, list[other].block);
      break;
    }
    case 3:
      list[at].block = static_cast<TraceBlockId>(upto(static_cast<int>(blocks) - 1));
      break;
    default:
      list[at].action = static_cast<Action>(upto(5));
  }
  return plan;
}

}  // namespace lms::testing
