#include "trace/trace.h"

#include <algorithm>
#include <cmath>

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
      if (block.bytes <= 0) note("block " + std::to_string(id) + " has no bytes");
      life_.push_back(block.born_in_step ? Life::kUnborn : Life::kAlive);
    }
    for (index_ = 0; index_ < trace_.operators.size(); ++index_) {
      visit(trace_.operators[index_]);
    }
    for (std::size_t id = 0; id < life_.size(); ++id) {
      if (life_[id] == Life::kUnborn) {
        note("block " + std::to_string(id) + " is born in the step, but in no operator");
      }
    }
    return std::move(notes_);
  }

 private:
  void note(std::string text) { notes_.push_back(std::move(text)); }
  void complain(TraceBlockId id, const char* what) {
    note("operator " + std::to_string(index_) + " (" + trace_.operators[index_].name + ") " + what +
         " block " + std::to_string(id));
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

  void visit(const TraceOperator& op) {
    if (!std::isfinite(op.ms) || op.ms < 0) {
      note("operator " + std::to_string(index_) + " (" + op.name + ") takes no possible time");
    }
    if (op.workspace < 0) {
      note("operator " + std::to_string(index_) + " (" + op.name + ") has a negative workspace");
    }
    used(op.reads, "reads the unborn", "reads the dead");
    used(op.writes, "writes the unborn", "writes the dead");
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

TraceBlockId TraceBuilder::existing(Bytes bytes) {
  if (!trace_.operators.empty()) throw Error("existing(): the step has begun");
  trace_.blocks.push_back({bytes, false});
  return static_cast<TraceBlockId>(trace_.blocks.size() - 1);
}

std::size_t TraceBuilder::run(std::string_view name, std::vector<TraceBlockId> reads,
                              std::vector<TraceBlockId> writes, double ms, Bytes workspace) {
  trace_.operators.push_back(
      {std::string(name), std::move(reads), std::move(writes), {}, {}, ms, workspace});
  return trace_.operators.size() - 1;
}

TraceBlockId TraceBuilder::result(Bytes bytes) {
  if (trace_.operators.empty()) throw Error("result(): no operator has run");
  trace_.blocks.push_back({bytes, true});
  const auto id = static_cast<TraceBlockId>(trace_.blocks.size() - 1);
  trace_.operators.back().allocs.push_back(id);
  return id;
}

void TraceBuilder::dies(TraceBlockId block) {
  if (trace_.operators.empty()) throw Error("dies(): no operator has run");
  trace_.operators.back().frees.push_back(block);
}

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
