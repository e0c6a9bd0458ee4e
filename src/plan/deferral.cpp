#include "plan/deferral.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "plan/search.h"

namespace lms {
namespace {

using Ids = std::vector<TraceBlockId>;

bool contains(const Ids& ids, TraceBlockId id) { return std::ranges::find(ids, id) != ids.end(); }

bool is_update(const TraceOperator& op) { return op.name.find("_fused_") != std::string::npos; }

/// What is at each position of the operator's lists: those of weights, of gradients, and of state,
/// one after the other. Nothing if they are not those of an optimizer.
std::vector<Ids> positions_of(const TraceOperator& op, const Trace& trace) {
  const auto born = [&](TraceBlockId id) { return trace.blocks[id].born_in_step; };
  const auto count = static_cast<std::size_t>(std::ranges::count_if(op.reads, born));
  if (count == 0 || op.reads.size() % count != 0 || op.reads.size() < 2 * count) return {};
  std::vector<Ids> positions(count);
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    if (born(op.reads[i]) != (i / count == 1)) return {};
    positions[i % count].push_back(op.reads[i]);
  }
  return positions;
}

class UpdateFinder {
 public:
  explicit UpdateFinder(const Trace& trace)
      : trace_(trace), carried_(trace.blocks.size(), kNoBlock) {
    for (std::size_t id = 0; id < trace.blocks.size(); ++id) {
      const std::int64_t from = trace.blocks[id].carried_from;
      if (from != kNoBlock)
        carried_[static_cast<std::size_t>(from)] = static_cast<std::int64_t>(id);
    }
  }

  std::vector<WeightUpdate> run() {
    std::vector<WeightUpdate> updates;
    for (std::size_t at = 0; at < trace_.operators.size(); ++at) {
      const TraceOperator& op = trace_.operators[at];
      if (!is_update(op)) continue;
      double bytes = 0;
      for (const TraceBlockId id : op.reads) bytes += static_cast<double>(trace_.blocks[id].bytes);
      for (const Ids& blocks : positions_of(op, trace_)) {
        WeightUpdate update{.op = at, .blocks = blocks};
        for (const TraceBlockId id : blocks) update.bytes += trace_.blocks[id].bytes;
        update.ms = op.ms * static_cast<double>(update.bytes) / bytes;
        const auto wanted = wanted_by(update);
        if (!wanted || !movable(blocks)) continue;
        update.wanted_by = *wanted;
        updates.push_back(std::move(update));
      }
    }
    return updates;
  }

 private:
  [[nodiscard]] bool movable(const Ids& blocks) const {
    return std::ranges::all_of(blocks, [&](TraceBlockId id) { return trace_.blocks[id].movable; });
  }

  /// Nothing if no other operator uses these blocks.
  [[nodiscard]] std::optional<std::size_t> wanted_by(const WeightUpdate& update) const {
    for (std::size_t i = update.op + 1; i < trace_.operators.size(); ++i) {
      if (uses(trace_.operators[i], update.blocks)) return i;
    }
    // In the next step the gradient has another name.
    Ids next;
    for (const TraceBlockId id : update.blocks) {
      if (!trace_.blocks[id].born_in_step) {
        next.push_back(id);
      } else if (carried_[id] != kNoBlock) {
        next.push_back(static_cast<TraceBlockId>(carried_[id]));
      }
    }
    for (std::size_t i = 0; i < update.op; ++i) {
      if (uses(trace_.operators[i], next)) return i;
    }
    return std::nullopt;
  }

  static bool uses(const TraceOperator& op, const Ids& blocks) {
    return std::ranges::any_of(
        blocks, [&](TraceBlockId id) { return contains(op.reads, id) || contains(op.writes, id); });
  }

  const Trace& trace_;
  std::vector<std::int64_t> carried_;
};

class Rewriter {
 public:
  explicit Rewriter(const Trace& trace) : trace_(trace), before_(trace.operators.size()) {}

