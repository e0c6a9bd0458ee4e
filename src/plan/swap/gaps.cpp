#include "plan/swap/gaps.h"

#include <algorithm>

namespace lms {
namespace {

constexpr int kUnused = -1;

/// Follows the blocks through the step and collects the gaps between their uses.
class Finder {
 public:
  Finder(const Trace& trace, StepModel& model)
      : trace_(trace), model_(model), blocks_(trace.blocks.size()) {}

  void run() {
    model_.versions.reserve(2 * blocks_.size());
    model_.gaps.reserve(2 * blocks_.size());
    gaps_before_.reserve(2 * blocks_.size());
    for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
      const std::int64_t from = trace_.blocks[id].carried_from;
      if (from != kNoBlock) {
        blocks_[id].carried = true;
        blocks_[static_cast<std::size_t>(from)].carried = true;
      }
      if (!trace_.blocks[id].born_in_step) blocks_[id].version = new_version(id, 1);
    }
    for (int at = 1; at < model_.operators - 1; ++at) operate(at);
    for (TraceBlockId id = 0; id < blocks_.size(); ++id) end_step(id);
  }

 private:
  struct Life {
    int last = kUnused;   ///< operator that used it last
    int first = kUnused;  ///< operator that used it first
    int version = kUnused;
    bool written = false;  ///< in this step
    bool dead = false;
    bool carried = false;  ///< under another name from one step to the next
    int first_version = kUnused;
    int last_gap = kUnused;
  };

  int new_version(TraceBlockId id, int ready) {
    model_.versions.push_back({.ready = ready});
    const int version = static_cast<int>(model_.versions.size()) - 1;
    if (blocks_[id].first_version == kUnused) blocks_[id].first_version = version;
    return version;
  }

  bool gap(TraceBlockId id, int begin, int end, bool returns, int version) {
    if (begin >= end || !trace_.blocks[id].movable) return false;
    Gap found{id, trace_.blocks[id].bytes, begin, end, returns, version};
    if (found.begin >= model_.operators) {
      found.begin -= model_.operators;
      found.end -= model_.operators;
    }
    gaps_before_.push_back(blocks_[id].last_gap);
    blocks_[id].last_gap = static_cast<int>(model_.gaps.size());
    model_.gaps.push_back(found);
    return true;
  }

  void use(TraceBlockId id, int at) {
    Life& life = blocks_[id];
    if (life.last == at) return;
    if (life.last == kUnused) {
      life.first = at;
    } else {
      gap(id, life.last + 1, at, true, life.version);
    }
    life.last = at;
  }

  void write(TraceBlockId id, int at) {
    Life& life = blocks_[id];
    life.version = new_version(id, at + 1);
    life.written = true;
  }

  void operate(int at) {
    const TraceOperator& op = trace_.operators[static_cast<std::size_t>(at - 1)];
    for (const TraceBlockId id : op.reads) use(id, at);
    for (const TraceBlockId id : op.writes) use(id, at);
    for (const TraceBlockId id : op.writes) write(id, at);
    for (const TraceBlockId id : op.allocs) {
      use(id, at);
      write(id, at);
    }
    for (const TraceBlockId id : op.frees) {
      Life& life = blocks_[id];
      gap(id, std::max(1, life.last + 1), at + 1, false, life.version);
      life.dead = true;
    }
  }

  void end_step(TraceBlockId id) {
    Life& life = blocks_[id];
    const int n = model_.operators;
    if (!trace_.blocks[id].born_in_step && !life.dead && !life.carried) {
      if (life.first != kUnused) wrap(id);
      return;
    }
    if (!trace_.blocks[id].born_in_step) {
      gap(id, 1, life.first, true, life.first_version);
      if (life.dead && !life.carried) model_.born.front() += trace_.blocks[id].bytes;
    }
    if (life.dead) return;
    // What the next step knows must be there at the end. Anything else is not wanted again.
    const bool heir = trace_.blocks[id].born_in_step && life.carried;
    gap(id, std::max(1, life.last + 1), heir ? n - 1 : n, heir, life.version);
    if (!heir) model_.freed.back() += trace_.blocks[id].bytes;
  }

  /// The gap over the step's end of a block that serves every step.
  void wrap(TraceBlockId id) {
    const Life& life = blocks_[id];
    const int n = model_.operators;
    Version& last = model_.versions[static_cast<std::size_t>(life.version)];
    if (!life.written) {
      last.clean = true;
    } else {
      // What the step's last write leaves is what the next step begins with.
      for (int index = life.last_gap; index != kUnused;) {
        const auto at = static_cast<std::size_t>(index);
        int& version = model_.gaps[at].version;
        if (version == life.first_version) version = life.version;
        index = gaps_before_[at];
      }
    }
    gap(id, life.last + 1, n + life.first, true, life.version);
  }

  const Trace& trace_;
  StepModel& model_;
  std::vector<Life> blocks_;
  std::vector<int> gaps_before_;  ///< by gap: the one before it of the same block
};

}  // namespace

StepModel::StepModel(const Trace& trace)
    : operators(static_cast<int>(trace.operators.size()) + 2), blocks(trace.blocks.size()) {
  const auto n = static_cast<std::size_t>(operators);
  born.reserve(n);
  freed.reserve(n);
  taken.reserve(n);
  ms.reserve(n);
  before.reserve(n);
  begins.reserve(n + 1);
  const auto add = [this](Bytes made, Bytes used, Bytes gone, double time) {
    born.push_back(made);
    taken.push_back(made + used);
    freed.push_back(gone);
    ms.push_back(time);
  };
  add(0, 0, 0, 0);
  for (const TraceOperator& op : trace.operators) {
    Bytes made = 0;
    Bytes gone = 0;
    for (const TraceBlockId id : op.allocs) made += trace.blocks[id].bytes;
    for (const TraceBlockId id : op.frees) gone += trace.blocks[id].bytes;
    add(made, op.workspace, gone, op.ms);
  }
  add(0, 0, 0, 0);
  if (trace.host_ms() > 0) add_host(trace);
  Finder(trace, *this).run();
  taken.front() = born.front();
  Bytes alive = -born.front();
  for (const TraceBlock& block : trace.blocks) alive += block.born_in_step ? 0 : block.bytes;
  double sum = 0;
  for (std::size_t op = 0; op < ms.size(); ++op) {
    before.push_back(alive);
    begins.push_back(sum);
    alive += born[op] - freed[op];
    sum += ms[op];
  }
  begins.push_back(sum);
}

void StepModel::add_host(const Trace& trace) {
  host_ms.push_back(0);
  host_waits.push_back(0);
  for (const TraceOperator& op : trace.operators) {
    host_ms.push_back(op.host_ms);
    host_waits.push_back(op.host_waits ? 1 : 0);
    waits = waits || op.host_waits;
  }
  host_ms.push_back(0);
  host_waits.push_back(0);
}

void StepModel::add(std::vector<Bytes>& sums, const Gap& gap, Bytes bytes) const {
  const auto first = sums.begin();
  const int here = std::min(gap.end, operators);
  std::for_each(first + gap.begin, first + here, [&](Bytes& sum) { sum += bytes; });
  const int there = gap.end - operators;
  if (there <= 0) return;
  std::for_each(first, first + there, [&](Bytes& sum) { sum += bytes; });
}

}  // namespace lms
