#include "pilot/pilot.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "figures/timeline.h"
#include "pilot/kinds_of_steps.h"
#include "pilot_loop.h"

namespace lms {
namespace {

using testing::Loop;

constexpr Bytes kTight = 12 * Loop::kBytes;  // of the 16 that eight layers take

TEST(Pilot, LearnsAStepPlansItAndFollowsThePlan) {
  Loop loop(kTight, 8);
  for (int i = 0; i < 12; ++i) loop.step(8);
  const auto stats = loop.pilot.stats();
  EXPECT_EQ(stats.shapes, 1);
  EXPECT_EQ(stats.planned, 1) << (loop.device.said.empty() ? "" : loop.device.said.front());
  EXPECT_GE(stats.steps, 4);
  EXPECT_EQ(stats.divergences, 0);
  EXPECT_LE(stats.planned_peak, kTight);
  EXPECT_TRUE(loop.device.said.empty());
}

TEST(Pilot, TheFirstPlanDoesNotTakeAllTheTimeThatPlansMay) {
  constexpr double kSeconds = 20;
  Loop loop(kTight, 8);
  loop.pilot.start({.limit = kTight, .search = {.seconds = kSeconds}});
  loop.pilot.wake();
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 12 && loop.pilot.stats().planned == 0; ++i) {
    loop.step(8);
    loop.pilot.wait_for_plan();
  }
  EXPECT_EQ(loop.pilot.stats().planned, 1);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_LT(took.count(), kSeconds / 2);
}

TEST(Pilot, SaysWhyItLeavesThePlanAndComesBackToIt) {
  Loop loop(kTight, 8);
  for (int i = 0; i < 10; ++i) loop.step(8);
  const auto before = loop.pilot.stats();
  ASSERT_GT(before.steps, 0);
  loop.step(8, /*extra=*/777);
  ASSERT_EQ(loop.device.said.size(), 1U);
  EXPECT_NE(loop.device.said[0].find("is another one"), std::string::npos) << loop.device.said[0];
  for (int i = 0; i < 6; ++i) loop.step(8);
  const auto after = loop.pilot.stats();
  EXPECT_EQ(after.shapes, 1) << "the old step was found again, not learnt anew";
  EXPECT_GT(after.steps, before.steps + 2);
}

TEST(Pilot, AsksWhatOperatorsCostOnlyWhereTheStepIsNotKnown) {
  Loop loop(kTight, 8);
  EXPECT_TRUE(loop.pilot.wants_costs());
  for (int i = 0; i < 10; ++i) loop.step(8);
  ASSERT_GT(loop.pilot.stats().steps, 0);
  EXPECT_FALSE(loop.pilot.wants_costs());
  loop.step(8, /*extra=*/777);
  EXPECT_TRUE(loop.pilot.wants_costs());
  loop.pilot.stop();
  EXPECT_FALSE(loop.pilot.wants_costs());
}

TEST(Pilot, MayBeStartedAnewAtAnyMoment) {
  for (int before = 1; before <= 12; ++before) {
    Loop loop(kTight, 8);
    for (int i = 0; i < before; ++i) loop.step(8);
    loop.pilot.start({.limit = kTight + 1, .in_foreground = true, .search = {.rounds = 200}});
    loop.pilot.wake();
    for (int i = 0; i < 12; ++i) loop.step(8);
    EXPECT_EQ(loop.pilot.stats().planned, 1) << "after " << before << " steps";
    EXPECT_EQ(loop.pilot.stats().divergences, 0) << "after " << before << " steps";
  }
}

TEST(Pilot, GoesOnAsItWasIfItIsStartedWithTheSameOptions) {
  Loop loop(kTight, 8);
  const Pilot::Options options = {
      .limit = kTight, .in_foreground = true, .search = {.rounds = 200}};
  loop.pilot.start(options);
  loop.pilot.wake();
  for (int i = 0; i < 10; ++i) loop.step(8);
  const auto steps = loop.pilot.stats().steps;
  ASSERT_GT(steps, 0);
  loop.pilot.start(options);
  for (int i = 0; i < 3; ++i) loop.step(8);
  EXPECT_EQ(loop.pilot.stats().planned, 1);
  EXPECT_EQ(loop.pilot.stats().steps, steps + 3);
  loop.pilot.stop();
  loop.pilot.start(options);  // after stop() it has forgotten
  EXPECT_EQ(loop.pilot.stats().planned, 0);
}

TEST(Pilot, AFailureIsOfOneStepAlone) {
  Loop loop(kTight, 8);
  loop.device.refuses = "no room today";
  const auto shape = [&](int layers, OperatorKey extra) {
    for (int i = 0; i < 10; ++i) loop.step(layers, extra);
  };
  // More of them than are said.
  for (OperatorKey extra = 901; extra <= 905; ++extra) shape(8, extra);
  EXPECT_EQ(loop.pilot.stats().planned, 0);
  ASSERT_EQ(loop.device.said.size(), 3U);
  EXPECT_NE(loop.device.said[0].find("no room today"), std::string::npos) << loop.device.said[0];
  loop.device.refuses.clear();
  shape(8, 906);
  EXPECT_EQ(loop.pilot.stats().planned, 1);
}

TEST(Pilot, EachShapeHasItsOwnPlan) {
  Loop loop(kTight, 8);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) loop.step(8);
    for (int i = 0; i < 8; ++i) loop.step(7);
  }
  const auto stats = loop.pilot.stats();
  EXPECT_GE(stats.shapes, 2);
  EXPECT_GE(stats.planned, 2);
  const auto steps = stats.steps;
  for (int i = 0; i < 8; ++i) loop.step(8);
  EXPECT_GE(loop.pilot.stats().steps, steps + 5);
}

