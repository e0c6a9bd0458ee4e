#include "trace/trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace lms {
namespace {

enum class Life : std::uint8_t { kUnborn, kAlive, kDead };

/// Follows the life of every block through the operators and notes what cannot have happened.
class Validator {
 public:
  explicit Validator(const Trace& trace) : trace_(trace) {}

  std::vector<std::string> run() {
    if (trace_.version != kTraceVersion) {
      return {"version " + std::to_string(trace_.version) + " is not " +
              std::to_string(kTraceVersion)};
    }
    for (std::size_t id = 0; id < trace_.blocks.size(); ++id) {
      const TraceBlock& block = trace_.blocks[id];
      if (block.bytes <= 0) note(name_of(id) + " has no bytes");
      life_.push_back(block.born_in_step ? Life::kUnborn : Life::kAlive);
    }
    for (index_ = 0; index_ < trace_.operators.size(); ++index_) {
      visit(trace_.operators[index_]);
    }
    for (std::size_t id = 0; id < life_.size(); ++id) {
      if (life_[id] == Life::kUnborn) {
        note(name_of(id) + " is born in the step, but in no operator");
      }
    }
    check_carried();
    return std::move(notes_);
  }

 private:
  static std::string name_of(std::size_t id) { return "block " + std::to_string(id); }

  void note(std::string text) { notes_.push_back(std::move(text)); }
  void note_here(const std::string& text) {
    note("operator " + std::to_string(index_) + " (" + trace_.operators[index_].name + ") " + text);
  }
  void complain(TraceBlockId id, const char* what) {
    note_here(std::string(what) + " " + name_of(id));
  }

  /// The ids of `list` that exist, and complaints about those that do not or that come twice.
  std::vector<TraceBlockId> known(const std::vector<TraceBlockId>& list) {
    std::vector<TraceBlockId> good;
    for (const TraceBlockId id : list) {
      if (id >= life_.size()) {
        complain(id, "names the unknown");
      } else if (std::ranges::find(good, id) != good.end()) {
        complain(id, "names twice the");
      } else {
        good.push_back(id);
      }
    }
    return good;
  }

  void used(const std::vector<TraceBlockId>& list, const char* unborn, const char* dead) {
    for (const TraceBlockId id : known(list)) {
      if (life_[id] == Life::kUnborn) complain(id, unborn);
      if (life_[id] == Life::kDead) complain(id, dead);
    }
  }

  /// Once all lives are known.
  void check_carried() {
    std::vector<bool> taken(trace_.blocks.size(), false);
    for (std::size_t id = 0; id < trace_.blocks.size(); ++id) {
      const TraceBlock& block = trace_.blocks[id];
      if (block.carried_from == kNoBlock) continue;
      const auto from = static_cast<std::size_t>(block.carried_from);
      if (block.carried_from < 0 || from >= trace_.blocks.size()) {
        note(name_of(id) + " is carried from the unknown block " +
             std::to_string(block.carried_from));
        continue;
      }
      const std::string both = name_of(id) + " is carried from " + name_of(from);
      if (block.born_in_step) note(both + ", but born in the step");
      if (!trace_.blocks[from].born_in_step) note(both + ", which is not born in the step");
      if (life_[from] == Life::kDead) note(both + ", which is dead when the step ends");
      if (trace_.blocks[from].bytes != block.bytes) note(both + ", which has another size");
      if (taken[from]) note(both + ", as another block is");
      taken[from] = true;
    }
  }

  void check_temporaries(const TraceOperator& op) {
    const std::size_t made = op.allocs.size() + op.temporaries.size();
    bool sound = true;
    for (std::size_t k = 0; k < op.temporaries.size(); ++k) {
      const TraceTemporary& temporary = op.temporaries[k];
      const std::string name = "has temporary " + std::to_string(k);
      if (temporary.bytes <= 0) note_here(name + " without bytes");
      if (temporary.begin >= temporary.end || temporary.end > made) {
        note_here(name + " with no possible life");
        sound = false;
      }
      if (k > 0 && temporary.begin <= op.temporaries[k - 1].begin) {
        note_here(name + " out of order");
        sound = false;
      }
    }
    if (sound && !op.temporaries.empty() && op.workspace < trace_.beside_results(op)) {
      note_here("has less workspace than its temporaries need");
    }
  }

  void visit(const TraceOperator& op) {
    if (!std::isfinite(op.ms) || op.ms < 0) note_here("takes no possible time");
    if (!std::isfinite(op.host_ms) || op.host_ms < 0)
      note_here("takes no possible time on the host");
    if (!std::isfinite(op.replay_ms)) note_here("takes no possible time to run again");
    if (op.workspace < 0) note_here("has a negative workspace");
    check_temporaries(op);
    used(op.reads, "reads the unborn", "reads the dead");
    used(op.writes, "writes the unborn", "writes the dead");
    (void)known(op.replay_reads);
    for (const TraceBlockId id : known(op.spared)) {
      if (std::ranges::find(op.writes, id) == op.writes.end()) complain(id, "spares the unwritten");
    }
    for (const TraceBlockId id : known(op.allocs)) {
      if (life_[id] != Life::kUnborn) complain(id, "makes again the");
      if (life_[id] == Life::kUnborn) life_[id] = Life::kAlive;
    }
    for (const TraceBlockId id : known(op.frees)) {
      if (life_[id] != Life::kAlive) complain(id, "ends, though not alive,");
      life_[id] = Life::kDead;
    }
  }

  const Trace& trace_;
  std::size_t index_ = 0;
  std::vector<Life> life_;
  std::vector<std::string> notes_;
};

}  // namespace

double Trace::host_ms() const {
  double sum = 0;
  for (const TraceOperator& op : operators) sum += op.host_ms;
  return sum;
}

