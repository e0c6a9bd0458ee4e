#include "plan/plan.h"

#include <string_view>

namespace lms {
namespace {

enum class Place : std::uint8_t { kUnborn, kDevice, kLeaving, kBelow, kDropped, kDead, kGhost };

struct Residency {
  Place place = Place::kUnborn;
  bool kept = false;
  /// The operators so far that made or wrote it.
  std::vector<std::size_t> lineage = {};

  [[nodiscard]] bool alive() const {
    return place != Place::kUnborn && place != Place::kDead && place != Place::kGhost;
  }
  [[nodiscard]] bool here() const {
    return place == Place::kDevice || place == Place::kLeaving || place == Place::kGhost;
  }
};

class Verifier {
 public:
  Verifier(const Trace& trace, const Plan& plan, Bytes budget)
      : trace_(trace), plan_(plan), budget_(budget), blocks_(trace.blocks.size()) {}

  std::vector<std::string> run() {
    notes_ = trace_.validate();
    if (plan_.version != kPlanVersion) note("the plan's version is not understood");
    if (!notes_.empty()) return std::move(notes_);
    start();
    std::size_t next = 0;
    for (now_ = 0; now_ <= trace_.operators.size(); ++now_) {
      while (next < plan_.directives.size() && plan_.directives[next].before <= now_) {
        const Directive& directive = plan_.directives[next++];
        if (directive.before < now_) {
          note("a directive comes too late in the plan's list");
        } else {
          obey(directive);
        }
      }
      if (now_ < trace_.operators.size()) operate(trace_.operators[now_]);
    }
    if (next < plan_.directives.size()) note("directives lie beyond the end of the step");
    finish();
    return std::move(notes_);
  }

 private:
  void note(const std::string& text) { notes_.push_back(text); }
  void complain(TraceBlockId id, std::string_view what) {
    const bool after = now_ >= trace_.operators.size();
    note((after ? std::string("after the last operator")
                : "operator " + std::to_string(now_) + " (" + trace_.operators[now_].name + ")") +
         ": block " + std::to_string(id) + " " + std::string(what));
  }
  void check_budget(std::string_view when, Bytes more = 0) {
    if (device_ + more <= budget_) return;
    note(std::string(when) + " operator " + std::to_string(now_) + ": " +
         std::to_string(device_ + more) + " bytes on the device, the budget is " +
         std::to_string(budget_));
  }
  void leave(TraceBlockId id, Place to) {
    if (blocks_[id].here()) device_ -= trace_.blocks[id].bytes;
    blocks_[id].place = to;
  }
  void arrive(TraceBlockId id, Place to = Place::kDevice) {
    device_ += trace_.blocks[id].bytes;
    blocks_[id].place = to;
  }

  void start() {
    for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
      if (!trace_.blocks[id].born_in_step) arrive(id);
    }
    for (const TraceBlockId id : plan_.absent_at_start) {
      if (id >= blocks_.size() || blocks_[id].place != Place::kDevice ||
          !trace_.blocks[id].movable) {
        note("block " + std::to_string(id) + " cannot be absent when the step begins");
        continue;
      }
      leave(id, Place::kBelow);
    }
    for (const Residency& block : blocks_) at_start_.push_back(block.place);
    check_budget("before");
  }

  void obey(const Directive& directive) {
    const TraceBlockId id = directive.block;
    const bool of_the_dead = directive.action == Action::kRematerialise && id < blocks_.size() &&
                             blocks_[id].place == Place::kDead;
    const bool of_a_ghost = id < blocks_.size() && blocks_[id].place == Place::kGhost;
    if (of_a_ghost && directive.action != Action::kDrop) {
      complain(id, "is a ghost, which can only be dropped");
      return;
    }
    if (id >= blocks_.size() || !(blocks_[id].alive() || of_the_dead || of_a_ghost)) {
      complain(id, "is not alive at a directive for it");
      return;
    }
    Residency& block = blocks_[id];
    switch (directive.action) {
      case Action::kKeep:
        if (block.place != Place::kDevice) complain(id, "is to be kept, but is not on the device");
        block.kept = block.place == Place::kDevice;
        return;
      case Action::kStartOut:
        if (block.place != Place::kDevice) {
          complain(id, "starts out, but is not on the device");
        } else if (block.kept) {
          complain(id, "starts out, but is kept");
        } else if (!trace_.blocks[id].movable) {
          complain(id, "starts out, but is not movable");
        } else {
          block.place = Place::kLeaving;
        }
        return;
      case Action::kFinishOut:
        if (block.place != Place::kLeaving) {
          complain(id, "finishes a copy that was not started");
        } else {
          leave(id, Place::kBelow);
        }
        return;
      case Action::kStartIn:
        if (block.place != Place::kBelow) {
          complain(id, "starts in, but is not absent");
        } else {
          arrive(id);
          check_budget("before");
        }
        return;
      case Action::kDrop:
        drop(id);
        return;
      case Action::kRematerialise:
        rematerialise(id);
        return;
    }
    complain(id, "has a directive that is not understood");
  }