TEST(Pilot, MicroStepsEndInTheWholeStep) {
  Loop loop(kTight, 8);
  for (int i = 0; i < 40; ++i) {
    for (int micro = 0; micro < 3; ++micro) loop.step(8);
    loop.optimizer();
  }
  const auto before = loop.pilot.stats();
  for (int i = 0; i < 4; ++i) {
    for (int micro = 0; micro < 3; ++micro) loop.step(8);
    loop.optimizer();
  }
  const auto after = loop.pilot.stats();
  EXPECT_EQ(after.divergences, before.divergences);
  EXPECT_EQ(after.steps - before.steps, 4);
}

TEST(Pilot, ARoundIsTheSameFromWhereverItBegins) {
  const auto shape = [](const std::vector<OperatorKey>& keys) {
    StepShape made;
    for (const OperatorKey key : keys) made.operators.push_back({.key = key});
    return made;
  };
  const StepShape round = shape({1, 2, 1, 3, 4});
  EXPECT_TRUE(same_round(round, round));
  EXPECT_TRUE(same_round(round, shape({1, 3, 4, 1, 2})));
  EXPECT_TRUE(same_round(round, shape({4, 1, 2, 1, 3})));
  EXPECT_FALSE(same_round(round, shape({1, 1, 2, 3, 4})));
  EXPECT_FALSE(same_round(round, shape({1, 2, 1, 3})));
  EXPECT_FALSE(same_round(round, shape({1, 2, 1, 3, 4, 1})));
}

TEST(Pilot, WhatRepeatsAndFitsIsNoStepToPlanUnlessSomethingLeavesInIt) {
  constexpr Bytes kLimit = 24 * Loop::kBytes;  // a step takes 16
  for (const Bytes elsewhere : {0 * Loop::kBytes, 10 * Loop::kBytes}) {
    Loop loop(kLimit, 8);
    if (elsewhere > 0) loop.occupy(elsewhere);
    for (int i = 0; i < 12; ++i) loop.step(8);
    const bool leaves = elsewhere > 0;
    EXPECT_EQ(loop.stats().evictions > 0, leaves);
    EXPECT_EQ(loop.pilot.stats().planned, leaves ? 1 : 0);
  }
}

TEST(Pilot, ALoopThatNeverRepeatsStaysReactiveAndRight) {
  Loop loop(kTight, 8);
  std::uint64_t state = 12345;
  for (int i = 0; i < 60; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    loop.step(4 + static_cast<int>((state >> 33U) % 5), 1000 + (state >> 40U));
  }
  EXPECT_EQ(loop.pilot.stats().planned, 0);
}

