#include "plan/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <optional>

namespace lms {
namespace {

constexpr Action kKeep = Action::kKeep;
constexpr Action kStartOut = Action::kStartOut;
constexpr Action kFinishOut = Action::kFinishOut;
constexpr Action kStartIn = Action::kStartIn;

// w (10) from before the step.   live
//   0 a  reads w, makes x (4)     14
//   1 b  makes y (8); y dies      22
//   2 c  reads x, writes w        14, workspace 2: 16
Trace three_operators() {
  TraceBuilder builder;
  const auto w = builder.existing(10);
  builder.run("a", {w}, {}, 1);
  const auto x = builder.result(4);
  builder.run("b", {}, {}, 1);
  const auto y = builder.result(8);
  builder.dies(y);
  builder.run("c", {x}, {w}, 1, 2);
  return builder.build();
}

// w leaves beside b: 4 + 8 = 12 there, and 16 is the most.
Plan good_plan() {
  Plan plan;
  plan.directives = {{0, kStartOut, 0}, {1, kFinishOut, 0}, {2, kStartIn, 0}};
  return plan;
}

void expect_first(const Plan& plan, Bytes budget, const std::string& text) {
  const auto notes = verify_plan(three_operators(), plan, budget);
  ASSERT_FALSE(notes.empty()) << text;
  EXPECT_EQ(notes.front(), text);
}

TEST(VerifyPlan, PlanThatFitsIsProven) {
  EXPECT_EQ(verify_plan(three_operators(), good_plan(), 16), std::vector<std::string>{});
}

TEST(VerifyPlan, EmptyPlanNeedsTheWholeStepInMemory) {
  EXPECT_TRUE(verify_plan(three_operators(), {}, 22).empty());
  expect_first({}, 21, "during operator 1: 22 bytes on the device, the budget is 21");
}

TEST(VerifyPlan, BudgetHoldsDuringOperatorsWithTheirWorkspace) {
  expect_first(good_plan(), 15, "during operator 2: 16 bytes on the device, the budget is 15");
}

TEST(VerifyPlan, BudgetHoldsBetweenOperators) {
  // w comes in before x leaves: 14 + 8 for a moment, though 18 would do during every operator.
  TraceBuilder builder;
  const auto w = builder.existing(10);
  const auto x = builder.existing(8);
  builder.run("a", {x}, {}, 1);
  builder.run("b", {w}, {}, 1);
  const Trace trace = builder.build();
  Plan plan;
  plan.absent_at_start = {w};
  plan.directives = {{0, kStartOut, x}, {1, kStartIn, w},   {1, kFinishOut, x},
                     {2, kStartOut, w}, {2, kFinishOut, w}, {2, kStartIn, x}};
  EXPECT_TRUE(verify_plan(trace, plan, 18).empty());
  EXPECT_FALSE(verify_plan(trace, plan, 10).empty());
  std::swap(plan.directives[1], plan.directives[2]);
  EXPECT_TRUE(verify_plan(trace, plan, 10).empty());
}

TEST(VerifyPlan, AbsentBlockIsRead) {
  Plan plan = good_plan();
  plan.directives[2].before = 3;
  expect_first(plan, 100, "operator 2 (c): block 0 is written, but absent");
}

TEST(VerifyPlan, HalfCopiedBlockIsWritten) {
  Plan plan;
  plan.directives = {{1, kStartOut, 0}, {3, kFinishOut, 0}, {3, kStartIn, 0}};
  expect_first(plan, 100, "operator 2 (c): block 0 is written while it is copied out");
}

TEST(VerifyPlan, HalfCopiedBlockMayBeRead) {
  Plan plan;
  plan.directives = {{0, kStartOut, 0}, {2, kFinishOut, 0}, {2, kStartIn, 0}};
  EXPECT_TRUE(verify_plan(three_operators(), plan, 22).empty());
}

TEST(VerifyPlan, BlockDiesHalfCopied) {
  TraceBuilder builder;
  builder.run("a", {}, {}, 1);
  const auto x = builder.result(1);
  builder.run("b", {x}, {}, 1);
  builder.dies(x);
  Plan plan;
  plan.directives = {{1, kStartOut, x}};
  EXPECT_FALSE(verify_plan(builder.build(), plan, 100).empty());
}

TEST(VerifyPlan, DropHasNoRecipe) {
  Plan plan;
  plan.directives = {{1, Action::kDrop, 0}};
  expect_first(plan, 100, "operator 1 (b): block 0 has no recipe");
  plan.directives = {{1, Action::kRematerialise, 0}};
  expect_first(plan, 100, "operator 1 (b): block 0 has no recipe");
}

TEST(VerifyPlan, KeptBlockDoesNotLeave) {
  Plan plan = good_plan();
  plan.directives.insert(plan.directives.begin(), {0, kKeep, 0});
  expect_first(plan, 100, "operator 0 (a): block 0 starts out, but is kept");
}

TEST(VerifyPlan, DirectivesForBlocksThatAreNotAlive) {
  Plan plan;
  plan.directives = {{1, kStartOut, 2}};
  expect_first(plan, 100, "operator 1 (b): block 2 is not alive at a directive for it");
  plan.directives = {{2, kStartOut, 2}};
  expect_first(plan, 100, "operator 2 (c): block 2 is not alive at a directive for it");
  plan.directives = {{0, kKeep, 77}};
  expect_first(plan, 100, "operator 0 (a): block 77 is not alive at a directive for it");
}

TEST(VerifyPlan, DirectivesOutOfOrder) {
  Plan plan = good_plan();
  std::swap(plan.directives[0], plan.directives[1]);
  expect_first(plan, 100, "operator 1 (b): block 0 finishes a copy that was not started");
  plan.directives = {{4, kKeep, 0}};
  expect_first(plan, 100, "directives lie beyond the end of the step");
}

TEST(VerifyPlan, StepEndsAsItBegan) {
  Plan plan;
  plan.directives = {{3, kStartOut, 0}, {3, kFinishOut, 0}};
  expect_first(plan, 100,
               "after the last operator: block 0 was on the device when the step began, and is "
               "absent");
  plan = {};
  plan.absent_at_start = {0};
  plan.directives = {{0, kStartIn, 0}};
  expect_first(plan, 100,
               "after the last operator: block 0 was absent when the step began, and is on the "
               "device");
  plan.directives = {{0, kStartIn, 0}, {3, kStartOut, 0}, {3, kFinishOut, 0}};
  EXPECT_TRUE(verify_plan(three_operators(), plan, 22).empty());
  plan.directives.pop_back();
  expect_first(plan, 100, "after the last operator: block 0 is still being copied out");
}

TEST(VerifyPlan, AbsentAtStartMustBeFromBeforeTheStep) {
  Plan plan;
  plan.absent_at_start = {1};
  expect_first(plan, 100, "block 1 cannot be absent when the step begins");
  plan.absent_at_start = {0, 0};
  expect_first(plan, 100, "block 0 cannot be absent when the step begins");
}

TEST(VerifyPlan, WhatItDoesNotUnderstand) {
  Plan plan;
  plan.version = kPlanVersion + 1;
  expect_first(plan, 100, "the plan's version is not understood");
  Trace trace = three_operators();
  trace.operators[0].reads = {9};
  EXPECT_FALSE(verify_plan(trace, {}, 100).empty());
}

// The brute-force model: a machine that has no states, only buffers of two halves. Copies out take
// the first half when they start and the second when they finish, the worst that can happen.
class Machine {
 public:
  struct Outcome {
    bool right = true;  ///< every operator found the right bytes, and the step can be repeated
    Bytes peak = 0;
  };