  Trace run(const std::vector<WeightUpdate>& waiting) {
    for (const WeightUpdate& update : waiting) put_off(update);
    Trace result = {.blocks = trace_.blocks, .operators = {}};
    for (std::size_t i = 0; i < trace_.operators.size(); ++i) {
      result.operators.insert(result.operators.end(), before_[i].begin(), before_[i].end());
      if (!trace_.operators[i].reads.empty() || !emptied_.contains(i)) {
        result.operators.push_back(trace_.operators[i]);
      } else if (!result.operators.empty()) {
        auto& frees = result.operators.back().frees;
        frees.insert(frees.end(), trace_.operators[i].frees.begin(),
                     trace_.operators[i].frees.end());
      }
    }
    const auto notes = result.validate();
    if (!notes.empty()) throw Error("with updates deferred the step is impossible: " + notes[0]);
    return result;
  }

 private:
  void put_off(const WeightUpdate& update) {
    const bool in_next_step = update.wanted_by < update.op;
    TraceOperator& op = trace_.operators[update.op];
    TraceOperator part = {.name = op.name, .workspace = op.workspace};
    part.ms = update.ms;
    for (const TraceBlockId id : update.blocks) {
      TraceBlockId now = id;
      if (trace_.blocks[id].born_in_step) {
        if (in_next_step) now = carry_over(id);
        if (in_next_step || lets_go(id, update.op, update.wanted_by)) part.frees.push_back(now);
      }
      part.reads.push_back(now);
      if (contains(op.writes, id)) part.writes.push_back(now);
      std::erase(op.reads, id);
      std::erase(op.writes, id);
    }
    op.ms = std::max(0.0, op.ms - update.ms);
    emptied_.insert(update.op);
    before_[update.wanted_by].push_back(std::move(part));
  }

  /// True if the block dies in [begin, end); it does not any more.
  bool lets_go(TraceBlockId id, std::size_t begin, std::size_t end) {
    bool found = false;
    for (std::size_t i = begin; i < end; ++i) {
      found = std::erase(trace_.operators[i].frees, id) > 0 || found;
    }
    return found;
  }

  /// A gradient lives on into the next step. Returns what it is called there.
  TraceBlockId carry_over(TraceBlockId gradient) {
    const std::size_t all = trace_.operators.size();
    (void)lets_go(gradient, 0, all);
    for (TraceBlockId id = 0; id < trace_.blocks.size(); ++id) {
      if (trace_.blocks[id].carried_from != gradient) continue;
      (void)lets_go(id, 0, all);
      return id;
    }
    trace_.blocks.push_back({.bytes = trace_.blocks[gradient].bytes, .carried_from = gradient});
    return static_cast<TraceBlockId>(trace_.blocks.size() - 1);
  }

  Trace trace_;
  std::vector<std::vector<TraceOperator>> before_;  ///< each operator: what has waited for it
  std::set<std::size_t> emptied_;
};

}  // namespace

std::vector<WeightUpdate> deferrable_updates(const Trace& trace) {
  return UpdateFinder(trace).run();
}

Trace with_updates_deferred(const Trace& trace, const std::vector<WeightUpdate>& waiting) {
  return Rewriter(trace).run(waiting);
}

std::vector<WeightUpdate> latest_wanted(std::vector<WeightUpdate> updates, std::size_t operators,
                                        double share) {
  double all = 0;
  for (const WeightUpdate& update : updates) all += static_cast<double>(update.bytes);
  const auto wait = [&](const WeightUpdate& update) {
    return (update.wanted_by + operators - update.op) % operators;
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

std::vector<WeightUpdate> choose_deferred(const Trace& trace, Bytes budget, const LinkModel& link,
                                          const SearchOptions& options) {
  // Where the bound on a language model's step is least: more would keep too many gradients.
  constexpr std::array kShares = {0.08, 0.15, 0.22, 0.3, 0.4};
  // Another order takes the step's learning anew, and predictions are not exact.
  constexpr double kWorthIt = 0.97;
  const auto updates = deferrable_updates(trace);
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
    } catch (const OutOfMemory&) {
      break;  // so many gradients do not fit
    }
    if (ms >= least) continue;
    least = ms;
    best = std::move(waiting);
  }
  return best;
}

}  // namespace lms
