#include "plan/deferral.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/error.h"
#include "plan/search.h"

namespace lms {
namespace {

using Ids = std::vector<TraceBlockId>;

bool contains(const Ids& ids, TraceBlockId id) { return std::ranges::find(ids, id) != ids.end(); }

class Rewriter {
 public:
  explicit Rewriter(const Trace& trace)
      : trace_(trace), before_(trace.operators.size()), gone_(trace.blocks.size(), false) {}

  Trace run(const std::vector<WeightUpdate>& waiting) {
    for (const WeightUpdate& update : waiting) put_off(update);
    Trace result = {.blocks = trace_.blocks, .operators = {}};
    for (std::size_t i = 0; i < trace_.operators.size(); ++i) {
      result.operators.insert(result.operators.end(), before_[i].begin(), before_[i].end());
      const TraceOperator& op = trace_.operators[i];
      if (!emptied_.contains(i) || !op.reads.empty() || !op.allocs.empty()) {
        result.operators.push_back(op);
      } else if (result.operators.empty()) {
        if (!op.frees.empty()) result.operators.push_back(op);
      } else {
        auto& frees = result.operators.back().frees;
        frees.insert(frees.end(), op.frees.begin(), op.frees.end());
      }
    }
    forget_gone(result);
    const auto notes = result.validate();
    if (!notes.empty()) throw Error("with updates deferred the step is impossible: " + notes[0]);
    return result;
  }

 private:
  void put_off(const WeightUpdate& update) {
    const bool in_next_step = update.wanted_by <= update.gradient_born;
    const std::size_t first = update.parts.front().op;
    TraceBlockId gradient = update.gradient;
    bool dies = true;
    if (in_next_step) {
      const auto next =
          std::ranges::find(trace_.blocks, update.gradient, &TraceBlock::carried_from);
      if (next == trace_.blocks.end()) {
        gradient = carry_over(update.gradient);
      } else {
        gradient = static_cast<TraceBlockId>(next - trace_.blocks.begin());
        dies = lets_go(gradient, 0, update.wanted_by);
      }
    } else {
      dies = lets_go(gradient, first, update.wanted_by);
    }
    const auto now = [&](TraceBlockId id) {
      const std::int64_t from = trace_.blocks[id].carried_from;
      const auto name = from == kNoBlock ? id : static_cast<TraceBlockId>(from);
      return name == update.gradient ? gradient : name;
    };
    std::vector<TraceOperator> pieces;
    Ids made;
    for (const UpdatePart& part : update.parts) {
      TraceOperator& op = trace_.operators[part.op];
      TraceOperator piece = {.name = op.name, .workspace = op.workspace};
      piece.ms = part.ms;
      for (const TraceBlockId id : part.reads) {
        piece.reads.push_back(now(id));
        std::erase(op.reads, id);
      }
      for (const TraceBlockId id : part.writes) {
        piece.writes.push_back(now(id));
        std::erase(op.writes, id);
      }
      for (const TraceBlockId id : part.makes) {
        piece.allocs.push_back(id);
        made.push_back(id);
        std::erase(op.allocs, id);
      }
      op.ms = std::max(0.0, op.ms - part.ms);
      emptied_.insert(part.op);
      pieces.push_back(std::move(piece));
    }
    for (const TraceBlockId id : made) {
      lets_go_of_made(id);
      last_user(pieces, id).frees.push_back(id);
    }
    if (dies) last_user(pieces, gradient).frees.push_back(gradient);
    auto& before = before_[update.wanted_by];
    before.insert(before.end(), pieces.begin(), pieces.end());
  }

  static TraceOperator& last_user(std::vector<TraceOperator>& pieces, TraceBlockId id) {
    const auto last = std::find_if(pieces.rbegin(), pieces.rend(), [&](const TraceOperator& piece) {
      return contains(piece.reads, id) || contains(piece.allocs, id);
    });
    return *last;
  }

  /// True if the block dies in [begin, end); it does not any more.
  bool lets_go(TraceBlockId id, std::size_t begin, std::size_t end) {
    bool found = false;
    for (std::size_t i = begin; i < end; ++i) {
      found = std::erase(trace_.operators[i].frees, id) > 0 || found;
    }
    return found;
  }