TEST(Pilot, MovesNoMoreThanNeededUnderAPlan) {
  Loop loop(kTight, 8);
  for (int i = 0; i < 10; ++i) loop.step(8);
  const auto script = loop.pilot.current();
  ASSERT_TRUE(script && script->planned);
  const auto before = loop.stats();
  for (int i = 0; i < 5; ++i) loop.step(8);
  const auto after = loop.stats();
  EXPECT_EQ(after.bytes_in - before.bytes_in, 5 * script->predicted.bytes_in);
}

TEST(Pilot, PlansDoNotCountOnTheRoomOfWhatIsKept) {
  for (const bool addresses : {false, true}) {
    Loop loop(kTight + Loop::kBytes, 8);
    loop.device.addresses = addresses;
    loop.hold_first(2 * Loop::kBytes);
    for (int i = 0; i < 12; ++i) loop.step(8);
    EXPECT_GE(loop.pilot.stats().steps, 4);
    EXPECT_EQ(loop.pilot.stats().divergences, 0);
    const auto script = loop.pilot.current();
    ASSERT_TRUE(script);
    for (TraceBlockId id = 0; id < script->shape.uids.size(); ++id) {
      EXPECT_EQ(script->shape.trace.blocks[id].movable, script->shape.uids[id] != loop.weight(0));
    }
  }
}

TEST(Pilot, WhatLiesElsewhereThanPlannedIsPutInItsPlaceBetweenSteps) {
  Loop loop(kTight, 8);
  loop.device.addresses = true;
  while (loop.pilot.stats().refined == 0) loop.step(8);
  for (int i = 0; i < 4; ++i) loop.step(8);
  const auto steady = [&] {
    const auto before = loop.stats();
    loop.step(8);
    return loop.stats().evictions - before.evictions;
  };
  const auto usual = steady();
  loop.device.asked = 0;
  EXPECT_EQ(steady(), usual);
  EXPECT_EQ(loop.device.asked, 0) << "everything has got its place: nothing to look for";

  // One that is on the device when a step begins has been found in the way of another.
  const auto script = loop.pilot.current();
  const auto& at_start = script->placement.at_start;
  ASSERT_FALSE(at_start.empty());
  for (std::size_t layer = 0; layer < 8; ++layer) loop.device.strays.insert(loop.weight(layer));
  ++loop.device.misplacements;
  const auto strays = loop.device.strays.size();
  const auto once = steady();
  const auto found = strays - loop.device.strays.size();
  EXPECT_GT(found, 0U);
  EXPECT_GT(once, usual);
  EXPECT_LE(once, usual + static_cast<std::int64_t>(found));
  loop.device.asked = 0;
  EXPECT_EQ(steady(), usual);
  EXPECT_EQ(loop.device.asked, 0);

  // What does not help is tried less and less often.
  int settled = 0;
  for (int i = 0; i < 100; ++i) {
    ++loop.device.misplacements;
    loop.device.asked = 0;
    loop.step(8);
    settled += loop.device.asked > 0 ? 1 : 0;
  }
  EXPECT_GE(settled, 2);
  EXPECT_LE(settled, 6);
}

TEST(Pilot, PlansAgainAroundWhatCannotMove) {
  Loop loop(kTight, 8);
  loop.device.page = Loop::kBytes;  // placed in little time
  loop.device.addresses = true;
  while (loop.pilot.stats().refined == 0) loop.step(8);
  for (int i = 0; i < 4; ++i) loop.step(8);
  const auto before = loop.pilot.current();
  ASSERT_EQ(loop.device.cleared, 0);
  // It is in nobody's way so far.
  loop.device.squatter = before->room - before->placement.bytes + 1;
  for (int i = 0; i < 4; ++i) loop.step(8);
  EXPECT_EQ(loop.device.cleared, 0);
  ++loop.device.misplacements;
  for (int i = 0; i < 20; ++i) loop.step(8);
  EXPECT_EQ(loop.device.cleared, 1);
  const auto after = loop.pilot.current();
  EXPECT_LE(after->placement.bytes, before->room - loop.device.lost);
  EXPECT_TRUE(after->refined);
  // Nothing is in the way, and there is less room: the same.
  loop.device.lost = before->room - after->placement.bytes + 1;
  ++loop.device.misplacements;
  for (int i = 0; i < 60; ++i) loop.step(8);
  EXPECT_GE(loop.device.cleared, 2);
  EXPECT_LE(loop.pilot.current()->placement.bytes, before->room - loop.device.lost);
}

