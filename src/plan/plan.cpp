#include "plan/plan.h"

#include <string_view>

namespace lms {
namespace {

enum class Place : std::uint8_t { kNowhere, kDevice, kLeaving, kBelow };

struct Residency {
  Place place = Place::kNowhere;  ///< kNowhere: not born yet, or dead
  bool kept = false;
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
    if (blocks_[id].place != Place::kBelow) device_ -= trace_.blocks[id].bytes;
    blocks_[id].place = to;
  }
  void arrive(TraceBlockId id) {
    device_ += trace_.blocks[id].bytes;
    blocks_[id].place = Place::kDevice;
  }

  void start() {
    for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
      if (!trace_.blocks[id].born_in_step) arrive(id);
    }
    for (const TraceBlockId id : plan_.absent_at_start) {
      if (id >= blocks_.size() || blocks_[id].place != Place::kDevice) {
        note("block " + std::to_string(id) + " cannot be absent when the step begins");
        continue;
      }
      leave(id, Place::kBelow);
    }
    at_start_ = blocks_;
    check_budget("before");
  }

  void obey(const Directive& directive) {
    const TraceBlockId id = directive.block;
    if (id >= blocks_.size() || blocks_[id].place == Place::kNowhere) {
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
      case Action::kRematerialise:
        complain(id, "has no recipe");
        return;
    }
    complain(id, "has a directive that is not understood");
  }

  void operate(const TraceOperator& op) {
    for (const TraceBlockId id : op.reads) {
      if (blocks_[id].place == Place::kBelow) complain(id, "is read, but absent");
    }
    for (const TraceBlockId id : op.writes) {
      if (blocks_[id].place == Place::kBelow) complain(id, "is written, but absent");
      if (blocks_[id].place == Place::kLeaving) complain(id, "is written while it is copied out");
    }
    for (const TraceBlockId id : op.allocs) arrive(id);
    check_budget("during", op.workspace);
    for (const TraceBlockId id : op.frees) {
      if (blocks_[id].place == Place::kLeaving) complain(id, "dies while it is copied out");
      leave(id, Place::kNowhere);
    }
  }

  void finish() {
    for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
      const Place place = blocks_[id].place;
      if (place == Place::kNowhere) continue;
      if (place == Place::kLeaving) complain(id, "is still being copied out");
      const bool was_here = at_start_[id].place == Place::kDevice;
      if (!trace_.blocks[id].born_in_step && was_here != (place != Place::kBelow)) {
        complain(id, was_here ? "was on the device when the step began, and is absent"
                              : "was absent when the step began, and is on the device");
      }
    }
  }

  const Trace& trace_;
  const Plan& plan_;
  Bytes budget_;
  std::vector<Residency> blocks_;
  std::vector<Residency> at_start_;
  std::vector<std::string> notes_;
  std::size_t now_ = 0;
  Bytes device_ = 0;
};

}  // namespace

std::vector<std::string> verify_plan(const Trace& trace, const Plan& plan, Bytes budget) {
  return Verifier(trace, plan, budget).run();
}

}  // namespace lms
