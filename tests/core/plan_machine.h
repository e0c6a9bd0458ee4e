#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "trace/trace.h"

namespace lms::testing {

using Contents = std::uint64_t;

inline Contents mix(Contents seed, Contents value) {
  seed ^= value + 0x9e3779b97f4a7c15U + (seed << 6U) + (seed >> 2U);
  return seed * 0xff51afd7ed558ccdU;
}

inline bool names(const std::vector<TraceBlockId>& list, TraceBlockId id) {
  return std::ranges::count(list, id) > 0;
}

/// What operator `at` leaves in block `id` if it finds `inputs`. `run` differs for every run of an
/// operator that does not repeat.
inline Contents computed(std::size_t at, TraceBlockId id, Contents inputs, Contents run) {
  return mix(mix(mix(at + 1, id), inputs), run);
}

/// Contents of all blocks after each operator when nothing moves; [0] is the step's beginning.
inline std::vector<std::vector<Contents>> undisturbed(const Trace& trace) {
  std::vector<std::vector<Contents>> after(1);
  for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) after[0].push_back(mix(77, id));
  for (std::size_t at = 0; at < trace.operators.size(); ++at) {
    const TraceOperator& op = trace.operators[at];
    Contents inputs = 0;
    Contents all = 0;
    for (const auto* list : {&op.reads, &op.writes}) {
      for (const auto id : *list) {
        all = mix(all, after[at][id]);
        if (!op.spares(id)) inputs = mix(inputs, after[at][id]);
      }
    }
    after.push_back(after[at]);
    for (const auto id : op.writes) {
      after.back()[id] = computed(at, id, op.spares(id) ? all : inputs, 0);
    }
    for (const auto id : op.allocs) after.back()[id] = computed(at, id, inputs, 0);
  }
  return after;
}

/// A machine that has no states, only buffers of two halves. Copies out take the first half when
/// they start and the second when they finish, the worst that can happen. It runs two steps.
class Machine {
 public:
  struct Outcome {
    bool right = true;  ///< every operator found the right bytes, in both steps
    Bytes peak = 0;
  };

  static Outcome run(const Trace& trace, const Plan& plan) {
    Machine machine(trace, plan);
    machine.begin_first_step();
    machine.step();
    if (machine.outcome_.right) machine.begin_second_step();
    if (machine.outcome_.right) machine.step();
    return machine.outcome_;
  }

 private:
  using Halves = std::array<Contents, 2>;
  struct Buffers {
    std::optional<Halves> device{};
    std::optional<Halves> below{};
    std::optional<Contents> copying{};  ///< the half that has been taken
    bool alive = false;
    bool kept = false;
    bool dropped = false;
    bool dead = false;
    bool ghost = false;
  };

  Machine(const Trace& trace, const Plan& plan)
      : trace_(trace), plan_(plan), truth_(undisturbed(trace)), blocks_(trace.blocks.size()) {}

  void demand(bool condition) { outcome_.right = outcome_.right && condition; }
  void measure(Bytes beside) {
    Bytes sum = beside;
    for (std::size_t id = 0; id < blocks_.size(); ++id) {
      if (blocks_[id].device) sum += trace_.blocks[id].bytes;
    }
    outcome_.peak = std::max(outcome_.peak, sum);
  }
  [[nodiscard]] bool right(const std::optional<Halves>& halves, TraceBlockId id) const {
    return halves == Halves{truth_[now_][id], truth_[now_][id]};
  }

  void carry_out(const Directive& directive) {
    const TraceBlockId id = directive.block;
    Buffers& block = blocks_[id];
    demand(block.alive || (block.dead && directive.action == Action::kRematerialise) ||
           (block.ghost && directive.action == Action::kDrop));
    if (directive.action != Action::kKeep) demand(trace_.blocks[id].movable);
    if (!outcome_.right) return;
    switch (directive.action) {
      case Action::kKeep:
        demand(block.device && !block.copying);
        block.kept = true;
        break;
      case Action::kStartOut:
        demand(block.device && !block.copying && !block.kept);
        if (outcome_.right) block.copying = block.device->at(0);
        break;
      case Action::kFinishOut:
        demand(block.copying.has_value());
        if (!outcome_.right) break;
        block.below = {*block.copying, block.device->at(1)};
        demand(right(block.below, id));
        block.device.reset();
        block.copying.reset();
        break;
      case Action::kStartIn:
        demand(!block.device && !block.dropped && right(block.below, id));
        block.device = block.below;
        break;
      case Action::kDrop:
        demand(block.device && !block.copying && !block.kept && trace_.blocks[id].born_in_step);
        block.device.reset();
        block.dropped = block.alive;
        block.ghost = false;
        break;
      case Action::kRematerialise:
        demand(!block.device && (block.dropped || (block.dead && trace_.blocks[id].born_in_step)));
        block.dropped = false;
        block.ghost = block.dead;
        if (outcome_.right) compute_again(id);
        break;
    }
    measure(0);
  }