TEST(Pilot, DoesNotRunAfterWhatIsInTheWayAgainAndAgain) {
  Loop loop(kTight, 8);
  loop.device.page = Loop::kBytes;  // placed in little time
  loop.device.addresses = true;
  while (loop.pilot.stats().refined == 0) loop.step(8);
  loop.device.squatter = 1;
  loop.device.returns = true;
  for (int i = 0; i < 200; ++i) {
    ++loop.device.misplacements;
    loop.step(8);
  }
  EXPECT_GE(loop.device.cleared, 2);
  EXPECT_LE(loop.device.cleared, 6);
}

Bytes bytes_copied(const Trace& trace, const MeasuredTimeline& timeline, bool out) {
  Bytes bytes = 0;
  for (const CopyTiming& copy : timeline.copies) {
    if (copy.out == out) bytes += trace.blocks.at(copy.block).bytes;
  }
  return bytes;
}

TEST(Pilot, KeepsWhatAStepUnderThePlanWasLike) {
  Loop loop(kTight, 8);
  EXPECT_EQ(loop.pilot.measured(), nullptr);
  for (int i = 0; i < 30; ++i) loop.step(8);
  EXPECT_EQ(loop.device.timed, 3) << "to plan, to plan again, and to see what became of it";
  EXPECT_EQ(loop.device.dropped, 0);
  EXPECT_EQ(loop.pilot.stats().refined, 1);
  const auto measured = loop.pilot.measured();
  ASSERT_NE(measured, nullptr);
  EXPECT_EQ(measured->script, loop.pilot.current()) << "the plan that is followed now";
  const Trace& trace = measured->script->shape.trace;
  const MeasuredTimeline& timeline = measured->timeline;
  ASSERT_EQ(timeline.operators.size(), trace.operators.size());
  for (const MeasuredOperator& op : timeline.operators) {
    EXPECT_DOUBLE_EQ(op.end_ms - op.begin_ms, 1.0);
  }

  // Each copy is that of a block of the trace, and the plan's.
  EXPECT_EQ(bytes_copied(trace, timeline, false), measured->script->predicted.bytes_in);
  EXPECT_EQ(bytes_copied(trace, timeline, true), measured->script->predicted.bytes_out);
  std::multiset<TraceBlockId> planned;
  for (const Directive& directive : measured->script->plan.directives) {
    if (directive.action == Action::kStartIn) planned.insert(directive.block);
  }
  std::multiset<TraceBlockId> came;
  bool born = false;
  for (const CopyTiming& copy : timeline.copies) {
    if (!copy.out) came.insert(copy.block);
    born = born || trace.blocks.at(copy.block).born_in_step;
  }
  EXPECT_EQ(came, planned);
  EXPECT_TRUE(born) << "blocks that have died since are known by name as well";
}

TEST(Pilot, AMeasuredStepCanBeDrawnBesideItsPrediction) {
  Loop loop(kTight, 8);
  for (int i = 0; i < 30; ++i) loop.step(8);
  const auto measured = loop.pilot.measured();
  ASSERT_NE(measured, nullptr);
  const Script& script = *measured->script;
  const PlanTiming predicted = script.timeline();
  EXPECT_DOUBLE_EQ(predicted.step_ms, script.predicted.step_ms);
  EXPECT_EQ(predicted.operators.size(), script.size());
  EXPECT_NO_THROW((void)chrome_trace(script.shape.trace, script.plan, predicted, script.budget,
                                     &measured->timeline));
  EXPECT_NO_THROW((void)timeline_svg(script.shape.trace, script.plan, predicted, script.budget,
                                     "both", &measured->timeline));
}

TEST(Pilot, WhatAnOperatorTakesBeforeItBeginsAnewIsNotItsTime) {
  constexpr int kLayers = 8;
  Loop loop(10 * Loop::kBytes, kLayers);
  loop.fails_at_first = true;
  for (int i = 0; i < 30; ++i) loop.step(kLayers);
  EXPECT_GT(loop.pilot.stats().steps, 0);
  EXPECT_GT(loop.device.timed, 0);
  EXPECT_EQ(loop.device.restarted, loop.device.timed * 2 * kLayers);
}