  static Outcome run(const Trace& trace, const Plan& plan) {
    Machine machine(trace, plan);
    machine.step();
    return machine.outcome_;
  }

 private:
  using Halves = std::array<int, 2>;
  struct Buffers {
    std::optional<Halves> device{};
    std::optional<Halves> below{};
    std::optional<int> copying{};  ///< the half that has been taken
    int contents = 0;              ///< what a reader must find
    bool alive = false;
    bool kept = false;
  };

  Machine(const Trace& trace, const Plan& plan)
      : trace_(trace), plan_(plan), blocks_(trace.blocks.size()) {}

  void demand(bool condition) { outcome_.right = outcome_.right && condition; }
  void measure(Bytes workspace) {
    Bytes sum = workspace;
    for (std::size_t id = 0; id < blocks_.size(); ++id) {
      if (blocks_[id].device) sum += trace_.blocks[id].bytes;
    }
    outcome_.peak = std::max(outcome_.peak, sum);
  }

  void carry_out(const Directive& directive) {
    Buffers& block = blocks_[directive.block];
    demand(block.alive);
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
        demand(*block.below == Halves{block.contents, block.contents});
        block.device.reset();
        block.copying.reset();
        break;
      case kStartIn:
        demand(!block.device && block.below);
        block.device = block.below;
        break;
      default:
        demand(false);
    }
    measure(0);
  }

