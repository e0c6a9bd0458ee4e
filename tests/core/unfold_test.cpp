#include "core/unfold.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "core/plan_machine.h"
#include "core/plan_maker.h"
#include "core/plan_random.h"
#include "core/plan_words.h"
#include "plan/timing/timing.h"

namespace lms::testing {
namespace {

std::string written(const Plan& plan) {
  std::string text;
  for (const auto& [before, action, block] : plan.directives) {
    text += std::to_string(before) + ":" + std::to_string(static_cast<int>(action)) + ":" +
            std::to_string(block) + " ";
  }
  return text;
}

// w (10) is there before the step.
//   0 a  reads w, makes x (4) and p (2); temporary 3 between them
//   1 b  reads x, makes y (8); x dies
//   2 c  writes y, reads p
//   3 d  workspace 20
//   4 e  reads y; y and p die
struct Example {
  Example() {
    TraceBuilder builder;
    w = builder.existing(10);
    builder.run("a", {w}, {}, 1, 3);
    builder.repeatable(0.5);
    builder.temporary(3, 1, 3);
    x = builder.result(4);
    p = builder.result(2);
    builder.run("b", {x}, {}, 2);
    builder.repeatable();
    y = builder.result(8);
    builder.dies(x);
    builder.run("c", {p}, {y}, 4);
    builder.repeatable();
    builder.run("d", {}, {}, 8, 20);
    builder.run("e", {y}, {}, 16);
    builder.dies(y);
    builder.dies(p);
    trace = builder.build();
    plan.directives = {{1, kStartOut, w},      {3, kDrop, y},          {3, kFinishOut, w},
                       {4, kStartIn, w},       {4, kRematerialise, x}, {4, kStartOut, w},
                       {4, kRematerialise, y}, {4, kDrop, x},          {5, kFinishOut, w},
                       {5, kStartIn, w}};
  }
  TraceBlockId w, x, p, y;
  Trace trace;
  Plan plan;
};

TEST(Unfold, RematerialisationsAreOperators) {
  const Example step;
  ASSERT_EQ(joined(verify_plan(step.trace, step.plan, kAmple)), "");
  const Unfolded unfolded = unfold(step.trace, step.plan);
  const Trace& trace = unfolded.trace;
  EXPECT_EQ(joined(trace.validate()), "");
  std::string names;
  for (const auto& op : trace.operators) names += op.name + "; ";
  EXPECT_EQ(names, "a; b; c; d; a; b + c; e; ");
  EXPECT_EQ(unfolded.blocks,
            (std::vector<TraceBlockId>{step.w, step.x, step.p, step.y, step.x, step.y}));
  const TraceBlockId ghost = 4;
  const TraceBlockId again = 5;
  EXPECT_FALSE(trace.blocks[ghost].movable);
  EXPECT_TRUE(trace.blocks[again].movable);
  EXPECT_EQ(trace.operators[2].frees, std::vector<TraceBlockId>{step.y});
  EXPECT_EQ(trace.operators[4].ms, 0.5);
  EXPECT_EQ(trace.operators[4].allocs, std::vector<TraceBlockId>{ghost});
  EXPECT_EQ(trace.operators[4].workspace, 3 + 2);
  ASSERT_EQ(trace.operators[4].temporaries.size(), 2U);
  EXPECT_EQ(trace.operators[4].temporaries[0].begin, 1U);
  EXPECT_EQ(trace.operators[4].temporaries[1].bytes, 2) << "p";
  EXPECT_EQ(trace.operators[5].ms, 6);
  EXPECT_EQ(trace.operators[5].reads, (std::vector<TraceBlockId>{ghost, step.p}));
  EXPECT_EQ(trace.operators[5].frees, std::vector<TraceBlockId>{ghost});
  EXPECT_EQ(trace.operators[6].reads, std::vector<TraceBlockId>{again});
  EXPECT_EQ(trace.operators[6].frees, (std::vector<TraceBlockId>{again, step.p}));
  EXPECT_EQ(unfolded.operators[5].part, Unfolded::Part::kAgain);
  EXPECT_EQ(unfolded.operators[5].moment, 4U);
  EXPECT_EQ(unfolded.operators[5].directive, 6U);
  EXPECT_EQ(unfolded.operators[6].moment, 4U);
  EXPECT_EQ(written(unfolded.plan), "1:1:0 3:2:0 4:3:0 5:1:0 7:2:0 7:3:0 ");
  EXPECT_EQ(written(fold(unfolded, unfolded.plan)), written(step.plan));
}

TEST(Unfold, DropsKeepTheirPlaceAmongOtherDirectives) {
  Example step;
  step.plan.directives = {{1, kStartOut, step.w},      {3, kFinishOut, step.w},
                          {3, kStartIn, step.w},       {3, kDrop, step.y},
                          {4, kRematerialise, step.x}, {4, kRematerialise, step.y},
                          {4, kDrop, step.x}};
  const Unfolded unfolded = unfold(step.trace, step.plan);
  EXPECT_EQ(unfolded.operators[3].part, Unfolded::Part::kPause);
  EXPECT_EQ(unfolded.trace.operators[3].frees, std::vector<TraceBlockId>{step.y});
  EXPECT_EQ(written(fold(unfolded, unfolded.plan)), written(step.plan));
}

TEST(Unfold, WhatWorkspacesAreMadeOfStaysUnknown) {
  Example step;
  step.trace.operators[2].workspace = 7;
  const Unfolded unfolded = unfold(step.trace, step.plan);
  EXPECT_EQ(unfolded.trace.operators[5].workspace, 7);
  EXPECT_TRUE(unfolded.trace.operators[5].temporaries.empty());
}

TEST(Unfold, WhatIsAwayWhenItIsDroppedIsDroppedEarlier) {
  Example step;
  step.plan.directives = {{4, kDrop, step.y},
                          {4, kRematerialise, step.x},
                          {4, kRematerialise, step.y},
                          {4, kDrop, step.x}};
  const Unfolded unfolded = unfold(step.trace, step.plan);
  Plan plan{.directives = {{1, kKeep, step.w}, {3, kStartOut, step.y}, {3, kFinishOut, step.y}}};
  EXPECT_EQ(joined(verify_plan(unfolded.trace, plan, kAmple)), "");
  const Plan folded = fold(unfolded, plan);
  EXPECT_EQ(written(folded), "1:0:0 3:4:3 4:5:1 4:5:3 4:4:1 ");
  EXPECT_EQ(joined(verify_plan(step.trace, folded, kAmple)), "");
}

TEST(Unfold, RefusesWhatCannotBe) {
  Example step;
  const auto refused = [&](std::vector<Directive> directives) {
    try {
      (void)unfold(step.trace, {.directives = std::move(directives)});
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused({{4, kRematerialise, step.y}}));
  EXPECT_TRUE(refused({{4, kDrop, step.x}}));
  EXPECT_TRUE(refused({{4, kDrop, step.y}}));
  EXPECT_TRUE(refused({{3, kDrop, step.y}, {4, kRematerialise, step.y}}));
  const Unfolded unfolded = unfold(step.trace, step.plan);
  EXPECT_THROW(fold(unfolded, {.directives = {{1, kDrop, step.x}}}), Error);
}

Trace any_unfoldable() {
  return random_trace({.operators = 8, .repeatable = 95, .writes = 5, .dies = 20});
}

bool equal(double a, double b) { return std::abs(a - b) < 1e-6; }

/// Every moment of the step is the same in both.
void expect_same(const Trace& trace, const Plan& plan, const Unfolded& unfolded,
                 const Plan& on_unfolded) {
  const LinkModel link{1, 2, 0.8, 0.25, 0.125, 0.25};
  const PlanTiming a = time_plan(trace, plan, link, true);
  const PlanTiming b = time_plan(unfolded.trace, on_unfolded, link, true);
  RC_ASSERT(a.peak == b.peak);
  RC_ASSERT(equal(a.step_ms, b.step_ms));
  RC_ASSERT(equal(a.compute_ms, b.compute_ms));
  RC_ASSERT(equal(a.waited_ms, b.waited_ms));
  RC_ASSERT(equal(a.tax_ms, b.tax_ms));
  RC_ASSERT(equal(a.in_busy_ms, b.in_busy_ms));
  RC_ASSERT(equal(a.out_busy_ms, b.out_busy_ms));
  RC_ASSERT(a.bytes_in == b.bytes_in);
  RC_ASSERT(a.bytes_out == b.bytes_out);
  for (std::size_t k = 0; k < unfolded.operators.size(); ++k) {
    if (unfolded.operators[k].part != Unfolded::Part::kOwn) continue;
    const OperatorTiming& own = a.operators[unfolded.operators[k].moment];
    RC_ASSERT(own.device == b.operators[k].device);
    RC_ASSERT(equal(own.begin_ms, b.operators[k].begin_ms));
  }
  RC_ASSERT(joined(verify_plan(trace, plan, a.peak)) == "");
  RC_ASSERT(joined(verify_plan(unfolded.trace, on_unfolded, a.peak)) == "");
  if (a.peak > 0) {
    RC_ASSERT(!verify_plan(trace, plan, a.peak - 1).empty());
    RC_ASSERT(!verify_plan(unfolded.trace, on_unfolded, a.peak - 1).empty());
  }
}

bool computes_again(const Plan& plan) {
  return std::ranges::count(plan.directives, kRematerialise, &Directive::action) > 0;
}

RC_GTEST_PROP(UnfoldProperty, TheUnfoldedStepIsTheSame, ()) {
  const Trace trace = any_unfoldable();
  const Plan plan = PlanMaker(trace).make();
  RC_PRE(Machine::run(trace, plan).right);
  const Unfolded unfolded = unfold(trace, plan);
  RC_CLASSIFY(computes_again(plan), "computes again");
  RC_CLASSIFY(unfolded.blocks.size() > trace.blocks.size() + 2, "several times");
  RC_ASSERT(joined(unfolded.trace.validate()) == "");
  RC_ASSERT(Machine::run(unfolded.trace, {}).right);
  expect_same(trace, plan, unfolded, unfolded.plan);
  RC_ASSERT(written(fold(unfolded, unfolded.plan)) == written(plan));
}

/// Something else is kept and swapped than what the first plan kept and swapped.
RC_GTEST_PROP(UnfoldProperty, PlansFoldBack, ()) {
  const Trace trace = any_unfoldable();
  const Plan first = PlanMaker(trace).make();
  RC_PRE(Machine::run(trace, first).right);
  const Unfolded unfolded = unfold(trace, first);
  Plan plan = PlanMaker(unfolded.trace, false).make();
  RC_PRE(verify_plan(unfolded.trace, plan, kAmple).empty());
  const Plan folded = fold(unfolded, plan);
  RC_ASSERT(Machine::run(trace, folded).right);
  RC_CLASSIFY(computes_again(folded), "computes again");
  RC_CLASSIFY(plan.directives.size() > 3, "moves much");
  const auto count = [](const Plan& of, Action action) {
    return std::ranges::count(of.directives, action, &Directive::action);
  };
  if (count(plan, kStartOut) == count(folded, kStartOut)) {
    expect_same(trace, folded, unfolded, plan);
  } else {
    const Bytes peak = time_plan(unfolded.trace, plan, {}).peak;
    RC_ASSERT(joined(verify_plan(trace, folded, peak)) == "");
    RC_CLASSIFY(true, "drops earlier");
  }
  // What is right on the unfolded step stays right, whatever it is.
  plan = spoiled(plan, unfolded.trace.operators.size(), unfolded.blocks.size());
  if (count(plan, kDrop) + count(plan, kRematerialise) > 0) return;
  if (verify_plan(unfolded.trace, plan, kAmple).empty()) {
    RC_ASSERT(joined(verify_plan(trace, fold(unfolded, plan), kAmple)) == "");
  }
}

}  // namespace
}  // namespace lms::testing
