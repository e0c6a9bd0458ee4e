#include "plan/recompute/coarse.h"

#include <algorithm>
#include <utility>

namespace lms {
namespace {

bool idle(const TraceOperator& op) { return op.writes.empty() && op.allocs.empty(); }

bool has(const std::vector<TraceBlockId>& list, TraceBlockId id) {
  return std::ranges::find(list, id) != list.end();
}

bool uses(const TraceOperator& op, TraceBlockId id) {
  return has(op.reads, id) || has(op.writes, id) || has(op.allocs, id);
}

/// The first uses no block that the second does not use.
bool within(const TraceOperator& op, const TraceOperator& other) {
  return std::ranges::all_of(op.reads, [&](TraceBlockId id) { return uses(other, id); });
}

}  // namespace

Coarse::Coarse(const Trace& fine) : operators_(fine.operators.size()) {
  trace.version = fine.version;
  trace.blocks = fine.blocks;
  const auto bytes = [&](const std::vector<TraceBlockId>& blocks) {
    Bytes sum = 0;
    for (const TraceBlockId id : blocks) sum += fine.blocks[id].bytes;
    return sum;
  };
  for (std::size_t at = 0; at < operators_; ++at) {
    TraceOperator op = fine.operators[at];
    op.temporaries.clear();
    if (!trace.operators.empty()) {
      TraceOperator& last = trace.operators.back();
      if (idle(op) && within(op, last)) {
        // What the last used and gave back is counted until the end of both. What it gave back
        // without using it may have been elsewhere.
        std::vector<TraceBlockId> used = last.frees;
        std::erase_if(used, [&](TraceBlockId id) { return !uses(last, id); });
        last.workspace = std::max(last.workspace, op.workspace - bytes(used));
        last.replay_ms = last.again_ms();
        last.ms += op.ms;
        last.host_ms += op.host_ms;
        last.host_waits = last.host_waits || op.host_waits;
        last.frees.insert(last.frees.end(), op.frees.begin(), op.frees.end());
        continue;
      }
      if (idle(last) && last.frees.empty() && within(last, op)) {
        op.workspace = std::max(op.workspace, last.workspace - bytes(op.allocs));
        op.replay_ms = op.again_ms();
        op.ms += last.ms;
        op.host_ms += last.host_ms;
        op.host_waits = op.host_waits || last.host_waits;
        last = std::move(op);
        continue;
      }
    }
    first.push_back(at);
    trace.operators.push_back(std::move(op));
  }
}

Plan Coarse::refine(Plan plan) const {
  for (Directive& directive : plan.directives) {
    directive.before = directive.before < first.size() ? first[directive.before] : operators_;
  }
  return plan;
}

Plan Coarse::coarsen(Plan plan) const {
  for (Directive& directive : plan.directives) {
    const auto next = std::ranges::lower_bound(first, directive.before);
    const bool inside = directive.before != (next == first.end() ? operators_ : *next);
    const bool early =
        directive.action == Action::kRematerialise || directive.action == Action::kStartIn;
    directive.before = static_cast<std::size_t>(next - first.begin());
    if (inside && early && directive.before > 0) --directive.before;
  }
  return plan;
}

}  // namespace lms