  void use(TraceBlockId id) {
    const Buffers& block = blocks_[id];
    demand(block.device == Halves{block.contents, block.contents});
  }

  void operate(const TraceOperator& op) {
    for (const auto id : op.reads) use(id);
    for (const auto id : op.writes) {
      use(id);
      // A copy that is being taken would get its second half from the new contents.
      demand(!blocks_[id].copying);
      ++blocks_[id].contents;
      blocks_[id].device = {blocks_[id].contents, blocks_[id].contents};
    }
    for (const auto id : op.allocs) blocks_[id] = {.device = Halves{0, 0}, .alive = true};
    measure(op.workspace);
    for (const auto id : op.frees) {
      demand(!blocks_[id].copying);
      blocks_[id] = {};
    }
  }

  void step() {
    for (std::size_t id = 0; id < blocks_.size(); ++id) {
      if (trace_.blocks[id].born_in_step) continue;
      const bool absent = std::ranges::count(plan_.absent_at_start, id) > 0;
      blocks_[id].alive = true;
      (absent ? blocks_[id].below : blocks_[id].device) = Halves{0, 0};
    }
    measure(0);
    for (std::size_t now = 0; now <= trace_.operators.size(); ++now) {
      for (const Directive& directive : plan_.directives) {
        if (directive.before == now && outcome_.right) carry_out(directive);
      }
      if (now < trace_.operators.size() && outcome_.right) operate(trace_.operators[now]);
    }
    for (std::size_t id = 0; id < blocks_.size(); ++id) {
      if (!blocks_[id].alive) continue;
      demand(!blocks_[id].copying);
      const bool absent = std::ranges::count(plan_.absent_at_start, id) > 0;
      if (!trace_.blocks[id].born_in_step) demand(blocks_[id].device.has_value() != absent);
    }
  }

  const Trace& trace_;
  const Plan& plan_;
  std::vector<Buffers> blocks_;
  Outcome outcome_;
};

/// Evenly, whatever size rapidcheck has reached.
int upto(int most) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, most + 1)); }
bool chance(int percent) { return upto(99) >= 100 - percent; }

Trace random_trace() {
  TraceBuilder builder;
  std::vector<TraceBlockId> alive;
  for (int i = upto(3); i > 0; --i) alive.push_back(builder.existing(1 + upto(8)));
  for (int i = 1 + upto(5); i > 0; --i) {
    std::vector<TraceBlockId> reads;
    std::vector<TraceBlockId> writes;
    for (const auto id : alive) {
      if (chance(30)) reads.push_back(id);
      if (chance(20)) writes.push_back(id);
    }
    builder.run("op", reads, writes, 1, upto(3));
    for (int born = upto(2); born > 0; --born) alive.push_back(builder.result(1 + upto(8)));
    std::erase_if(alive, [&](TraceBlockId id) {
      const bool dies = chance(15);
      if (dies) builder.dies(id);
      return dies;
    });
  }
  return builder.build();
}