TEST(Pilot, WhatPassesBetweenTwoStepsIsNoOperatorsTimeOnTheHost) {
  Loop loop(kTight, 8);
  loop.parts = 4;          // operators enough for their times to be believed
  loop.device.behind = 1;  // the device waits for the host
  // For the device, say, or for data; longer than the device's step.
  constexpr std::chrono::milliseconds kPause{150};
  for (int i = 0; i < 16; ++i) {
    loop.step(8);
    std::this_thread::sleep_for(kPause);
  }
  const auto stats = loop.pilot.stats();
  ASSERT_GE(stats.refined, 1);
  EXPECT_GT(stats.host_ms, 0) << "nothing was believed";
  EXPECT_LT(stats.host_ms, 40);
}

/// Else a host that is late makes operators longer, and their copies seem to have time.
TEST(Pilot, ADeviceThatWaitsForTheHostTakesNoLongerForAnOperatorThanForItsLike) {
  Loop loop(kTight, 8);
  loop.alike = true;
  loop.device.starves_at = {2, 12};
  for (int i = 0; i < 16; ++i) loop.step(8);
  ASSERT_GE(loop.pilot.stats().refined, 1);
  const auto script = loop.pilot.current();
  ASSERT_NE(script, nullptr);
  for (const TraceOperator& op : script->shape.trace.operators) EXPECT_LT(op.ms, 50) << op.name;
}

/// Operators of one name are not like one another if they work on other sizes.
TEST(Pilot, ADeviceThatWaitsForTheHostSaysWhatAnOperatorTakesThatHasNoLike) {
  Loop loop(30 * Loop::kBytes, 8);
  loop.alike = true;
  loop.each = [](int i) { return Loop::kBytes * (i + 1); };
  loop.device.starves_at = {2};
  for (int i = 0; i < 16 && loop.pilot.stats().planned == 0; ++i) loop.step(8);
  const auto script = loop.pilot.current();
  ASSERT_NE(script, nullptr);
  double most = 0;
  for (const TraceOperator& op : script->shape.trace.operators) most = std::max(most, op.ms);
  EXPECT_GT(most, 50);
}

TEST(Pilot, LapsOfAStepThatTurnsOutToBeAnotherAreDropped) {
  int dropped = 0;
  for (int before = 1; before <= 18; ++before) {
    Loop loop(kTight, 8);
    for (int i = 0; i < before; ++i) loop.step(8);
    const int timed = loop.device.timed;
    loop.step(8, /*extra=*/777);
    EXPECT_EQ(loop.device.dropped, loop.device.timed - timed) << "after " << before << " steps";
    dropped += loop.device.dropped;
    for (int i = 0; i < 30; ++i) loop.step(8);
    const auto measured = loop.pilot.measured();
    ASSERT_NE(measured, nullptr) << "after " << before << " steps";
    EXPECT_EQ(measured->script, loop.pilot.current()) << "after " << before << " steps";
  }
  EXPECT_GE(dropped, 3) << "each of the three times that a step is timed";
}

TEST(Pilot, ShowsWhatItDoesToProfilers) {
  using Stage = PilotDevice::Stage;
  Loop loop(kTight, 8);
  for (int i = 0; i < 12; ++i) loop.step(8);
  loop.step(8, /*extra=*/777);
  loop.pilot.stop();
  std::map<Stage, int> open;
  std::map<Stage, int> begun;
  for (const auto& [stage, begins] : loop.device.shown) {
    open[stage] += begins ? 1 : -1;
    begun[stage] += begins ? 1 : 0;
    EXPECT_GE(open[stage], 0);
    EXPECT_LE(open[stage], 1);
  }
  for (const auto& [stage, count] : open) EXPECT_EQ(count, 0) << static_cast<int>(stage);
  EXPECT_GE(begun[Stage::kStep], loop.pilot.stats().steps);
  EXPECT_GT(begun[Stage::kOrders], 0);
  EXPECT_EQ(begun[Stage::kPlanning], loop.device.timed);
}

}  // namespace
}  // namespace lms
