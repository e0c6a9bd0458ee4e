// verify_plan against a machine that carries a plan out with real contents, byte halves and all.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "core/plan_machine.h"
#include "core/plan_maker.h"
#include "core/plan_random.h"
#include "plan/plan.h"
#include "plan/timing/timing.h"

namespace lms::testing {
namespace {

bool moves(const Plan& plan, Action action) {
  return std::ranges::count(plan.directives, action, &Directive::action) > 0;
}

/// The plan makes blocks again after their end.
bool has_ghosts(const Trace& trace, const Plan& plan) {
  return std::ranges::any_of(plan.directives, [&](const Directive& directive) {
    const auto dies_before = [&](std::size_t at) {
      return names(trace.operators[at].frees, directive.block);
    };
    bool dead = false;
    for (std::size_t at = 0; at < directive.before; ++at) dead = dead || dies_before(at);
    return dead && directive.action == Action::kRematerialise;
  });
}

/// Half of them such that lineages are often right.
Trace any_trace() {
  if (chance(50)) return random_trace();
  return random_trace({.operators = 8, .repeatable = 95, .writes = 4, .dies = 25});
}

RC_GTEST_PROP(PlanProperty, VerifierAgreesWithTheMachine, ()) {
  const Trace trace = any_trace();
  Plan plan = PlanMaker(trace).make();
  const bool spoil = chance(40);
  if (spoil) plan = spoiled(plan, trace.operators.size(), trace.blocks.size());
  const Machine::Outcome outcome = Machine::run(trace, plan);
  RC_CLASSIFY(outcome.right, "right plans");
  RC_CLASSIFY(outcome.right && !plan.directives.empty(), "right plans that move something");
  RC_CLASSIFY(outcome.right && moves(plan, Action::kRematerialise),
              "right plans that compute again");
  RC_CLASSIFY(outcome.right && has_ghosts(trace, plan), "right plans with ghosts");
  RC_CLASSIFY(outcome.right && spoil, "right plans in spite of a change");
  if (outcome.right) {
    RC_ASSERT(verify_plan(trace, plan, outcome.peak) == std::vector<std::string>{});
    RC_ASSERT(outcome.peak == 0 || !verify_plan(trace, plan, outcome.peak - 1).empty());
  } else {
    RC_ASSERT(!verify_plan(trace, plan, 1'000'000).empty());
  }
}

RC_GTEST_PROP(PlanProperty, TimingAddsUpAndFindsThePeak, ()) {
  const Trace trace = any_trace();
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