/// Moves blocks about and mostly brings them back in time.
class PlanMaker {
 public:
  explicit PlanMaker(const Trace& trace) : trace_(trace), where_(trace.blocks.size(), kUnborn) {}

  Plan make() {
    for (TraceBlockId id = 0; id < where_.size(); ++id) {
      if (trace_.blocks[id].born_in_step) continue;
      where_[id] = chance(25) ? kBelow : kHere;
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
    if (chance(40)) spoil();
    return plan_;
  }

 private:
  enum Where : std::uint8_t { kUnborn, kHere, kLeaving, kBelow };

  void tell(Action action, TraceBlockId id, Where then) {
    plan_.directives.push_back({now_, action, id});
    where_[id] = then;
  }
  void move_at_random(TraceBlockId id) {
    if (!chance(35)) return;
    if (where_[id] == kHere) {
      tell(kStartOut, id, kLeaving);
    } else if (where_[id] == kLeaving) {
      tell(kFinishOut, id, kBelow);
    } else if (where_[id] == kBelow) {
      tell(kStartIn, id, kHere);
    }
  }
  void bring(TraceBlockId id, bool writes) {
    if (chance(2)) return;
    if (where_[id] == kLeaving && writes) tell(kFinishOut, id, kBelow);
    if (where_[id] == kBelow) tell(kStartIn, id, kHere);
  }
  /// The operator that ends the block may not have it half copied.
  void finish_started(TraceBlockId id) {
    const bool used = std::ranges::count(trace_.operators[now_].reads, id) > 0;
    tell(kFinishOut, id, kBelow);
    if (used) tell(kStartIn, id, kHere);
  }
  void restore(TraceBlockId id) {
    if (where_[id] == kUnborn) return;
    const bool absent = std::ranges::count(plan_.absent_at_start, id) > 0;
    if (where_[id] == kLeaving) tell(kFinishOut, id, kBelow);
    if (trace_.blocks[id].born_in_step) return;
    if (where_[id] == kBelow && !absent) tell(kStartIn, id, kHere);
    if (where_[id] == kHere && absent) {
      tell(kStartOut, id, kLeaving);
      tell(kFinishOut, id, kBelow);
    }
  }
  void spoil() {
    if (plan_.directives.empty()) return;
    const int at = upto(static_cast<int>(plan_.directives.size()) - 1);
    const auto place = plan_.directives.begin() + at;
    switch (upto(2)) {
      case 0:
        plan_.directives.erase(place);
        break;
      case 1:
        place->block = static_cast<TraceBlockId>(upto(static_cast<int>(where_.size()) - 1));
        break;
      default:
        place->action = static_cast<Action>(upto(5));
    }
  }

  const Trace& trace_;
  std::vector<Where> where_;
  Plan plan_;
  std::size_t now_ = 0;
};

RC_GTEST_PROP(VerifyPlan, AgreesWithTheMachine, ()) {
  const Trace trace = random_trace();
  const Plan plan = PlanMaker(trace).make();
  const Machine::Outcome outcome = Machine::run(trace, plan);
  RC_CLASSIFY(outcome.right, "right plans");
  RC_CLASSIFY(outcome.right && !plan.directives.empty(), "right plans that move something");
  if (outcome.right) {
    RC_ASSERT(verify_plan(trace, plan, outcome.peak) == std::vector<std::string>{});
    RC_ASSERT(outcome.peak == 0 || !verify_plan(trace, plan, outcome.peak - 1).empty());
  } else {
    RC_ASSERT(!verify_plan(trace, plan, 1'000'000).empty());
  }
}

}  // namespace
}  // namespace lms
