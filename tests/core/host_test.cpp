// Steps for which it is known what the host takes: predictions, plans, and where the times come
// from.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/pilot_loop.h"
#include "core/plan_words.h"
#include "plan/placed_plan.h"
#include "plan/timing/host_times.h"
#include "plan/timing/step_clock.h"
#include "trace/trace_io.h"

namespace lms::testing {
namespace {

/// As many operators, of a millisecond each on the device and `host_ms` on the host.
Trace row(int operators, double host_ms) {
  TraceBuilder builder;
  const auto w = builder.existing(4);
  for (int i = 0; i < operators; ++i) {
    builder.run("op", {w}, {}, 1);
    builder.on_host(host_ms);
  }
  return builder.build();
}

LinkModel with_host(HostCosts host) {
  LinkModel link = kUnit;
  link.host = host;
  return link;
}

TEST(Host, AStepIsAsLongAsTheSlowerOfTheTwo) {
  EXPECT_NEAR(time_plan(row(10, 0.5), {}, kUnit).step_ms, 10, 1e-6);
  const PlanTiming slow = time_plan(row(10, 3), {}, kUnit);
  EXPECT_NEAR(slow.step_ms, 30, 1e-6);
  EXPECT_NEAR(slow.late_ms, 20, 1e-6);
  EXPECT_NEAR(slow.host_ms, 30, 1e-6);
}

TEST(Host, UnknownIsAsBefore) {
  const LinkModel link = with_host({.copy_ms = 5, .leave_ms = 5, .remake_ms = 5});
  const Plan plan{.directives = {{1, kStartOut, 0}, {1, kFinishOut, 0}, {2, kStartIn, 0}}};
  const Trace trace = row(4, 0);
  EXPECT_EQ(time_plan(trace, plan, link).step_ms, time_plan(trace, plan, kUnit).step_ms);
  EXPECT_EQ(time_plan(trace, plan, link).late_ms, 0);
}

TEST(Host, AheadOfTheDeviceAStretchOfItIsFree) {
  // 20 operators of 1 ms, for which the host takes 0.2; then one of 0.1, for which it takes 3. It
  // is 16 ahead by then, the lead of the last step included.
  TraceBuilder builder;
  const auto w = builder.existing(4);
  for (int i = 0; i < 20; ++i) {
    builder.run("op", {w}, {}, 1);
    builder.on_host(0.2);
  }
  builder.run("slow", {w}, {}, 0.1);
  builder.on_host(3);
  EXPECT_NEAR(time_plan(builder.build(), {}, kUnit).step_ms, 20.1, 1e-6);
}

TEST(Host, NoFurtherAheadThanCanBeQueued) {
  // After as many short operators as can be queued, the host's long pause shows, however long the
  // device has been behind before.
  const auto ahead = static_cast<int>(StepClock::kMostAhead);
  StepClock clock(kUnit);
  clock.reset();
  for (int i = 0; i < 10 * ahead; ++i) {
    clock.issue(0);
    clock.compute(1);
  }
  const double now = clock.now();
  clock.issue(ahead / 2.0);
  EXPECT_EQ(clock.now(), now) << "the device still has as much to do";
  clock.compute(1);
  clock.issue(1.5 * ahead);
  EXPECT_GT(clock.now(), now + 1) << "more than the device has";
}

TEST(Host, WhoWaitsForTheDeviceBeginsAnew) {
  // The host takes 0.5 for an operator of 1, and waits after the last: the first of the next step
  // comes 0.5 later than it could.
  TraceBuilder builder;
  const auto w = builder.existing(4);
  for (int i = 0; i < 4; ++i) {
    builder.run("op", {w}, {}, 1);
    builder.on_host(0.5, i == 3);
  }
  EXPECT_NEAR(time_plan(builder.build(), {}, kUnit).step_ms, 4.5, 1e-6);
}

TEST(Host, WhatThePlanDoesTakesIt) {
  TraceBuilder builder;
  const auto w = builder.existing(1);
  for (int i = 0; i < 10; ++i) {
    builder.run("op", i == 0 || i == 9 ? std::vector<TraceBlockId>{w} : std::vector<TraceBlockId>{},
                {}, 0.1);
    builder.on_host(2);
  }
  const Trace trace = builder.build();
  // w is never written: it leaves without a copy after the first round.
  const Plan plan{.directives = {{1, kStartOut, w}, {1, kFinishOut, w}, {5, kStartIn, w}}};
  const PlanTiming timing =
      time_plan(trace, plan, with_host({.copy_ms = 0.5, .leave_ms = 0.25, .remake_ms = 9}));
  EXPECT_NEAR(timing.host_ms, 20.75, 1e-6);
  EXPECT_NEAR(timing.step_ms, 20.75, 1e-6);
}

/// A chain: each layer makes a small block and a large one, of the same price a byte, which the way
/// back reads. For half of the memory, one may let go of few large or of many small ones.
Trace layers(double host_ms) {
  TraceBuilder builder;
  const auto w = builder.existing(1000);
  struct Pair {
    TraceBlockId x, large;
    std::vector<TraceBlockId> small;
  };
  std::vector<Pair> made;
  TraceBlockId x = w;
  for (int i = 0; i < 16; ++i) {
    Pair pair{};
    builder.run("layer", {x}, {}, 40);
    builder.on_host(host_ms);
    pair.x = builder.result(100'000);
    builder.run("large", {pair.x}, {}, 4);
    builder.repeatable();
    builder.on_host(host_ms);
    pair.large = builder.result(400'000);
    for (int j = 0; j < 8; ++j) {
      builder.run("small", {pair.x}, {}, 0.45);
      builder.repeatable();
      builder.on_host(host_ms);
      pair.small.push_back(builder.result(50'000));
    }
    x = pair.x;
    made.push_back(pair);
  }
  for (int i = 15; i >= 0; --i) {
    const Pair& pair = made[static_cast<std::size_t>(i)];
    std::vector<TraceBlockId> reads{pair.x, pair.large};
    reads.insert(reads.end(), pair.small.begin(), pair.small.end());
    builder.run("back", reads, {}, 60);
    builder.on_host(host_ms);
    for (const TraceBlockId id : reads) builder.dies(id);
  }
  return builder.build();
}

int actions(const Plan& plan) {
  int count = 0;
  for (const Directive& directive : plan.directives) {
    count += directive.action == Action::kRematerialise || directive.action == Action::kStartOut ||
                     directive.action == Action::kStartIn
                 ? 1
                 : 0;
  }
  return count;
}

PlannedStep planned(const Trace& trace, const LinkModel& link) {
  const Bytes budget = peak(trace) * 6 / 10;
  PlannedStep made =
      make_plan(trace, budget, link, {.seconds = 60, .rounds = 300, .recompute = true});
  EXPECT_EQ(joined(verify_plan(trace, made.plan, budget)), "");
  return made;
}

TEST(Host, WhereTheStepWaitsForItPlansDoLess) {
  LinkModel link{.out_bytes_per_ms = 1000, .in_bytes_per_ms = 1000, .both_bytes_per_ms = 1000};
  link.host = {.copy_ms = 8, .leave_ms = 2, .remake_ms = 10};
  const Trace fast = layers(0.1);
  const Trace slow = layers(20);
  ASSERT_GT(slow.host_ms(), computation(slow));
  const PlannedStep of_fast = planned(fast, link);
  const PlannedStep of_slow = planned(slow, link);
  EXPECT_LT(actions(of_slow.plan), actions(of_fast.plan));
  EXPECT_LE(of_slow.predicted.step_ms, time_plan(slow, of_fast.plan, link).step_ms);
  EXPECT_GE(of_slow.predicted.step_ms, slow.host_ms());
}

TEST(Host, PlansForADeviceThatIsSlowerAreNoWorse) {
  // What the host takes for a plan's doing is hidden: the plan is about as fast as if it were none.
  LinkModel link{.out_bytes_per_ms = 1000, .in_bytes_per_ms = 1000, .both_bytes_per_ms = 1000};
  const double without = planned(layers(0), link).predicted.step_ms;
  link.host = {.copy_ms = 0.1, .leave_ms = 0.02, .remake_ms = 0.1};
  EXPECT_LE(planned(layers(0.1), link).predicted.step_ms, 1.01 * without);
}

TEST(Host, TracesKeepIt) {
  const std::string path = ::testing::TempDir() + "host_test.trace.json.gz";
  TraceBuilder builder;
  const auto w = builder.existing(4);
  builder.run("a", {w}, {}, 1);
  builder.on_host(0.25);
  builder.run("b", {w}, {}, 1);
  builder.on_host(0.5, true);
  save_trace(builder.build(), path);
  const Trace loaded = load_trace(path);
  EXPECT_EQ(loaded.operators[0].host_ms, 0.25);
  EXPECT_FALSE(loaded.operators[0].host_waits);
  EXPECT_EQ(loaded.operators[1].host_ms, 0.5);
  EXPECT_TRUE(loaded.operators[1].host_waits);
}

// Where the times come from

MeasuredOperator seen(int behind, int behind_after) {
  return {.begin_ms = 0, .end_ms = 1, .behind = behind, .behind_after = behind_after};
}

TEST(HostTimes, AreThoseOfTheStepWhileTheHostIsNear) {
  Trace trace = row(40, 0);
  HostTimes host;
  for (int i = 0; i < 40; ++i) host.operators_ms.push_back(0.01 * i);
  host.copies_ms.assign(8, 0.1);
  host.remakes_ms = {0.9};
  const std::vector<MeasuredOperator> device(40, seen(3, 2));
  const HostCosts costs = set_host_times(trace, host, device);
  for (int i = 0; i < 40; ++i) {
    EXPECT_DOUBLE_EQ(trace.operators[static_cast<std::size_t>(i)].host_ms, 0.01 * i);
    EXPECT_FALSE(trace.operators[static_cast<std::size_t>(i)].host_waits);
  }
  EXPECT_DOUBLE_EQ(costs.copy_ms, 0.1);
  EXPECT_DOUBLE_EQ(costs.remake_ms, trace.host_ms() / 40) << "once is no evidence";
}

/// The step that was timed was a slow one: others of the kind have taken less altogether.
TEST(HostTimes, AreNoMoreThanStepsTakeThatAreNotTimed) {
  Trace trace = row(40, 0);
  HostTimes host;
  host.operators_ms.assign(40, 4);
  host.copies_ms.assign(10, 3);
  host.remakes_ms.assign(10, 1);
  const std::vector<MeasuredOperator> device(40, seen(3, 2));
  host.step_ms = 1000;
  EXPECT_DOUBLE_EQ(set_host_times(trace, host, device).copy_ms, 3) << "they have taken more";
  EXPECT_DOUBLE_EQ(trace.host_ms(), 160);
  host.step_ms = 100;
  const HostCosts costs = set_host_times(trace, host, device);
  EXPECT_DOUBLE_EQ(trace.host_ms(), 80);
  EXPECT_DOUBLE_EQ(costs.copy_ms, 1.5);
  EXPECT_DOUBLE_EQ(costs.remake_ms, 0.5);
}

/// One copy seemed to take long: its thread had no core.
TEST(HostTimes, OfOneCopyThatHadToWaitSayLittleOfCopies) {
  Trace trace = row(40, 0);
  HostTimes host;
  host.operators_ms.assign(40, 1);
  host.copies_ms.assign(10, 0.1);
  host.copies_ms[4] = 20;
  const std::vector<MeasuredOperator> device(40, seen(3, 2));
  EXPECT_NEAR(set_host_times(trace, host, device).copy_ms, 0.1, 0.05) << "the mean is 2";
  host.step_ms = 41.5;
  EXPECT_NEAR(set_host_times(trace, host, device).copy_ms, 0.1, 0.05);
  EXPECT_DOUBLE_EQ(trace.host_ms(), 40) << "nor are the operators less, for its sake";
}

TEST(HostTimes, AreNotBelievedWhileNoMoreCanBeQueued) {
  Trace trace = row(40, 0);
  for (std::size_t i = 30; i < 40; ++i) trace.operators[i].name = "other";
  trace.operators[29].name = "other";
  HostTimes host;
  std::vector<MeasuredOperator> device(40, seen(3, 2));
  for (int i = 0; i < 40; ++i) host.operators_ms.push_back(i < 29 ? 0.02 : 0.05);
  for (std::size_t i = 30; i < 40; ++i) {
    host.operators_ms[i] = 9;
    device[i] = seen(900, 900);
  }
  set_host_times(trace, host, device);
  EXPECT_DOUBLE_EQ(trace.operators[5].host_ms, 0.02);
  EXPECT_DOUBLE_EQ(trace.operators[35].host_ms, 0.05) << "as others of that name";
}

TEST(HostTimes, OfAHostThatIsFarAheadAreUnknown) {
  Trace trace = row(400, 1);
  HostTimes host;
  host.operators_ms.assign(400, 1);
  const std::vector<MeasuredOperator> device(400, seen(800, 800));
  set_host_times(trace, host, device);
  EXPECT_EQ(trace.host_ms(), 0);
}

TEST(HostTimes, OfADeviceThatNeverStandsStillAreUnknown) {
  Trace trace = row(400, 1);
  HostTimes host;
  host.operators_ms.assign(400, 1);
  std::vector<MeasuredOperator> device(400, seen(100, 99));
  set_host_times(trace, host, device);
  EXPECT_EQ(trace.host_ms(), 0);
  for (std::size_t i = 0; i < 8; ++i) device[i] = seen(1, 0);
  set_host_times(trace, host, device);
  EXPECT_GT(trace.host_ms(), 0);
}

TEST(HostTimes, InSumAreNoMoreThanTheStepTook) {
  // A few have waited without a sign of it; most have not been believed.
  Trace trace = row(400, 0);
  HostTimes host;
  host.operators_ms.assign(400, 0.02);
  std::vector<MeasuredOperator> device(400, seen(MeasuredOperator::kMany, 200));
  for (std::size_t i = 0; i < 50; ++i) {
    host.operators_ms[i] = 0.5;
    device[i] = seen(i < 5 ? 1 : 100, 99);
  }
  set_host_times(trace, host, device);
  EXPECT_NEAR(trace.host_ms(), 50 * 0.5 + 350 * 0.02, 1e-9);
}

TEST(HostTimes, AreNotBelievedBeforeTheDeviceHasComeToTheStep) {
  // The device has much of the step before to do: the host may stand still at every operator.
  Trace trace = row(40, 0);
  HostTimes host;
  host.operators_ms.assign(40, 5);
  std::vector<MeasuredOperator> device(40, seen(3, 2));
  for (std::size_t i = 0; i < 20; ++i) device[i] = seen(MeasuredOperator::kMany, 3);
  for (std::size_t i = 20; i < 40; ++i) host.operators_ms[i] = 0.02;
  set_host_times(trace, host, device);
  EXPECT_NEAR(trace.host_ms(), 40 * 0.02, 1e-9);
}

TEST(HostTimes, OfADeviceThatDoesNotSayAreUnknown) {
  Trace trace = row(40, 1);
  HostTimes host;
  host.operators_ms.assign(40, 1);
  set_host_times(trace, host, std::vector<MeasuredOperator>(40));
  EXPECT_EQ(trace.host_ms(), 0);
}

/// The step that was timed had a host that was late, as others then were not.
TEST(HostTimes, ArePlannedWithNoLongerThanStepsTakeThatFollowThePlan) {
  const LinkModel costs = with_host({.copy_ms = 2, .leave_ms = 1, .remake_ms = 4});
  const auto fitted = [&](double step_ms) {
    Trace trace = row(10, 3);  // the device's own time is 10
    LinkModel link = costs;
    fit_host_times(trace, link, {}, step_ms);
    return std::tuple(trace.host_ms(), link.host.copy_ms, time_plan(trace, {}, link).step_ms);
  };
  EXPECT_EQ(fitted(0), std::tuple(30, 2, 30)) << "not known";
  EXPECT_EQ(fitted(29.5), std::tuple(30, 2, 30)) << "steps do take as long, within what is known";
  const auto [host_ms, copy_ms, step_ms] = fitted(15);
  EXPECT_NEAR(host_ms, 15.45, 0.2);
  EXPECT_LE(step_ms, 15.45);
  EXPECT_NEAR(copy_ms, 1.03, 0.02);
  EXPECT_EQ(fitted(9), std::tuple(0, 0, 10)) << "the device explains all of it";
}

TEST(HostTimes, TellWhereTheHostWaits) {
  Trace trace = row(40, 0);
  HostTimes host;
  host.operators_ms.assign(40, 0.02);
  std::vector<MeasuredOperator> device(40, seen(20, 20));
  device[10] = seen(20, 0);  // somebody looks at its value
  host.operators_ms[10] = 7;
  device[11] = seen(0, 0);
  device[39] = seen(20, 20);  // and after the step
  device[0] = seen(0, 0);
  host.operators_ms[0] = 5;
  set_host_times(trace, host, device);
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(trace.operators[i].host_waits, i == 10 || i == 39) << i;
    EXPECT_DOUBLE_EQ(trace.operators[i].host_ms, 0.02) << "waiting is none of its time, " << i;
  }
}

}  // namespace
}  // namespace lms::testing
