#include "plan/deferral.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/median.h"
#include "plan/search.h"

namespace lms {
namespace {

using Ids = std::vector<TraceBlockId>;

class Rewriter {
 public:
  explicit Rewriter(const Trace& trace)
      : trace_(trace), before_(trace.operators.size()), gone_(trace.blocks.size(), false) {}

  Trace run(const std::vector<WeightUpdate>& waiting) {
    call_host_ms_ = call_host_ms(waiting);
    for (auto first = waiting.begin(); first != waiting.end();) {
      const auto end = std::find_if(
          first, waiting.end(), [&](const auto& update) { return update.group != first->group; });
      put_off({first, end});
      first = end;
    }
    Trace result = {.blocks = trace_.blocks, .operators = {}};
    for (std::size_t i = 0; i < trace_.operators.size(); ++i) {
      result.operators.insert(result.operators.end(), before_[i].begin(), before_[i].end());
      const TraceOperator& op = trace_.operators[i];
      if (!emptied_.contains(i) || !op.reads.empty() || !op.allocs.empty()) {
        result.operators.push_back(op);
      } else if (result.operators.empty()) {
        if (!op.frees.empty()) result.operators.push_back(op);
      } else {
        TraceOperator& before = result.operators.back();
        before.frees.insert(before.frees.end(), op.frees.begin(), op.frees.end());
        before.host_ms += std::max(0.0, op.host_ms - call_host_ms_);  // the program's own work
        before.host_waits = before.host_waits || op.host_waits;
      }
    }
    forget_gone(result);
    const auto notes = result.validate();
    if (!notes.empty()) throw Error("with updates deferred the step is impossible: " + notes[0]);
    return result;
  }

 private:
  /// What the host takes to call one of the operators of these.
  [[nodiscard]] double call_host_ms(const std::vector<WeightUpdate>& updates) const {
    std::vector<double> each;
    for (const WeightUpdate& update : updates) {
      for (const UpdatePart& part : update.parts) {
        each.push_back(trace_.operators[part.op].host_ms);
      }
    }
    return each.empty() ? 0 : median(each);
  }

  /// All of one group.
  void put_off(std::span<const WeightUpdate> updates) {
    std::vector<TraceOperator> pieces;
    for (const UpdatePart& part : updates.front().parts) {
      const TraceOperator& op = trace_.operators[part.op];
      pieces.push_back({.name = op.name, .workspace = op.workspace});
      pieces.back().host_ms = call_host_ms_;
    }
    Ids dead;
    Ids gradients;
    for (const WeightUpdate& update : updates) {
      const auto [gradient, dies] = keep_gradient(update);
      if (dies) gradients.push_back(gradient);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        take_out(update.parts[i], update.gradient, gradient, pieces[i]);
        dead.insert(dead.end(), update.parts[i].makes.begin(), update.parts[i].makes.end());
        std::ranges::for_each(update.parts[i].makes, [&](auto id) { lets_go_of_made(id); });
      }
    }
    dead.insert(dead.end(), gradients.begin(), gradients.end());
    for (const TraceBlockId id : dead) last_user(pieces, id).frees.push_back(id);
    auto& before = before_[updates.front().wanted_by];
    before.insert(before.end(), pieces.begin(), pieces.end());
  }

  /// What the gradient is called where the update runs, and whether it dies with it.
  std::pair<TraceBlockId, bool> keep_gradient(const WeightUpdate& update) {
    if (update.wanted_by > update.gradient_born) {
      return {update.gradient, lets_go(update.gradient, update.parts.front().op, update.wanted_by)};
    }
    const auto next = std::ranges::find(trace_.blocks, update.gradient, &TraceBlock::carried_from);
    if (next == trace_.blocks.end()) return {carry_over(update.gradient), true};
    const auto name = static_cast<TraceBlockId>(next - trace_.blocks.begin());
    return {name, lets_go(name, 0, update.wanted_by)};
  }

  /// `piece` does this part; the operator that has done it does not any more.
  void take_out(const UpdatePart& part, TraceBlockId gradient, TraceBlockId now,
                TraceOperator& piece) {
    TraceOperator& op = trace_.operators[part.op];
    piece.ms += part.ms;
    const auto move = [&](const Ids& ids, Ids& from, Ids& to) {
      for (const TraceBlockId id : ids) {
        const TraceBlockId name = trace_.name_at_birth(id);
        to.push_back(name == gradient ? now : name);
        std::erase(from, id);
      }
    };
    move(part.reads, op.reads, piece.reads);
    move(part.writes, op.writes, piece.writes);
    move(part.makes, op.allocs, piece.allocs);
    op.ms = std::max(0.0, op.ms - part.ms);
    emptied_.insert(part.op);
  }

  static TraceOperator& last_user(std::vector<TraceOperator>& pieces, TraceBlockId id) {
    const auto last = std::find_if(pieces.rbegin(), pieces.rend(), [&](const TraceOperator& piece) {
      return is_among(piece.reads, id) || is_among(piece.allocs, id);
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
  double call_host_ms_ = 0;
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
  std::ranges::stable_sort(updates, std::ranges::greater(),
                           [&](const WeightUpdate& update) { return update.wait(operators); });
  double bytes = 0;
  std::size_t count = 0;
  while (count < updates.size()) {
    std::size_t end = count;
    for (; end < updates.size() && updates[end].group == updates[count].group; ++end) {
      bytes += static_cast<double>(updates[end].bytes);
    }
    if (bytes > share * all) break;
    count = end;
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
  // Somewhat more than the pieces of a device, so that none of a recorded step's is cut again.
  constexpr Bytes kPieces = 32;
  const auto updates =
      in_groups(deferrable_updates(trace, may_wait), trace.operators.size(), budget / kPieces);
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
      break;  // so many gradients do not fit, or the order is impossible: more are no better
    }
    if (ms >= least) continue;
    least = ms;
    best = std::move(waiting);
  }
  return best;
}

}  // namespace lms
