#include "bound/below.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lms {
namespace {

constexpr int kMostSteps = 4;  ///< what is carried may take some steps to come round

class Below {
 public:
  Below(const Trace& trace, const Plan& plan)
      : trace_(trace), plan_(plan), copied_(trace.blocks.size()) {
    for (const TraceBlockId id : plan.absent_at_start) set(id, true);
  }

  Bytes most() {
    for (int step = 0; step < kMostSteps; ++step) {
      const std::vector<bool> began = copied_;
      one_step();
      carry();
      if (copied_ == began) break;
    }
    return most_;
  }

 private:
  void set(TraceBlockId id, bool copied) {
    if (copied_[id] == copied) return;
    copied_[id] = copied;
    bytes_ += copied ? trace_.blocks[id].bytes : -trace_.blocks[id].bytes;
    most_ = std::max(most_, bytes_);
  }

  void one_step() {
    auto directive = plan_.directives.begin();
    for (std::size_t now = 0; now <= trace_.operators.size(); ++now) {
      for (; directive != plan_.directives.end() && directive->before == now; ++directive) {
        if (directive->action == Action::kStartOut) set(directive->block, true);
        if (directive->action == Action::kDrop) set(directive->block, false);
      }
      if (now == trace_.operators.size()) return;
      for (const TraceBlockId id : trace_.operators[now].writes) set(id, false);
      for (const TraceBlockId id : trace_.operators[now].frees) set(id, false);
    }
  }

  /// The next step finds what this one leaves.
  void carry() {
    std::vector<bool> next(copied_.size());
    bytes_ = 0;
    for (std::size_t id = 0; id < next.size(); ++id) {
      const TraceBlock& block = trace_.blocks[id];
      if (block.born_in_step) continue;
      next[id] = copied_[trace_.name_at_birth(static_cast<TraceBlockId>(id))];
      if (next[id]) bytes_ += block.bytes;
    }
    copied_ = std::move(next);
  }

  const Trace& trace_;
  const Plan& plan_;
  std::vector<bool> copied_;
  Bytes bytes_ = 0;
  Bytes most_ = 0;
};

}  // namespace

Bytes most_below(const Trace& trace, const Plan& plan) { return Below(trace, plan).most(); }

}  // namespace lms
