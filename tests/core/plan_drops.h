#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "plan/producers.h"
#include "trace/trace.h"

namespace lms::testing {

/// A plan that drops all results of cheap operators between distant uses, with the chains and the
/// ghosts that this takes; whether it is worth it is not asked.
class DropCheapResults {
 public:
  explicit DropCheapResults(const Trace& trace)
      : trace_(trace),
        producers_(trace),
        uses_(trace.blocks.size()),
        death_(trace.blocks.size(), kNever),
        here_(trace.blocks.size()) {
    for (std::size_t at = 0; at < trace.operators.size(); ++at) {
      const TraceOperator& op = trace.operators[at];
      for (const auto* list : {&op.reads, &op.writes, &op.allocs}) {
        for (const TraceBlockId id : *list) uses_[id].push_back(at);
      }
      for (const TraceBlockId id : op.frees) death_[id] = at;
    }
    for (std::size_t id = 0; id < here_.size(); ++id) here_[id] = !trace.blocks[id].born_in_step;
  }

  Plan make() {
    for (now_ = 0; now_ < trace_.operators.size(); ++now_) {
      const TraceOperator& op = trace_.operators[now_];
      for (const auto* list : {&op.reads, &op.writes}) {
        for (const TraceBlockId id : *list) want(id);
      }
      for (const TraceBlockId id : op.allocs) here_[id] = true;
      for (const TraceBlockId id : op.frees) here_[id] = false;
      ++now_;
      for (const auto* list : {&op.reads, &op.writes, &op.allocs}) {
        for (const TraceBlockId id : *list) drop_if_far(id);
      }
      --now_;
    }
    return std::move(plan_);
  }

 private:
  static constexpr std::size_t kNever = SIZE_MAX;
  static constexpr std::size_t kFar = 30;

  static bool cheap(const TraceOperator& op) {
    constexpr std::string_view kDear[] = {"conv", "mm", "attention", "linear"};
    return op.repeatable && std::ranges::none_of(kDear, [&](std::string_view part) {
             return op.name.find(part) != std::string_view::npos;
           });
  }
  [[nodiscard]] bool dead(TraceBlockId id) const {
    return death_[id] != kNever && death_[id] < now_;
  }
  [[nodiscard]] std::size_t next_use(TraceBlockId id) const {
    const auto next = std::ranges::lower_bound(uses_[id], now_);
    return next == uses_[id].end() ? kNever : *next;
  }

  /// The block's contents before operator `at` can be computed again then.
  [[nodiscard]] bool right(TraceBlockId id, std::size_t at) const {
    const TraceBlock& block = trace_.blocks[id];
    if (!block.movable || !block.born_in_step || death_[id] == kNever) return false;
    return std::ranges::all_of(producers_.at(id, at), [&](std::size_t maker) {
      const TraceOperator& op = trace_.operators[maker];
      const auto unchanged = [&](TraceBlockId read) {
        if (read == id || op.spares(read)) return true;
        const auto writers = producers_.at(read, at);
        if (!writers.empty() && writers.back() >= maker) return false;
        return death_[read] >= at || right(read, at);
      };
      const auto allowed = [&](TraceBlockId written) {
        return (written == id) != op.spares(written);
      };
      return cheap(op) && std::ranges::all_of(op.reads, unchanged) &&
             std::ranges::all_of(op.writes, allowed);
    });
  }

  void tell(Action action, TraceBlockId id) {
    plan_.directives.push_back({now_, action, id});
    here_[id] = action == Action::kRematerialise;
  }
  void want(TraceBlockId id) {
    if (here_[id]) return;
    std::vector<TraceBlockId> served;
    for (const std::size_t maker : producers_.at(id, now_)) {
      for (const TraceBlockId read : trace_.operators[maker].reads) {
        if (read == id || here_[read] || trace_.operators[maker].spares(read)) continue;
        want(read);
        served.push_back(read);
      }
    }
    tell(Action::kRematerialise, id);
    for (const TraceBlockId read : served) {
      if (dead(read)) tell(Action::kDrop, read);
      drop_if_far(read);
    }
  }
  void drop_if_far(TraceBlockId id) {
    const std::size_t next = next_use(id);
    if (!here_[id] || dead(id) || next == kNever || next < now_ + kFar || !right(id, next)) return;
    tell(Action::kDrop, id);
  }

  const Trace& trace_;
  Producers producers_;
  std::vector<std::vector<std::size_t>> uses_;
  std::vector<std::size_t> death_;
  std::vector<bool> here_;
  std::size_t now_ = 0;
  Plan plan_;
};

}  // namespace lms::testing
