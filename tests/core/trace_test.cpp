#include "trace/trace.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace lms {
namespace {

// w (10) is there before the step.
//   0 forward   reads w, makes a (4)        live 14, workspace 3
//   1 loss      reads a, makes l (1); a dies  live 15
//   2 update    reads l, writes w; l dies     live 11
Trace small_step() {
  TraceBuilder builder;
  const auto w = builder.existing(10);
  builder.run("forward", {w}, {}, 2.0, 3);
  const auto a = builder.result(4);
  builder.run("loss", {a}, {}, 1.0);
  const auto l = builder.result(1);
  builder.dies(a);
  builder.run("update", {l}, {w}, 0.5);
  builder.dies(l);
  return builder.build();
}

void expect_note(const Trace& trace, const std::string& text) {
  const auto notes = trace.validate();
  ASSERT_EQ(notes.size(), 1U) << text;
  EXPECT_EQ(notes.front(), text);
}

TEST(Trace, BuilderNumbersBlocksAndOperatorsInOrder) {
  const Trace trace = small_step();
  EXPECT_EQ(trace.version, kTraceVersion);
  ASSERT_EQ(trace.blocks.size(), 3U);
  EXPECT_FALSE(trace.blocks[0].born_in_step);
  EXPECT_TRUE(trace.blocks[2].born_in_step);
  ASSERT_EQ(trace.operators.size(), 3U);
  EXPECT_EQ(trace.operators[1].name, "loss");
  EXPECT_EQ(trace.operators[1].allocs, std::vector<TraceBlockId>{2});
  EXPECT_EQ(trace.operators[1].frees, std::vector<TraceBlockId>{1});
}

TEST(Trace, LiveBytesCountResultsAndWorkspace) {
  EXPECT_EQ(small_step().live_bytes(), (std::vector<Bytes>{17, 15, 11}));
}

TEST(Trace, EmptyIsValid) { EXPECT_TRUE(Trace{}.validate().empty()); }

TEST(Trace, BlockMayBeReadAndWrittenByOneOperator) {
  Trace trace = small_step();
  trace.operators[2].reads.push_back(0);
  EXPECT_TRUE(trace.validate().empty());
}

TEST(Trace, BlockMayDieInTheOperatorThatMakesIt) {
  Trace trace = small_step();
  trace.operators[1].frees.push_back(2);
  trace.operators[2].reads.clear();
  trace.operators[2].frees.clear();
  EXPECT_TRUE(trace.validate().empty());
}

TEST(Trace, AnotherVersionIsNotUnderstood) {
  Trace trace = small_step();
  trace.version = kTraceVersion + 1;
  expect_note(trace, "version 2 is not 1");
}

TEST(Trace, UseBeforeBirth) {
  Trace trace = small_step();
  trace.operators[0].reads.push_back(2);
  expect_note(trace, "operator 0 (forward) reads the unborn block 2");
}

TEST(Trace, UseOfItsOwnResult) {
  Trace trace = small_step();
  trace.operators[0].writes.push_back(1);
  expect_note(trace, "operator 0 (forward) writes the unborn block 1");
}

TEST(Trace, UseAfterDeath) {
  Trace trace = small_step();
  trace.operators[2].writes.push_back(1);
  expect_note(trace, "operator 2 (update) writes the dead block 1");
}

TEST(Trace, DeathTwice) {
  Trace trace = small_step();
  trace.operators[2].frees.push_back(1);
  expect_note(trace, "operator 2 (update) ends, though not alive, block 1");
}

TEST(Trace, BirthTwice) {
  Trace trace = small_step();
  trace.operators[1].allocs.push_back(1);
  expect_note(trace, "operator 1 (loss) makes again the block 1");
}

TEST(Trace, BirthOfABlockFromBeforeTheStep) {
  Trace trace = small_step();
  trace.operators[1].allocs.push_back(0);
  expect_note(trace, "operator 1 (loss) makes again the block 0");
}

TEST(Trace, BornInNoOperator) {
  Trace trace = small_step();
  trace.blocks.push_back({5, true});
  expect_note(trace, "block 3 is born in the step, but in no operator");
}

TEST(Trace, UnknownBlock) {
  Trace trace = small_step();
  trace.operators[2].reads.push_back(99);
  expect_note(trace, "operator 2 (update) names the unknown block 99");
}

TEST(Trace, BlockNamedTwice) {
  Trace trace = small_step();
  trace.operators[2].reads.push_back(1 + 1);
  expect_note(trace, "operator 2 (update) names twice the block 2");
}

TEST(Trace, ImpossibleSizesAndTimes) {
  Trace trace = small_step();
  trace.blocks[1].bytes = 0;
  expect_note(trace, "block 1 has no bytes");
  trace = small_step();
  trace.operators[0].ms = -1;
  expect_note(trace, "operator 0 (forward) takes no possible time");
  trace.operators[0].ms = std::numeric_limits<double>::quiet_NaN();
  expect_note(trace, "operator 0 (forward) takes no possible time");
  trace = small_step();
  trace.operators[0].workspace = -1;
  expect_note(trace, "operator 0 (forward) has a negative workspace");
}

TEST(TraceBuilder, RefusesWhatItCannotPlace) {
  TraceBuilder builder;
  EXPECT_THROW(builder.result(1), Error);
  EXPECT_THROW(builder.dies(0), Error);
  builder.run("op", {}, {}, 0);
  EXPECT_THROW(builder.existing(1), Error);
}

TEST(TraceBuilder, BuildNamesEverythingInconsistent) {
  TraceBuilder builder;
  builder.run("op", {7}, {}, -1);
  try {
    (void)builder.build();
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("block 7"), std::string::npos) << text;
    EXPECT_NE(text.find("no possible time"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace lms
