#include "pilot/detour_gate.h"

#include <gtest/gtest.h>

namespace lms {
namespace {

using Rule = DetourGate::Rule;

double now_ms = 0;

/// Counts `steps` of a hundred operators, of which `planned` follow a plan. Each takes so long.
void count(DetourGate& gate, int steps, int planned, double each_ms = 1) {
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < 100; ++i) {
      now_ms += each_ms;
      gate.count(i < planned, [] { return now_ms; });
    }
  }
}

DetourGate known(Rule rule) {
  DetourGate gate;
  gate.start(rule);
  gate.know(100);
  gate.step_ended();
  return gate;
}

TEST(DetourGate, OpensWhereMostRunsUnderNoPlan) {
  DetourGate gate = known(Rule::kWhenNeeded);
  count(gate, 11, 0);
  EXPECT_FALSE(gate.open());
  count(gate, 2, 0);
  EXPECT_TRUE(gate.open());
}

TEST(DetourGate, StaysClosedWhereStepsArePlanned) {
  DetourGate gate = known(Rule::kWhenNeeded);
  count(gate, 10, 0);
  count(gate, 100, 95);
  EXPECT_FALSE(gate.open());
  count(gate, 24, 80);
  EXPECT_TRUE(gate.open());
}

TEST(DetourGate, WaitsWhileStepsAreLearnt) {
  DetourGate gate = known(Rule::kWhenNeeded);
  for (int i = 0; i < 8; ++i) {
    count(gate, 5, 0);
    gate.step_ended();
    gate.know(100);
  }
  EXPECT_FALSE(gate.open());
}

TEST(DetourGate, DoesNotWaitForStepsThatNeverComeAgain) {
  DetourGate gate;
  gate.start(Rule::kWhenNeeded);
  gate.know(100);
  count(gate, 4, 0);
  gate.know(90);
  EXPECT_FALSE(gate.open());
  count(gate, 3, 0);
  EXPECT_TRUE(gate.open());
}

TEST(DetourGate, ClosesForGoodIfItIsOfNoUse) {
  DetourGate gate = known(Rule::kWhenNeeded);
  count(gate, 30, 50);
  ASSERT_TRUE(gate.open());
  count(gate, 30, 50);
  EXPECT_FALSE(gate.open());
  EXPECT_FALSE(gate.usable());
  count(gate, 100, 0);
  EXPECT_FALSE(gate.open());
}

TEST(DetourGate, StaysOpenIfMoreIsPlanned) {
  DetourGate gate = known(Rule::kWhenNeeded);
  count(gate, 30, 50);
  count(gate, 200, 60);
  EXPECT_TRUE(gate.open());
}

TEST(DetourGate, StaysOpenIfAllIsQuicker) {
  DetourGate gate = known(Rule::kWhenNeeded);
  count(gate, 30, 80, 3);
  ASSERT_TRUE(gate.open());
  count(gate, 100, 70, 2);
  EXPECT_TRUE(gate.open());
  count(gate, 30, 70, 3);
  EXPECT_FALSE(gate.open());
}

TEST(DetourGate, WhatIsNotCountedTakesNoTime) {
  DetourGate gate = known(Rule::kWhenNeeded);
  count(gate, 30, 80, 3);
  ASSERT_TRUE(gate.open());
  for (int i = 0; i < 30; ++i) {
    count(gate, 3, 70, 2);
    gate.pass();
    now_ms += 1e6;
  }
  EXPECT_TRUE(gate.open());
}

TEST(DetourGate, TheOthersNeverChange) {
  DetourGate closed = known(Rule::kClosed);
  DetourGate open = known(Rule::kOpen);
  count(closed, 100, 0);
  count(open, 100, 0);
  closed.open_at_once();
  EXPECT_FALSE(closed.open());
  EXPECT_TRUE(open.open());
}

TEST(DetourGate, OpensForAStepThatIsKnownRoughly) {
  DetourGate gate;
  gate.start(Rule::kWhenNeeded);
  EXPECT_TRUE(gate.usable());
  gate.open_at_once();
  EXPECT_TRUE(gate.open());
}

}  // namespace
}  // namespace lms
