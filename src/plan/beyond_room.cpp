#include "plan/beyond_room.h"

#include <algorithm>
#include <functional>
#include <ranges>

#include "plan/placed_plan.h"

namespace lms {
namespace {

/// Makes one operator fit.
class Reduction {
 public:
  Reduction(Trace& trace, std::size_t at, Bytes excess, std::vector<Unplaced>& unplaced)
      : trace_(trace), op_(trace.operators[at]), at_(at), excess_(excess), unplaced_(unplaced) {}

  void run() {
    op_.repeatable = false;
    leave_out(op_.reads, [&](TraceBlockId id) { return !is_among(op_.writes, id); });
    leave_out_results();
    leave_out(op_.writes, [](TraceBlockId) { return true; });
    shrink_temporaries();
  }

 private:
  [[nodiscard]] Bytes bytes(TraceBlockId id) const { return trace_.blocks[id].bytes; }

  /// The largest first.
  template <typename May>
  [[nodiscard]] std::vector<TraceBlockId> movable(const std::vector<TraceBlockId>& list,
                                                  May may) const {
    std::vector<TraceBlockId> found;
    for (const TraceBlockId id : list) {
      if (trace_.blocks[id].movable && may(id)) found.push_back(id);
    }
    std::ranges::stable_sort(found, std::greater{}, [&](TraceBlockId id) { return bytes(id); });
    return found;
  }

  template <typename May>
  void leave_out(const std::vector<TraceBlockId>& list, May may) {
    for (const TraceBlockId id : movable(list, may)) {
      if (excess_ <= 0) return;
      for (auto* from : {&op_.reads, &op_.writes, &op_.spared}) std::erase(*from, id);
      excess_ -= bytes(id);
    }
  }

  void leave_out_results() {
    const bool last = at_ + 1 == trace_.operators.size();
    for (const TraceBlockId id : movable(op_.allocs, [](TraceBlockId) { return true; })) {
      if (excess_ <= 0) return;
      const bool dies = is_among(op_.frees, id);
      if (dies ? bytes(id) <= kPlacedUnit : last) continue;
      const std::uint32_t number = number_of(id);
      unplaced_.push_back({at_, number, !dies});
      if (dies) {
        excess_ -= bytes(id) - kPlacedUnit;
        trace_.blocks[id].bytes = kPlacedUnit;
      } else {
        excess_ -= bytes(id);
        pass_on(id, number);
      }
    }
  }

  void pass_on(TraceBlockId id, std::uint32_t number) {
    std::erase(op_.allocs, id);
    for (TraceTemporary& one : op_.temporaries) {
      if (one.begin > number) --one.begin;
      if (one.end > number) --one.end;
    }
    op_.workspace = std::max(op_.workspace, trace_.beside_results(op_));
    TraceOperator& next = trace_.operators[at_ + 1];
    next.repeatable = false;
    for (auto* list : {&next.reads, &next.writes, &next.spared}) std::erase(*list, id);
    next.allocs.insert(next.allocs.begin(), id);
    for (TraceTemporary& one : next.temporaries) {
      ++one.begin;
      ++one.end;
    }
  }

  /// Of a result among the operator's allocations.
  [[nodiscard]] std::uint32_t number_of(TraceBlockId id) const {
    auto results = std::ranges::find(op_.allocs, id) - op_.allocs.begin();
    std::uint32_t number = 0;
    for (auto temporary = op_.temporaries.begin();; ++number) {
      if (temporary != op_.temporaries.end() && temporary->begin == number) {
        ++temporary;
      } else if (results-- == 0) {
        return number;
      }
    }
  }

  void shrink_temporaries() {
    if (excess_ <= 0) return;
    const Bytes most = std::max<Bytes>(op_.workspace - excess_, 0);
    while (trace_.beside_results(op_) > most) {
      const auto largest = std::ranges::max_element(op_.temporaries, {}, &TraceTemporary::bytes);
      if (largest->bytes <= kPlacedUnit) break;
      largest->bytes = kPlacedUnit;
      unplaced_.push_back({at_, largest->begin, false});
    }
    op_.workspace = std::max(most, trace_.beside_results(op_));
  }

  Trace& trace_;
  TraceOperator& op_;
  const std::size_t at_;
  Bytes excess_;
  std::vector<Unplaced>& unplaced_;
};

}  // namespace

std::vector<Unplaced> use_below(Trace& trace, Bytes room) {
  std::vector<Unplaced> unplaced;
  std::vector<Bytes> least = trace.least_bytes();
  for (std::size_t i = 0; i < trace.operators.size(); ++i) {
    if (least[i] <= room) continue;
    Reduction(trace, i, least[i] - room, unplaced).run();
    least = trace.least_bytes();  // what was passed on counts there
  }
  return unplaced;
}

void leave_unplaced(Placement& placement, const std::vector<Unplaced>& unplaced) {
  if (placement.allocations.empty()) return;
  for (const Unplaced& one : unplaced | std::views::reverse) {
    std::vector<Bytes>& places = placement.allocations[one.op];
    const auto at = places.begin() + one.number;
    if (one.passed_on) {
      std::vector<Bytes>& next = placement.allocations[one.op + 1];
      next.erase(next.begin());
      places.insert(at, kNoAddress);
    } else {
      *at = kNoAddress;
    }
  }
}

bool leave_out_unused(Trace& trace) {
  std::vector<bool> counts(trace.blocks.size());
  for (const TraceOperator& op : trace.operators) {
    for (const auto* list : {&op.reads, &op.writes, &op.allocs}) {
      for (const TraceBlockId id : *list) counts[id] = true;
    }
  }
  for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) {
    const std::int64_t from = trace.blocks[id].carried_from;
    if (from != kNoBlock) counts[id] = counts[static_cast<std::size_t>(from)] = true;
  }
  bool found = false;
  for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) {
    TraceBlock& block = trace.blocks[id];
    if (counts[id] || !block.movable || block.bytes <= kPlacedUnit) continue;
    block.bytes = kPlacedUnit;
    found = true;
  }
  return found;
}

}  // namespace lms