  /// Of what an update makes: it lives within the update.
  void lets_go_of_made(TraceBlockId id) {
    const std::size_t all = trace_.operators.size();
    (void)lets_go(id, 0, all);
    for (TraceBlockId later = 0; later < trace_.blocks.size(); ++later) {
      if (trace_.blocks[later].carried_from != id) continue;
      (void)lets_go(later, 0, all);
      gone_[later] = true;
    }
  }

  /// A gradient lives on into the next step. Returns what it is called there.
  TraceBlockId carry_over(TraceBlockId gradient) {
    (void)lets_go(gradient, 0, trace_.operators.size());
    trace_.blocks.push_back({.bytes = trace_.blocks[gradient].bytes, .carried_from = gradient});
    gone_.push_back(false);
    return static_cast<TraceBlockId>(trace_.blocks.size() - 1);
  }

  /// Blocks that no operator knows any more.
  void forget_gone(Trace& trace) const {
    if (std::ranges::find(gone_, true) == gone_.end()) return;
    Ids names(gone_.size());
    std::vector<TraceBlock> left;
    for (std::size_t id = 0; id < gone_.size(); ++id) {
      names[id] = static_cast<TraceBlockId>(left.size());
      if (!gone_[id]) left.push_back(trace.blocks[id]);
    }
    for (TraceBlock& block : left) {
      if (block.carried_from == kNoBlock) continue;
      block.carried_from = names[static_cast<std::size_t>(block.carried_from)];
    }
    trace.blocks = std::move(left);
    for (TraceOperator& op : trace.operators) {
      for (Ids* const ids :
           {&op.reads, &op.writes, &op.spared, &op.allocs, &op.frees, &op.replay_reads}) {
        for (TraceBlockId& id : *ids) id = names[id];
      }
    }
  }

  Trace trace_;
  std::vector<std::vector<TraceOperator>> before_;  ///< each operator: what has waited for it
  std::set<std::size_t> emptied_;
  std::vector<bool> gone_;
};

}  // namespace

Trace with_updates_deferred(const Trace& trace, const std::vector<WeightUpdate>& waiting) {
  return Rewriter(trace).run(waiting);
}

std::vector<WeightUpdate> latest_wanted(std::vector<WeightUpdate> updates, std::size_t operators,
                                        double share) {
  double all = 0;
  for (const WeightUpdate& update : updates) all += static_cast<double>(update.bytes);
  const auto wait = [&](const WeightUpdate& update) {
    return (update.wanted_by + operators - update.op()) % operators;
  };
  std::ranges::stable_sort(updates, std::ranges::greater(), wait);
  double bytes = 0;
  std::size_t count = 0;
  while (count < updates.size()) {
    bytes += static_cast<double>(updates[count].bytes);
    if (bytes > share * all) break;
    ++count;
  }
  updates.resize(count);
  return updates;
}

std::vector<WeightUpdate> choose_deferred(const Trace& trace, MayWait may_wait, Bytes budget,
                                          const LinkModel& link, const SearchOptions& options) {
  // Gains are flat around the best share, and each trial takes time from the others.
  constexpr std::array kShares = {0.2, 0.4, 0.6, 0.8};
  // Another order takes the step's learning anew, and predictions are not exact.
  constexpr double kWorthIt = 0.97;
  const auto updates = deferrable_updates(trace, may_wait);
  if (updates.empty()) return {};
  SearchOptions search = options;
  search.seconds = options.seconds / (1 + kShares.size());
  search.start = nullptr;
  const auto step_ms = [&](const Trace& order) {
    return make_plan(order, budget, link, search).predicted.step_ms;
  };
  double least = kWorthIt * step_ms(trace);
  std::vector<WeightUpdate> best;
  for (const double share : kShares) {
    auto waiting = latest_wanted(updates, trace.operators.size(), share);
    if (waiting.empty() || waiting.size() == best.size()) continue;
    double ms = 0;
    try {
      ms = step_ms(with_updates_deferred(trace, waiting));
    } catch (const Error&) {
      break;  // so many gradients do not fit
    }
    if (ms >= least) continue;
    least = ms;
    best = std::move(waiting);
  }
  return best;
}

}  // namespace lms