Bytes beside_results(std::span<const Bytes> allocations,
                     std::span<const TraceTemporary> temporaries) {
  Bytes peak = 0;
  Bytes results = 0;
  std::size_t next = 0;
  for (std::uint32_t made = 0; made < allocations.size(); ++made) {
    if (next < temporaries.size() && temporaries[next].begin == made) {
      ++next;
    } else {
      results += allocations[made];
    }
    Bytes held = results;
    for (const TraceTemporary& one : temporaries.first(next)) {
      if (made < one.end) held += allocations[one.begin];
    }
    peak = std::max(peak, held);
  }
  return peak - results;
}

Bytes Trace::beside_results(const TraceOperator& op) const {
  std::vector<Bytes> allocations;
  std::size_t temporary = 0;
  std::size_t result = 0;
  while (temporary < op.temporaries.size() || result < op.allocs.size()) {
    const bool holds =
        temporary < op.temporaries.size() &&
        (op.temporaries[temporary].begin == allocations.size() || result == op.allocs.size());
    allocations.push_back(holds ? op.temporaries[temporary++].bytes
                                : blocks.at(op.allocs[result++]).bytes);
  }
  return lms::beside_results(allocations, op.temporaries);
}

bool TraceOperator::spares(TraceBlockId block) const {
  return std::ranges::find(spared, block) != spared.end();
}

std::vector<std::string> Trace::validate() const { return Validator(*this).run(); }

std::vector<Bytes> Trace::live_bytes() const {
  Bytes live = 0;
  for (const TraceBlock& block : blocks) live += block.born_in_step ? 0 : block.bytes;
  std::vector<Bytes> result;
  result.reserve(operators.size());
  for (const TraceOperator& op : operators) {
    for (const TraceBlockId id : op.allocs) live += blocks.at(id).bytes;
    result.push_back(live + op.workspace);
    for (const TraceBlockId id : op.frees) live -= blocks.at(id).bytes;
  }
  return result;
}

std::vector<Bytes> Trace::least_bytes() const {
  Bytes unmovable = 0;
  for (const TraceBlock& block : blocks) {
    if (!block.movable && !block.born_in_step) unmovable += block.bytes;
  }
  std::vector<std::size_t> counted(blocks.size());  // by which operator, from 1
  std::vector<Bytes> least;
  least.reserve(operators.size());
  for (const TraceOperator& op : operators) {
    for (const TraceBlockId id : op.allocs) {
      if (!blocks.at(id).movable) unmovable += blocks[id].bytes;
    }
    Bytes needed = unmovable + op.workspace;
    for (const auto* list : {&op.reads, &op.writes, &op.allocs}) {
      for (const TraceBlockId id : *list) {
        const std::size_t number = least.size() + 1;
        if (!blocks.at(id).movable || std::exchange(counted[id], number) == number) continue;
        needed += blocks[id].bytes;
      }
    }
    least.push_back(needed);
    for (const TraceBlockId id : op.frees) {
      if (!blocks.at(id).movable) unmovable -= blocks[id].bytes;
    }
  }
  return least;
}

TraceBlockId TraceBuilder::existing(Bytes bytes) {
  if (!trace_.operators.empty()) throw Error("existing(): the step has begun");
  trace_.blocks.push_back({bytes, false});
  return static_cast<TraceBlockId>(trace_.blocks.size() - 1);
}

void TraceBuilder::unmovable(TraceBlockId block) { at(block).movable = false; }

void TraceBuilder::carried(TraceBlockId block, TraceBlockId from) { at(block).carried_from = from; }

TraceBlock& TraceBuilder::at(TraceBlockId block) {
  if (block >= trace_.blocks.size()) throw Error("no block " + std::to_string(block));
  return trace_.blocks[block];
}

std::size_t TraceBuilder::run(std::string_view name, std::vector<TraceBlockId> reads,
                              std::vector<TraceBlockId> writes, double ms, Bytes workspace) {
  TraceOperator op;
  op.name = name;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  op.ms = ms;
  op.workspace = workspace;
  trace_.operators.push_back(std::move(op));
  return trace_.operators.size() - 1;
}

TraceOperator& TraceBuilder::last(const char* caller) {
  if (trace_.operators.empty()) throw Error(std::string(caller) + ": no operator has run");
  return trace_.operators.back();
}

void TraceBuilder::temporary(Bytes bytes, std::uint32_t begin, std::uint32_t end) {
  last("temporary()").temporaries.push_back({bytes, begin, end});
}

void TraceBuilder::on_host(double ms, bool waits) {
  TraceOperator& op = last("on_host");
  op.host_ms = ms;
  op.host_waits = waits;
}

void TraceBuilder::repeatable(double replay_ms) {
  TraceOperator& op = last("repeatable()");
  op.repeatable = true;
  op.replay_ms = replay_ms;
}

void TraceBuilder::reads_again(std::vector<TraceBlockId> blocks) {
  last("reads_again()").replay_reads = std::move(blocks);
}

void TraceBuilder::spared(TraceBlockId block) { last("spared()").spared.push_back(block); }

TraceBlockId TraceBuilder::result(Bytes bytes) {
  TraceOperator& op = last("result()");
  trace_.blocks.push_back({bytes, true});
  const auto id = static_cast<TraceBlockId>(trace_.blocks.size() - 1);
  op.allocs.push_back(id);
  return id;
}

void TraceBuilder::dies(TraceBlockId block) { last("dies()").frees.push_back(block); }

Trace TraceBuilder::build() const {
  const auto notes = trace_.validate();
  if (!notes.empty()) {
    std::string text = "inconsistent trace";
    for (const auto& line : notes) text += "; " + line;
    throw Error(text);
  }
  return trace_;
}

}  // namespace lms
