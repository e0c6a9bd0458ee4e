// verify_plan against a machine that carries a plan out with real contents, byte halves and all.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/plan_random.h"
#include "plan/plan.h"
#include "plan/timing.h"

namespace lms::testing {
namespace {

constexpr Action kKeep = Action::kKeep;
constexpr Action kStartOut = Action::kStartOut;
constexpr Action kFinishOut = Action::kFinishOut;
constexpr Action kStartIn = Action::kStartIn;
constexpr Action kDrop = Action::kDrop;
constexpr Action kRematerialise = Action::kRematerialise;

using Contents = std::uint64_t;

Contents mix(Contents seed, Contents value) {
  seed ^= value + 0x9e3779b97f4a7c15U + (seed << 6U) + (seed >> 2U);
  return seed * 0xff51afd7ed558ccdU;
}

bool names(const std::vector<TraceBlockId>& list, TraceBlockId id) {
  return std::ranges::count(list, id) > 0;
}

/// What operator `at` leaves in block `id` if it finds `inputs`. `run` differs for every run of an
/// operator that does not repeat.
Contents computed(std::size_t at, TraceBlockId id, Contents inputs, Contents run) {
  return mix(mix(mix(at + 1, id), inputs), run);
}

/// Contents of all blocks after each operator when nothing moves; [0] is the step's beginning.
std::vector<std::vector<Contents>> undisturbed(const Trace& trace) {
  std::vector<std::vector<Contents>> after(1);
  for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) after[0].push_back(mix(77, id));
  for (std::size_t at = 0; at < trace.operators.size(); ++at) {
    const TraceOperator& op = trace.operators[at];
    Contents inputs = 0;
    for (const auto id : op.reads) inputs = mix(inputs, after[at][id]);
    for (const auto id : op.writes) inputs = mix(inputs, after[at][id]);
    after.push_back(after[at]);
    for (const auto id : op.writes) after.back()[id] = computed(at, id, inputs, 0);
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
    demand(block.alive);
    if (directive.action != kKeep) demand(trace_.blocks[id].movable);
    if (!outcome_.right) return;
    switch (directive.action) {
      case kKeep:
        demand(block.device && !block.copying);
        block.kept = true;
        break;
      case kStartOut:
        demand(block.device && !block.copying && !block.kept);
        if (outcome_.right) block.copying = block.device->at(0);
        break;
      case kFinishOut:
        demand(block.copying.has_value());
        if (!outcome_.right) break;
        block.below = {*block.copying, block.device->at(1)};
        demand(right(block.below, id));
        block.device.reset();
        block.copying.reset();
        break;
      case kStartIn:
        demand(!block.device && !block.dropped && right(block.below, id));
        block.device = block.below;
        break;
      case kDrop:
        demand(block.device && !block.copying && !block.kept && trace_.blocks[id].born_in_step);
        block.device.reset();
        block.dropped = true;
        break;
      case kRematerialise:
        demand(!block.device && block.dropped);
        block.dropped = false;
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
      blocks_[id] = {};
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
      demand(!old[id].copying);
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

/// Moves blocks about and mostly brings them back in time.
class PlanMaker {
 public:
  explicit PlanMaker(const Trace& trace) : trace_(trace), where_(trace.blocks.size(), kUnborn) {}

  Plan make() {
    for (TraceBlockId id = 0; id < where_.size(); ++id) {
      if (trace_.blocks[id].born_in_step) continue;
      where_[id] = chance(trace_.blocks[id].movable ? 25 : 1) ? kBelow : kHere;
      if (where_[id] == kBelow) plan_.absent_at_start.push_back(id);
    }
    for (now_ = 0; now_ < trace_.operators.size(); ++now_) {
      for (TraceBlockId id = 0; id < where_.size(); ++id) move_at_random(id);
      const TraceOperator& op = trace_.operators[now_];
      for (const auto id : op.reads) bring(id, false);
      for (const auto id : op.writes) bring(id, true);
      for (const auto id : op.allocs) where_[id] = kHere;
      for (const auto id : op.frees) {
        if (where_[id] == kLeaving) finish_started(id);
        where_[id] = kUnborn;
      }
    }
    for (TraceBlockId id = 0; id < where_.size(); ++id) restore(id);
    std::ranges::stable_sort(plan_.directives, {}, &Directive::before);
    return plan_;
  }

 private:
  enum Where : std::uint8_t { kUnborn, kHere, kLeaving, kBelow, kGone };

  void tell(Action action, TraceBlockId id, Where then) {
    plan_.directives.push_back({now_, action, id});
    where_[id] = then;
  }
  void move_at_random(TraceBlockId id) {
    if (!chance(trace_.blocks[id].movable ? 35 : 1)) return;
    if (where_[id] == kHere) {
      if (trace_.blocks[id].born_in_step && chance(40)) {
        tell(kDrop, id, kGone);
      } else {
        tell(kStartOut, id, kLeaving);
      }
    } else if (where_[id] == kLeaving) {
      tell(kFinishOut, id, kBelow);
    } else if (where_[id] == kBelow) {
      tell(kStartIn, id, kHere);
    } else if (where_[id] == kGone) {
      tell(kRematerialise, id, kHere);
    }
  }
  void bring(TraceBlockId id, bool writes) {
    if (chance(2)) return;
    if (where_[id] == kLeaving && writes) tell(kFinishOut, id, kBelow);
    if (where_[id] == kBelow) tell(kStartIn, id, kHere);
    if (where_[id] == kGone) tell(kRematerialise, id, kHere);
  }
  /// The operator that ends the block may not have it half copied.
  void finish_started(TraceBlockId id) {
    const bool used = names(trace_.operators[now_].reads, id);
    tell(kFinishOut, id, kBelow);
    if (used) tell(kStartIn, id, kHere);
  }
  void restore(TraceBlockId id) {
    if (where_[id] == kUnborn) return;
    bool absent = names(plan_.absent_at_start, id);
    bool lasts = !trace_.blocks[id].born_in_step;
    for (TraceBlockId heir = 0; heir < where_.size(); ++heir) {
      if (trace_.blocks[heir].carried_from != id) continue;
      absent = names(plan_.absent_at_start, heir);
      lasts = true;
    }
    if (where_[id] == kLeaving) tell(kFinishOut, id, kBelow);
    if (!lasts) return;
    if (where_[id] == kGone) tell(kRematerialise, id, kHere);
    if (where_[id] == kBelow && !absent) tell(kStartIn, id, kHere);
    if (where_[id] == kHere && absent) {
      tell(kStartOut, id, kLeaving);
      tell(kFinishOut, id, kBelow);
    }
  }

  const Trace& trace_;
  std::vector<Where> where_;
  Plan plan_;
  std::size_t now_ = 0;
};

/// Removes, moves, changes or exchanges a directive, or forgets an absent block.
Plan spoiled(Plan plan, std::size_t operators, std::size_t blocks) {
  auto& list = plan.directives;
  if (!plan.absent_at_start.empty() && chance(10)) {
    plan.absent_at_start.pop_back();
    return plan;
  }
  if (list.empty()) return plan;
  const auto at = static_cast<std::size_t>(upto(static_cast<int>(list.size()) - 1));
  switch (upto(4)) {
    case 0:
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      list[at].before = static_cast<std::size_t>(upto(static_cast<int>(operators)));
      std::ranges::stable_sort(list, {}, &Directive::before);
      break;
    case 2: {
      const auto other = static_cast<std::size_t>(upto(static_cast<int>(list.size()) - 1));
      std::swap(list[at].action, list[other].action);
      std::swap(list[at].block, list[other].block);
      break;
    }
    case 3:
      list[at].block = static_cast<TraceBlockId>(upto(static_cast<int>(blocks) - 1));
      break;
    default:
      list[at].action = static_cast<Action>(upto(5));
  }
  return plan;
}

bool moves(const Plan& plan, Action action) {
  return std::ranges::count(plan.directives, action, &Directive::action) > 0;
}

RC_GTEST_PROP(PlanProperty, VerifierAgreesWithTheMachine, ()) {
  const Trace trace = random_trace();
  Plan plan = PlanMaker(trace).make();
  const bool spoil = chance(40);
  if (spoil) plan = spoiled(plan, trace.operators.size(), trace.blocks.size());
  const Machine::Outcome outcome = Machine::run(trace, plan);
  RC_CLASSIFY(outcome.right, "right plans");
  RC_CLASSIFY(outcome.right && !plan.directives.empty(), "right plans that move something");
  RC_CLASSIFY(outcome.right && moves(plan, kRematerialise), "right plans that compute again");
  RC_CLASSIFY(outcome.right && spoil, "right plans in spite of a change");
  if (outcome.right) {
    RC_ASSERT(verify_plan(trace, plan, outcome.peak) == std::vector<std::string>{});
    RC_ASSERT(outcome.peak == 0 || !verify_plan(trace, plan, outcome.peak - 1).empty());
  } else {
    RC_ASSERT(!verify_plan(trace, plan, 1'000'000).empty());
  }
}

RC_GTEST_PROP(PlanProperty, TimingAddsUpAndFindsThePeak, ()) {
  const Trace trace = random_trace();
  const Plan plan = PlanMaker(trace).make();
  const Machine::Outcome outcome = Machine::run(trace, plan);
  RC_PRE(outcome.right);
  LinkModel link{1, 2, 0.8, 0.25, 0.125, 0.25};
  const PlanTiming timing = time_plan(trace, plan, link, true);
  double computation = 0;
  for (const TraceOperator& op : trace.operators) computation += op.ms;
  const auto equal = [](double a, double b) { return std::abs(a - b) < 1e-6; };
  RC_ASSERT(timing.peak == outcome.peak);
  RC_ASSERT(equal(timing.compute_ms, computation + timing.recomputed_ms));
  RC_ASSERT(equal(timing.step_ms, timing.compute_ms + timing.tax_ms + timing.waited_ms));
  RC_ASSERT(timing.out_busy_ms >= static_cast<double>(timing.bytes_out) / 1 - 1e-6);
  RC_ASSERT(timing.in_busy_ms >= static_cast<double>(timing.bytes_in) / 2 - 1e-6);
  RC_ASSERT(timing.operators.size() == trace.operators.size());
  const PlanTiming plain = time_plan(trace, plan, link);
  RC_ASSERT(equal(plain.step_ms, timing.step_ms));
  RC_CLASSIFY(timing.waited_ms > 0, "steps that wait");
}

}  // namespace
}  // namespace lms::testing
