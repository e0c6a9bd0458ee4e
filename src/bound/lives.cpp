#include "bound/lives.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "plan/updates.h"

namespace lms {
namespace {

bool is_list_operator(const std::string& name) {
  return name.find("_foreach_") != std::string::npos || name.find("_fused_") != std::string::npos ||
         name.starts_with(kListPass);
}

/// What happens to one block, in order.
struct Life {
  struct Use {
    Moment at;
    bool writes;
  };
  std::vector<Use> uses;
  std::optional<Moment> born;
  std::optional<Moment> died;  ///< after this operator
};

std::vector<Life> find_lives(const Trace& trace) {
  std::vector<Life> lives(trace.blocks.size());
  for (std::size_t i = 0; i < trace.operators.size(); ++i) {
    const TraceOperator& op = trace.operators[i];
    const auto at = static_cast<Moment>(i);
    for (const TraceBlockId id : op.reads) lives[id].uses.push_back({at, false});
    for (const TraceBlockId id : op.writes) {
      auto& uses = lives[id].uses;
      if (!uses.empty() && uses.back().at == at) {
        uses.back().writes = true;
      } else {
        uses.push_back({at, true});
      }
    }
    for (const TraceBlockId id : op.allocs) {
      lives[id].uses.push_back({at, true});
      lives[id].born = at;
    }
    for (const TraceBlockId id : op.frees) lives[id].died = at;
  }
  return lives;
}

/// What running all operators again that wrote a block costs, as it grows with each.
class RerunCost {
 public:
  explicit RerunCost(const Trace& trace) : trace_(trace) {}

  void begin(bool known) {
    known_ = known;
    ms_ = 0;
  }
  void add(Moment at) {
    const auto i = static_cast<std::size_t>(at) % trace_.operators.size();
    known_ = known_ && trace_.operators[i].repeatable;
    ms_ += trace_.operators[i].again_ms();
  }
  [[nodiscard]] std::optional<double> ms() const {
    return known_ ? std::optional(ms_) : std::nullopt;
  }

 private:
  const Trace& trace_;
  bool known_ = false;
  double ms_ = 0;
};

class Finder {
 public:
  explicit Finder(const Trace& trace)
      : trace_(trace), steps_(static_cast<Moment>(trace.operators.size())), rerun_cost_(trace) {}

  std::vector<BoundVersion> run() {
    const std::vector<Life> lives = find_lives(trace_);
    std::set<TraceBlockId> carried;
    for (const TraceBlock& block : trace_.blocks) {
      if (block.carried_from != kNoBlock) {
        carried.insert(static_cast<TraceBlockId>(block.carried_from));
      }
    }
    for (TraceBlockId id = 0; id < trace_.blocks.size(); ++id) {
      const TraceBlock& block = trace_.blocks[id];
      if (!block.movable || carried.contains(id)) continue;
      if (block.carried_from != kNoBlock) {
        const auto from = static_cast<TraceBlockId>(block.carried_from);
        if (trace_.blocks[from].movable) {
          passing(block.bytes, joined(lives[from], lives[id]));
        }
      } else if (block.born_in_step || lives[id].died) {
        passing(block.bytes, lives[id]);
      } else {
        lasting(block.bytes, lives[id]);
      }
    }
    return std::move(versions_);
  }

 private:
  /// The life of a block in the step that makes it and in the one after.
  [[nodiscard]] Life joined(const Life& first, const Life& second) const {
    Life life = first;
    for (const Life::Use& use : second.uses) life.uses.push_back({use.at + steps_, use.writes});
    life.died = second.died.value_or(steps_ - 1) + steps_;
    return life;
  }

  void open(std::optional<Moment> written, Bytes bytes) {
    versions_.push_back({.written = written, .recompute_ms = rerun_cost_.ms(), .bytes = bytes});
  }
  void close() {
    if (versions_.back().gaps.empty()) {
      versions_.pop_back();
    } else {
      divide_at_end();
    }
  }
  void gap(const BoundGap& gap) {
    if (gap.end - gap.begin > 1) versions_.back().gaps.push_back(gap);
  }
  /// A version that lives on into the next step. Over the step's end it may be copied and not
  /// dropped: nothing of one step is run again in another. Before and after it may be either; a
  /// copy then costs its way back alone, as if it had been made for the gap over the end.
  void divide_at_end() {
    if (!versions_.back().recompute_ms) return;
    BoundVersion within = versions_.back();
    BoundVersion& over = versions_.back();
    const auto crosses = [&](const BoundGap& gap) {
      return gap.begin < steps_ && gap.end >= steps_;
    };
    std::erase_if(over.gaps, std::not_fn(crosses));
    if (over.gaps.empty()) {
      over = std::move(within);
      return;
    }
    std::erase_if(within.gaps, crosses);
    over.recompute_ms.reset();
    within.written.reset();
    if (!within.gaps.empty()) versions_.push_back(std::move(within));
  }

