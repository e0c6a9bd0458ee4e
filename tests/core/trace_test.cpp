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
  expect_note(trace, "version 4 is not 3");
}

TEST(Trace, SparesOnlyWhatItWrites) {
  Trace trace = small_step();
  trace.operators[2].spared = {0};
  EXPECT_TRUE(trace.validate().empty());
  EXPECT_TRUE(trace.operators[2].spares(0));
  EXPECT_FALSE(trace.operators[2].spares(2));
  trace.operators[2].spared = {2};
  expect_note(trace, "operator 2 (update) spares the unwritten block 2");
  trace.operators[2].spared = {0, 0};
  expect_note(trace, "operator 2 (update) names twice the block 0");
}

TEST(Trace, RunningAgainMayBeCheaper) {
  TraceBuilder builder;
  builder.run("plain", {}, {}, 2);
  builder.repeatable();
  builder.run("cheaper", {}, {}, 2);
  builder.repeatable(0.5);
  Trace trace = builder.build();
  EXPECT_EQ(trace.operators[0].again_ms(), 2);
  EXPECT_EQ(trace.operators[1].again_ms(), 0.5);
  trace.operators[1].replay_ms = std::numeric_limits<double>::infinity();
  expect_note(trace, "operator 1 (cheaper) takes no possible time to run again");
}

TEST(Trace, BlocksThatCannotBeSo) {
  struct Case {
    void (*spoil)(Trace& trace);
    const char* note;
  };
  const Case cases[] = {
      {[](Trace& t) { t.operators[0].reads.push_back(2); },
       "operator 0 (forward) reads the unborn block 2"},
      {[](Trace& t) { t.operators[0].writes.push_back(1); },  // its own result
       "operator 0 (forward) writes the unborn block 1"},
      {[](Trace& t) { t.operators[2].writes.push_back(1); },
       "operator 2 (update) writes the dead block 1"},
      {[](Trace& t) { t.operators[2].frees.push_back(1); },
       "operator 2 (update) ends, though not alive, block 1"},
      {[](Trace& t) { t.operators[1].allocs.push_back(1); },
       "operator 1 (loss) makes again the block 1"},
      {[](Trace& t) { t.operators[1].allocs.push_back(0); },  // from before the step
       "operator 1 (loss) makes again the block 0"},
      {[](Trace& t) {
         t.blocks.push_back({5, true});
       },
       "block 3 is born in the step, but in no operator"},
      {[](Trace& t) { t.operators[2].reads.push_back(99); },
       "operator 2 (update) names the unknown block 99"},
      {[](Trace& t) { t.operators[2].reads.push_back(2); },
       "operator 2 (update) names twice the block 2"},
  };
  for (const auto& [spoil, note] : cases) {
    Trace trace = small_step();
    spoil(trace);
    expect_note(trace, note);
  }
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

// op makes r; its temporaries, of 3 and 5 bytes, coexist: 8.
Trace with_temporaries() {
  TraceBuilder builder;
  builder.run("op", {}, {}, 1.0, 8);
  builder.result(4);
  builder.temporary(3, 0, 3);
  builder.temporary(5, 2, 3);
  return builder.build();
}

TEST(Trace, TemporariesThatFitTheirWorkspace) {
  EXPECT_TRUE(with_temporaries().validate().empty());
  Trace trace = with_temporaries();
  trace.operators[0].workspace = 7;
  expect_note(trace, "operator 0 (op) has less workspace than its temporaries need");
  // One after the other they need no more than the larger.
  trace.operators[0].temporaries = {{3, 0, 1}, {5, 1, 3}};
  trace.operators[0].workspace = 5;
  EXPECT_TRUE(trace.validate().empty());
}

TEST(Trace, ImpossibleTemporaries) {
  Trace trace = with_temporaries();
  trace.operators[0].temporaries[1].end = 2;
  expect_note(trace, "operator 0 (op) has temporary 1 with no possible life");
  trace.operators[0].temporaries[1].end = 4;  // only three allocations are made
  expect_note(trace, "operator 0 (op) has temporary 1 with no possible life");
  trace = with_temporaries();
  trace.operators[0].temporaries[1].begin = 0;
  expect_note(trace, "operator 0 (op) has temporary 1 out of order");
  trace = with_temporaries();
  trace.operators[0].temporaries[0].bytes = 0;
  expect_note(trace, "operator 0 (op) has temporary 0 without bytes");
}

// old (6) is what the step before made as fresh (6); brief (6) dies in the step.
struct Carried {
  Trace trace;
  TraceBlockId old, other, fresh, brief;
};
Carried carried_step() {
  TraceBuilder builder;
  Carried step;
  step.old = builder.existing(6);
  step.other = builder.existing(6);
  builder.run("use", {step.old, step.other}, {}, 1.0);
  step.fresh = builder.result(6);
  step.brief = builder.result(6);
  builder.dies(step.old);
  builder.dies(step.brief);
  builder.carried(step.old, step.fresh);
  step.trace = builder.build();
  return step;
}

TEST(Trace, CarriedBlocks) {
  const Carried step = carried_step();
  EXPECT_EQ(step.trace.blocks[step.old].carried_from, step.fresh);
  EXPECT_EQ(step.trace.blocks[step.other].carried_from, kNoBlock);

  Trace trace = step.trace;
  trace.blocks[step.old].carried_from = 9;
  expect_note(trace, "block 0 is carried from the unknown block 9");
  trace.blocks[step.old].carried_from = -2;
  expect_note(trace, "block 0 is carried from the unknown block -2");
  trace.blocks[step.old].carried_from = step.brief;
  expect_note(trace, "block 0 is carried from block 3, which is dead when the step ends");
  trace.blocks[step.old].carried_from = step.other;
  expect_note(trace, "block 0 is carried from block 1, which is not born in the step");

  trace = step.trace;
  trace.blocks[step.other].carried_from = step.fresh;
  expect_note(trace, "block 1 is carried from block 2, as another block is");
  trace = step.trace;
  trace.blocks[step.old].bytes = 7;
  expect_note(trace, "block 0 is carried from block 2, which has another size");
  trace = step.trace;
  trace.blocks[step.old].carried_from = kNoBlock;
  trace.blocks[step.brief].carried_from = step.fresh;
  expect_note(trace, "block 3 is carried from block 2, but born in the step");
}

TEST(TraceBuilder, MarksOperatorsAndBlocks) {
  TraceBuilder builder;
  const auto w = builder.existing(1);
  builder.unmovable(w);
  builder.run("again", {w}, {}, 1.0);
  builder.repeatable();
  builder.run("once", {w}, {}, 1.0);
  const Trace trace = builder.build();
  EXPECT_FALSE(trace.blocks[w].movable);
  EXPECT_TRUE(trace.operators[0].repeatable);
  EXPECT_FALSE(trace.operators[1].repeatable);
}

TEST(TraceBuilder, RefusesWhatItCannotPlace) {
  TraceBuilder builder;
  EXPECT_THROW(builder.result(1), Error);
  EXPECT_THROW(builder.dies(0), Error);
  EXPECT_THROW(builder.repeatable(), Error);
  EXPECT_THROW(builder.temporary(1, 0, 1), Error);
  EXPECT_THROW(builder.unmovable(0), Error);
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
