#include "plan/recompute/coarse.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "core/plan_random.h"
#include "plan/search.h"

namespace lms::testing {
namespace {

TEST(Coarse, ViewsAreOneWithTheirNeighbours) {
  TraceBuilder builder;
  const auto w = builder.existing(4);
  builder.run("t", {w}, {}, 1, 7);
  builder.run("mm", {w}, {}, 10);
  builder.repeatable(6);
  const auto x = builder.result(3);
  builder.run("view", {x}, {}, 2);
  builder.run("other", {w}, {}, 5);  // uses what it does: one more
  builder.run("relu_", {x}, {x}, 20);
  builder.run("sum", {x}, {}, 4, 9);
  builder.dies(x);
  const Coarse coarse(builder.build());
  ASSERT_EQ(coarse.trace.operators.size(), 2U);
  EXPECT_EQ(coarse.trace.validate(), std::vector<std::string>{});
  EXPECT_EQ(coarse.first, (std::vector<std::size_t>{0, 4}));
  const TraceOperator& mm = coarse.trace.operators[0];
  EXPECT_EQ(mm.name, "mm");
  EXPECT_EQ(mm.ms, 18);
  EXPECT_EQ(mm.again_ms(), 6);
  EXPECT_EQ(mm.workspace, 4);  // t's 7, before x was there
  const TraceOperator& relu = coarse.trace.operators[1];
  EXPECT_EQ(relu.ms, 24);
  EXPECT_EQ(relu.workspace, 9);
  EXPECT_EQ(relu.frees, std::vector<TraceBlockId>{x});
}

RC_GTEST_PROP(CoarseProperty, PlansForItArePlansForTheStep, ()) {
  const Trace trace = random_trace(
      {.existing = 4, .operators = 30, .results = 1, .repeatable = 90, .writes = 2, .dies = 10});
  const Coarse coarse(trace);
  RC_ASSERT(coarse.trace.validate() == std::vector<std::string>{});
  const Bytes peak = std::ranges::max(coarse.trace.live_bytes());
  RC_ASSERT(peak >= std::ranges::max(trace.live_bytes()));
  const LinkModel link{1, 2, 0.8, 0.125, 0.0625, 0.125};
  Plan plan;
  Bytes budget = upto(static_cast<int>(peak));
  for (;; ++budget) {
    try {
      plan = make_plan(coarse.trace, budget, link, {.seconds = 60, .rounds = 10, .recompute = true})
                 .plan;
      break;
    } catch (const OutOfMemory&) {
      RC_ASSERT(budget < peak);
    }
  }
  const Plan fine = coarse.refine(plan);
  RC_ASSERT(verify_plan(trace, fine, budget) == std::vector<std::string>{});
  const double again = time_plan(trace, fine, link).recomputed_ms;
  RC_ASSERT(std::abs(again - time_plan(coarse.trace, plan, link).recomputed_ms) < 1e-9);
  const Plan back = coarse.coarsen(fine);
  RC_ASSERT(std::ranges::equal(back.directives, plan.directives, [](auto& x, auto& y) {
    return x.before == y.before && x.action == y.action && x.block == y.block;
  }));
  RC_CLASSIFY(coarse.trace.operators.size() < trace.operators.size(), "steps with views");
  RC_CLASSIFY(again > 0, "plans that compute again");
}

}  // namespace
}  // namespace lms::testing