  /// A block that is born, or dies, in the step.
  void passing(Bytes bytes, const Life& life) {
    rerun_cost_.begin(life.born.has_value());
    open(std::nullopt, bytes);
    Moment before = -1;
    for (const Life::Use& use : life.uses) {
      if (life.born != use.at) gap({before, use.at});
      if (use.writes) {
        close();
        rerun_cost_.add(use.at);
        open(use.at, bytes);
      }
      before = use.at;
    }
    const Moment last = life.died.value_or(steps_ - 1);
    gap({before, last + 1, /*ends_in_use=*/false});
    close();
  }

  /// A block that serves every step.
  void lasting(Bytes bytes, const Life& life) {
    rerun_cost_.begin(false);
    if (life.uses.empty()) {
      open(std::nullopt, bytes);
      gap({-1, steps_, /*ends_in_use=*/false});
      close();
      return;
    }
    // Once around, from the last write on: its version lives on into the next step.
    std::size_t first = life.uses.size() - 1;
    bool written = false;
    for (std::size_t k = 0; k < life.uses.size(); ++k) {
      if (!life.uses[k].writes) continue;
      written = true;
      first = k;
    }
    open(written ? std::optional(life.uses[first].at) : std::nullopt, bytes);
    for (std::size_t k = 0; k < life.uses.size(); ++k) {
      const std::size_t here = first + k;
      const std::size_t next = here + 1;
      const auto at = [&](std::size_t n) {
        return life.uses[n % life.uses.size()].at +
               static_cast<Moment>(n / life.uses.size()) * steps_;
      };
      if (k > 0 && life.uses[here % life.uses.size()].writes) {
        close();
        open(at(here), bytes);
      }
      gap({at(here), at(next)});
    }
    close();
  }

  const Trace& trace_;
  const Moment steps_;
  RerunCost rerun_cost_;
  std::vector<BoundVersion> versions_;
};

/// One part of a list operator for every block that it uses or makes.
void append_parts(const TraceOperator& op, const Trace& trace, std::vector<TraceOperator>& parts) {
  struct Roles {
    bool reads = false, writes = false, makes = false;
  };
  std::vector<TraceBlockId> order;
  std::map<TraceBlockId, Roles> roles;
  const auto note = [&](const std::vector<TraceBlockId>& list, bool Roles::*role) {
    for (const TraceBlockId id : list) {
      const auto [found, fresh] = roles.try_emplace(id);
      if (fresh) order.push_back(id);
      found->second.*role = true;
    }
  };
  note(op.reads, &Roles::reads);
  note(op.writes, &Roles::writes);
  note(op.allocs, &Roles::makes);
  double total = 0;
  for (const TraceBlockId id : order) total += static_cast<double>(trace.blocks[id].bytes);
  for (const TraceBlockId id : order) {
    TraceOperator& part = parts.emplace_back();
    part.name = op.name;
    part.ms = op.ms * static_cast<double>(trace.blocks[id].bytes) / total;
    part.workspace = op.workspace;
    part.repeatable = op.repeatable;
    if (roles[id].reads) part.reads.push_back(id);
    if (roles[id].writes) part.writes.push_back(id);
    if (roles[id].makes) part.allocs.push_back(id);
  }
  parts.back().frees = op.frees;
}

}  // namespace

Trace split_lists(const Trace& trace) {
  Trace result;
  result.blocks = trace.blocks;
  for (const TraceOperator& op : trace.operators) {
    if (is_list_operator(op.name) && op.reads.size() + op.writes.size() + op.allocs.size() > 1) {
      append_parts(op, trace, result.operators);
    } else {
      result.operators.push_back(op);
    }
  }
  return result;
}

std::vector<BoundVersion> find_versions(const Trace& trace) { return Finder(trace).run(); }

}  // namespace lms