  void drop(TraceBlockId id) {
    const Residency& block = blocks_[id];
    if (block.place == Place::kGhost) {
      leave(id, Place::kDead);
    } else if (block.place != Place::kDevice) {
      complain(id, block.place == Place::kLeaving ? "is dropped while it is copied out"
                                                  : "is dropped, but is not on the device");
    } else if (block.kept) {
      complain(id, "is dropped, but is kept");
    } else if (!trace_.blocks[id].movable) {
      complain(id, "is dropped, but is not movable");
    } else if (!trace_.blocks[id].born_in_step) {
      complain(id, "is dropped, but has no lineage");
    } else {
      leave(id, Place::kDropped);
    }
  }

  void rematerialise(TraceBlockId id) {
    const bool dead = blocks_[id].place == Place::kDead;
    if (!dead && blocks_[id].place != Place::kDropped) {
      complain(id, "is rematerialised, but was not dropped");
      return;
    }
    if (dead && !(trace_.blocks[id].born_in_step && trace_.blocks[id].movable)) {
      complain(id, std::string("is rematerialised after its end, but ") +
                       (trace_.blocks[id].born_in_step ? "is not movable" : "has no lineage"));
      return;
    }
    const std::size_t wrong = notes_.size();
    for (const std::size_t step : blocks_[id].lineage) repeat(id, step);
    if (notes_.size() > wrong) return;
    arrive(id, dead ? Place::kGhost : Place::kDevice);
    for (const std::size_t step : blocks_[id].lineage) {
      const TraceOperator& op = trace_.operators[step];
      Bytes beside = op.workspace;
      for (const TraceBlockId other : op.allocs) {
        if (other != id) beside += trace_.blocks[other].bytes;
      }
      check_budget("before", beside);
    }
  }

  /// Would running operator `step` again give its part of block `id`?
  void repeat(TraceBlockId id, std::size_t step) {
    const TraceOperator& op = trace_.operators[step];
    const std::string lineage =
        "cannot be rematerialised: operator " + std::to_string(step) + " (" + op.name + ") ";
    if (!op.repeatable) complain(id, lineage + "is not repeatable");
    for (const TraceBlockId read : op.again_reads()) {
      if (read == id || op.spares(read)) continue;
      const Residency& block = blocks_[read];
      if (!block.here()) {
        complain(id, lineage + "reads block " + std::to_string(read) + ", which is absent");
      } else if (!block.lineage.empty() && block.lineage.back() >= step) {
        complain(id, lineage + "reads block " + std::to_string(read) + ", which has changed since");
      }
    }
    for (const TraceBlockId written : op.writes) {
      if (written == id) {
        if (op.spares(id)) complain(id, lineage + "spares it when it runs again");
      } else if (!op.spares(written)) {
        complain(id, lineage + "would write block " + std::to_string(written) + " again");
      }
    }
  }

  void operate(const TraceOperator& op) {
    for (const TraceBlockId id : op.reads) {
      if (!blocks_[id].here()) complain(id, "is read, but absent");
    }
    for (const TraceBlockId id : op.writes) {
      if (!blocks_[id].here()) complain(id, "is written, but absent");
      if (blocks_[id].place == Place::kLeaving) complain(id, "is written while it is copied out");
      blocks_[id].lineage.push_back(now_);
    }
    for (const TraceBlockId id : op.allocs) {
      arrive(id);
      blocks_[id].lineage.push_back(now_);
    }
    check_budget("during", op.workspace);
    for (const TraceBlockId id : op.frees) {
      if (blocks_[id].place == Place::kLeaving) complain(id, "dies while it is copied out");
      leave(id, Place::kDead);
      blocks_[id].kept = false;
    }
  }

  void finish() {
    for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
      if (blocks_[id].place == Place::kLeaving) complain(id, "is still being copied out");
      if (blocks_[id].place == Place::kGhost) complain(id, "is still there as a ghost");
      if (!trace_.blocks[id].born_in_step) finish_lasting(id);
    }
  }

  /// The next step's block `id` is there, or absent, as it was when this step began.
  void finish_lasting(TraceBlockId id) {
    const std::int64_t carried = trace_.blocks[id].carried_from;
    const TraceBlockId now = carried == kNoBlock ? id : static_cast<TraceBlockId>(carried);
    const Residency& block = blocks_[now];
    const bool was_here = at_start_[id] == Place::kDevice;
    if (!block.alive()) {
      if (!was_here) complain(id, "was absent when the step began, and is not alive at its end");
    } else if (block.place == Place::kDropped) {
      complain(now, "is dropped, and the next step needs it");
    } else if (was_here != block.here()) {
      complain(now, was_here ? "was on the device when the step began, and is absent"
                             : "was absent when the step began, and is on the device");
    }
  }

  const Trace& trace_;
  const Plan& plan_;
  Bytes budget_;
  std::vector<Residency> blocks_;
  std::vector<Place> at_start_;
  std::vector<std::string> notes_;
  std::size_t now_ = 0;
  Bytes device_ = 0;
};

}  // namespace

std::vector<std::string> verify_plan(const Trace& trace, const Plan& plan, Bytes budget) {
  return Verifier(trace, plan, budget).run();
}

}  // namespace lms