  void compute_again(TraceBlockId id) {
    blocks_[id].device = Halves{0, 0};
    for (std::size_t at = 0; at < now_; ++at) {
      const TraceOperator& op = trace_.operators[at];
      if (!names(op.allocs, id) && !names(op.writes, id)) continue;
      Contents inputs = 0;
      for (const auto* list : {&op.reads, &op.writes}) {
        for (const auto read : *list) {
          if (op.spares(read)) continue;
          demand(blocks_[read].device.has_value());
          if (!outcome_.right) return;
          demand(blocks_[read].device->at(0) == blocks_[read].device->at(1));
          inputs = mix(inputs, blocks_[read].device->at(0));
        }
      }
      Bytes beside = op.workspace;
      for (const auto other : op.allocs) beside += other == id ? 0 : trace_.blocks[other].bytes;
      measure(beside);
      const Contents run = op.repeatable ? 0 : 1;
      for (const auto written : op.writes) {
        if (op.spares(written)) continue;
        const Contents made = computed(at, written, inputs, run);
        blocks_[written].device = {made, made};
        if (written != id) demand(right(blocks_[written].device, written));
      }
      if (names(op.allocs, id)) {
        const Contents made = computed(at, id, inputs, run);
        blocks_[id].device = {made, made};
      }
    }
    demand(right(blocks_[id].device, id));
  }

  void operate(const TraceOperator& op) {
    for (const auto id : op.reads) demand(right(blocks_[id].device, id));
    for (const auto id : op.writes) {
      // A copy that is being taken would get its second half from the new contents.
      demand(right(blocks_[id].device, id) && !blocks_[id].copying);
    }
    ++now_;
    const auto& made = truth_[now_];
    for (const auto id : op.writes) blocks_[id].device = {made[id], made[id]};
    for (const auto id : op.allocs) {
      blocks_[id] = {.device = Halves{made[id], made[id]}, .alive = true};
    }
    measure(op.workspace);
    for (const auto id : op.frees) {
      demand(!blocks_[id].copying);
      blocks_[id] = {.dead = true};
    }
  }

  [[nodiscard]] bool absent_at_start(TraceBlockId id) const {
    return names(plan_.absent_at_start, id);
  }

  void begin_first_step() {
    for (const auto id : plan_.absent_at_start) {
      demand(id < blocks_.size() && !trace_.blocks[id].born_in_step && trace_.blocks[id].movable);
    }
    for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
      if (trace_.blocks[id].born_in_step) continue;
      blocks_[id].alive = true;
      (absent_at_start(id) ? blocks_[id].below : blocks_[id].device) =
          Halves{truth_[0][id], truth_[0][id]};
    }
  }

  void begin_second_step() {
    const std::vector<Buffers> old = std::exchange(blocks_, {});
    blocks_.resize(old.size());
    for (TraceBlockId id = 0; id < old.size(); ++id) {
      demand(!old[id].copying && !old[id].ghost);
      if (trace_.blocks[id].born_in_step) continue;
      const std::int64_t carried = trace_.blocks[id].carried_from;
      const auto from = carried == kNoBlock ? id : static_cast<TraceBlockId>(carried);
      const Halves fresh{truth_[0][id], truth_[0][id]};
      blocks_[id].alive = true;
      if (!old[from].alive) {
        demand(!absent_at_start(id));
        blocks_[id].device = fresh;  // made anew between the steps
        continue;
      }
      demand(!old[from].dropped && old[from].device.has_value() != absent_at_start(id));
      demand(right(old[from].device ? old[from].device : old[from].below, from));
      // The truth starts afresh; what counts is where.
      if (old[from].device) blocks_[id].device = fresh;
      if (old[from].below) blocks_[id].below = old[from].device ? old[from].below : fresh;
    }
  }

  void step() {
    now_ = 0;
    measure(0);
    for (std::size_t at = 0; at <= trace_.operators.size(); ++at) {
      for (const Directive& directive : plan_.directives) {
        if (directive.before == at && outcome_.right) carry_out(directive);
      }
      if (at < trace_.operators.size() && outcome_.right) operate(trace_.operators[at]);
    }
  }

  const Trace& trace_;
  const Plan& plan_;
  std::vector<std::vector<Contents>> truth_;
  std::vector<Buffers> blocks_;
  Outcome outcome_;
  std::size_t now_ = 0;  ///< operators that have run in this step
};

}  // namespace lms::testing
