#include "bound/in_backward.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace lms {
namespace {

/// What one operator uses of each tensor: weight, gradient, state.
using Groups = std::vector<std::vector<TraceBlockId>>;

bool is_update(const TraceOperator& op) { return op.name.find("_fused_") != std::string::npos; }

/// The groups of an operator over lists; nothing if its lists are not those of an optimizer.
std::optional<Groups> groups_of(const TraceOperator& op, const Trace& trace) {
  const auto born = [&](TraceBlockId id) { return trace.blocks[id].born_in_step; };
  const auto tensors = static_cast<std::size_t>(std::ranges::count_if(op.reads, born));
  if (tensors == 0 || op.reads.size() % tensors != 0 || op.reads.size() < 2 * tensors) {
    return std::nullopt;
  }
  Groups groups(tensors);
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    const TraceBlockId id = op.reads[i];
    if (born(id) != (i / tensors == 1)) return std::nullopt;
    groups[i % tensors].push_back(id);
  }
  return groups;
}

/// Leaves blocks out of a trace and numbers the others anew.
void remove(const std::set<TraceBlockId>& gone, Trace& trace) {
  std::vector<TraceBlockId> number(trace.blocks.size());
  std::vector<TraceBlock> blocks;
  for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) {
    number[id] = static_cast<TraceBlockId>(blocks.size());
    if (!gone.contains(id)) blocks.push_back(trace.blocks[id]);
  }
  for (TraceBlock& block : blocks) {
    if (block.carried_from == kNoBlock) continue;
    block.carried_from = number[static_cast<TraceBlockId>(block.carried_from)];
  }
  trace.blocks = std::move(blocks);
  for (TraceOperator& op : trace.operators) {
    for (auto* ids : {&op.reads, &op.writes, &op.allocs, &op.frees, &op.spared, &op.replay_reads}) {
      std::erase_if(*ids, [&](TraceBlockId id) { return gone.contains(id); });
      for (TraceBlockId& id : *ids) id = number[id];
    }
  }
}

class Rewriter {
 public:
  explicit Rewriter(const Trace& trace)
      : trace_(trace), last_use_(trace.blocks.size()), after_(trace.operators.size()) {}

  Trace run() {
    bool any = false;
    for (std::size_t i = 0; i < trace_.operators.size(); ++i) {
      const TraceOperator& op = trace_.operators[i];
      const auto groups = is_update(op) ? groups_of(op, trace_) : std::nullopt;
      if (groups) {
        spread(i, *groups);
        any = true;
        continue;
      }
      for (const auto* ids : {&op.reads, &op.writes, &op.allocs}) {
        for (const TraceBlockId id : *ids) last_use_[id] = i;
      }
    }
    if (!any) {
      throw Error(
          "the step has no fused operator of an optimizer over weights, gradients born in the "
          "step, and state: there is nothing to do earlier");
    }
    return put_together();
  }

 private:
  /// The parts of operator `at`, to where they may run.
  void spread(std::size_t at, const Groups& groups) {
    const TraceOperator& op = trace_.operators[at];
    updates_.insert(at);
    double bytes = 0;
    for (const TraceBlockId id : op.reads) bytes += static_cast<double>(trace_.blocks[id].bytes);
    const std::set<TraceBlockId> written(op.writes.begin(), op.writes.end());
    for (const auto& group : groups) {
      TraceOperator part = {.name = op.name, .reads = group, .workspace = op.workspace};
      std::size_t last = 0;
      for (const TraceBlockId id : group) {
        part.ms += op.ms * static_cast<double>(trace_.blocks[id].bytes) / bytes;
        if (written.contains(id)) part.writes.push_back(id);
        last = std::max(last, last_use_[id]);
      }
      const TraceBlockId gradient = group[1];
      part.frees.push_back(gradient);
      gradients_.insert(gradient);
      after_[last].push_back(std::move(part));
    }
  }

  [[nodiscard]] Trace put_together() const {
    Trace result = {.blocks = trace_.blocks, .operators = {}};
    for (std::size_t i = 0; i < trace_.operators.size(); ++i) {
      TraceOperator op = trace_.operators[i];
      std::erase_if(op.frees, [&](TraceBlockId id) { return gradients_.contains(id); });
      if (!updates_.contains(i)) {
        result.operators.push_back(std::move(op));
      } else {
        // A gradient's last use has made it, so there is an operator before.
        auto& frees = result.operators.back().frees;
        frees.insert(frees.end(), op.frees.begin(), op.frees.end());
      }
      result.operators.insert(result.operators.end(), after_[i].begin(), after_[i].end());
    }
    std::set<TraceBlockId> kept;
    for (TraceBlockId id = 0; id < trace_.blocks.size(); ++id) {
      const std::int64_t from = trace_.blocks[id].carried_from;
      if (from != kNoBlock && gradients_.contains(static_cast<TraceBlockId>(from))) kept.insert(id);
    }
    for (const TraceOperator& op : result.operators) {
      for (const auto* ids : {&op.reads, &op.writes}) {
        if (std::ranges::any_of(*ids, [&](TraceBlockId id) { return kept.contains(id); })) {
          throw Error("the step uses gradients of the step before: they cannot go earlier");
        }
      }
    }
    remove(kept, result);
    const auto notes = result.validate();
    if (!notes.empty()) {
      throw Error("the step's weights cannot be updated in the backward pass: " + notes.front());
    }
    return result;
  }

  const Trace& trace_;
  std::vector<std::size_t> last_use_;              ///< of each block, so far; not by updates
  std::vector<std::vector<TraceOperator>> after_;  ///< of each operator: what follows it now
  std::set<std::size_t> updates_;
  std::set<TraceBlockId> gradients_;
};

}  // namespace

Trace with_updates_in_backward(const Trace& trace) { return Rewriter(trace).run(); }

}  // namespace lms
