// Steps replayed through the reactive engine, in unit costs: 1 byte takes 1 ms either way.

#include <string>

#include "engine_fixture.h"
#include "sim/replay.h"

namespace lms::testing {
namespace {

SimResult run(const Trace& trace, Bytes limit, SimDevice::Options options = {},
              std::unique_ptr<Policy> policy = std::make_unique<LruPolicy>()) {
  World world(limit, options, std::move(policy));
  const SimResult result = replay(trace, world.engine, world.sim);
  EXPECT_EQ(world.stats().blocks.current, 0) << "the replay leaves nothing behind";
  check_consistent(world);
  return result;
}

// Forward: x is made, then y from x, then z from y. Backward: y again, x again.
//   0 make x 10   1 x -> y 10   2 y -> z 10   3 z, y; z and y die   4 x; x dies
// Each operator computes for 5 ms.
Trace there_and_back() {
  TraceBuilder builder;
  builder.run("make", {}, {}, 5);
  const auto x = builder.result(10);
  builder.run("layer1", {x}, {}, 5);
  const auto y = builder.result(10);
  builder.run("layer2", {y}, {}, 5);
  const auto z = builder.result(10);
  builder.run("back2", {z, y}, {}, 5);
  builder.dies(z);
  builder.dies(y);
  builder.run("back1", {x}, {}, 5);
  builder.dies(x);
  return builder.build();
}

TEST(SimReplay, StepThatFitsMovesNothing) {
  const SimResult result = run(there_and_back(), 30);
  EXPECT_DOUBLE_EQ(result.ms, 25);
  EXPECT_DOUBLE_EQ(result.stalled_ms, 0);
  EXPECT_EQ(result.peak, 30);
  EXPECT_EQ(result.bytes_out, 0);
  EXPECT_EQ(result.bytes_in, 0);
  EXPECT_EQ(result.stalls, 0);
}

TEST(SimReplay, StepThatDoesNotFitPaysForEveryByteMoved) {
  // limit 20        0    5    10         20   25   30         40   45
  // computation     make layer1 ........ layer2 back2 ........ back1
  // lane out                    x
  // lane in                                          x
  // resident        x    x y     y       y z   -     x         .
  const SimResult result = run(there_and_back(), 20);
  EXPECT_DOUBLE_EQ(result.ms, 45);
  EXPECT_DOUBLE_EQ(result.stalled_ms, 20);
  EXPECT_EQ(result.bytes_out, 10);
  EXPECT_EQ(result.bytes_in, 10);
  EXPECT_EQ(result.peak, 20);
  EXPECT_EQ(result.stalls, 2);
}

TEST(SimReplay, LanesHaveTheirOwnBandwidthAndLatency) {
  const SimResult result =
      run(there_and_back(), 20, {.out_bytes_per_ms = 2, .in_bytes_per_ms = 5, .latency_ms = 0.25});
  EXPECT_DOUBLE_EQ(result.stalled_ms, 10 / 2.0 + 10 / 5.0 + 2 * 0.25);
}

TEST(SimReplay, WorkspaceTakesRoom) {
  // x must leave for the workspace of the second operator, and comes back for the third.
  TraceBuilder builder;
  const auto x = builder.existing(10);
  const auto y = builder.existing(10);
  builder.run("read", {x}, {}, 1);
  builder.run("large", {y}, {}, 1, 15);
  builder.run("read", {x}, {}, 1);
  const Trace trace = builder.build();
  SimResult result = run(trace, 35);
  EXPECT_EQ(result.peak, 35);
  EXPECT_EQ(result.bytes_out, 0);
  result = run(trace, 34);
  EXPECT_EQ(result.bytes_out, 10);
  EXPECT_EQ(result.bytes_in, 10);
  EXPECT_EQ(result.peak, 25);
}

TEST(SimReplay, CleanWeightsLeaveForNothingAndWrittenOnesDoNot) {
  // limit 10: only one of the two fits, so each use moves it in and the other out.
  //   before the step: u leaves when v is made (not counted)
  //   read u: v out 10, u in 10 | read v: u is clean, v in 10 | write u: v is clean, u in 10
  //   read v: u is dirty, out 10, v in 10
  TraceBuilder builder;
  const auto u = builder.existing(10);
  const auto v = builder.existing(10);
  builder.run("read", {u}, {}, 1);
  builder.run("read", {v}, {}, 1);
  builder.run("write", {}, {u}, 1);
  builder.run("read", {v}, {}, 1);
  const SimResult result = run(builder.build(), 10);
  EXPECT_EQ(result.bytes_out, 20);
  EXPECT_EQ(result.bytes_in, 40);
  EXPECT_DOUBLE_EQ(result.ms, 4 + 60);
  EXPECT_EQ(result.stalls, 4);
}

TEST(SimReplay, EvictEverythingMovesEveryInput) {
  const SimResult result = run(there_and_back(), 30, {}, std::make_unique<EvictEverythingPolicy>());
  // x leaves after layer1 and y after layer2; z has been no one's input yet. y comes back for
  // back2, where z and y leave before they die, y clean; x comes back for back1 and leaves clean.
  EXPECT_EQ(result.bytes_out, 30);
  EXPECT_EQ(result.bytes_in, 20);
}

TEST(SimReplay, ALimitBelowAnOperatorsNeedNamesIt) {
  World world(19);
  try {
    replay(there_and_back(), world.engine, world.sim);
    FAIL();
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("layer1 needs 10 B"), std::string::npos) << text;
    EXPECT_NE(text.find("at least 20 B would work"), std::string::npos) << text;
  }
  EXPECT_EQ(world.stats().blocks.current, 0);
  check_consistent(world);
}

TEST(SimReplay, PinsThatDoNotFitNameTheOperator) {
  TraceBuilder builder;
  const auto u = builder.existing(10);
  const auto v = builder.existing(10);
  builder.run("both", {u, v}, {}, 1);
  World world(15);
  try {
    replay(builder.build(), world.engine, world.sim);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(std::string(error.what()).rfind("both: ", 0), 0U) << error.what();
  }
  check_consistent(world);
}

TEST(SimReplay, FullHostMemoryEndsItCleanly) {
  World world(20, {.host_bytes = 9});
  EXPECT_THROW(replay(there_and_back(), world.engine, world.sim), TierFull);
  EXPECT_EQ(world.stats().blocks.current, 0);
  check_consistent(world);
}

TEST(SimReplay, ASmallerDeviceThanTheLimitIsFoundOut) {
  World world(30, {.device_bytes = 25});
  EXPECT_THROW(replay(there_and_back(), world.engine, world.sim), OutOfMemory);
  check_consistent(world);
}

TEST(SimReplay, FindsBytesThatAreWrong) {
  World world(20);
  world.sim.set_hooks({.mid_move = [](SimBlock& block, Direction direction) {
    if (direction == Direction::kOut) block.fill(12345);  // half of it is copied, then it changes
  }});
  EXPECT_THROW(replay(there_and_back(), world.engine, world.sim), Error);
}

TEST(SimReplay, LargeTracesNeedNoMemory) {
  TraceBuilder builder;
  builder.run("make", {}, {}, 1);
  const auto x = builder.result(400 * kGiB);
  builder.run("next", {x}, {}, 1);
  builder.result(400 * kGiB);
  builder.run("again", {x}, {}, 1);
  const SimResult result =
      run(builder.build(), 400 * kGiB + 400 * kGiB, {.out_bytes_per_ms = 5e7, .contents = false});
  EXPECT_DOUBLE_EQ(result.ms, 3);
}

TEST(SimReplay, InconsistentTraceIsRefused) {
  Trace trace = there_and_back();
  trace.operators[0].reads.push_back(2);
  World world(30);
  EXPECT_THROW(replay(trace, world.engine, world.sim), Error);
}

}  // namespace
}  // namespace lms::testing
