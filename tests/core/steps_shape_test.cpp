// What becomes of a span of the log: the trace, and what goes beside it.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"
#include "core/plan_random.h"
#include "steps_model.h"

namespace lms::testing {
namespace {

using Ids = std::vector<TraceBlockId>;

/// The shape agrees with what the tape has fed.
void expect_true_shape(const Tape& tape, StepLog& log, StepLog::Span span) {
  const StepShape shape = make_shape(log, span);
  EXPECT_EQ(shape.trace.validate(), std::vector<std::string>{});
  ASSERT_EQ(shape.trace.operators.size(), span.end - span.begin);
  ASSERT_EQ(shape.operators.size(), shape.trace.operators.size());
  ASSERT_EQ(shape.uids.size(), shape.trace.blocks.size());
  const auto live = shape.trace.live_bytes();
  for (std::size_t i = 0; i < live.size(); ++i) {
    const Tape::Operator& fed = tape.operators()[span.begin + i];
    EXPECT_EQ(live[i], fed.live) << "operator " << i;
    EXPECT_EQ(shape.operators[i].key, fed.key);
    EXPECT_EQ(shape.trace.operators[i].name, "op" + std::to_string(fed.key));
    EXPECT_EQ(shape.trace.operators[i].ms, static_cast<double>(fed.key));
    EXPECT_EQ(shape.trace.operators[i].repeatable, fed.key % 2 == 0);
    ASSERT_EQ(shape.operators[i].touches.size(), fed.touches.size());
    for (std::size_t k = 0; k < fed.touches.size(); ++k) {
      EXPECT_EQ(shape.uids[shape.operators[i].touches[k].block], fed.touches[k].first);
      EXPECT_EQ(shape.operators[i].touches[k].writes, fed.touches[k].second);
    }
    EXPECT_EQ(shape.operators[i].allocations.size(),
              fed.before.size() + static_cast<std::size_t>(std::ranges::count_if(
                                      fed.inside, [](const auto& one) { return one.second; })));
  }
}

TEST(StepsShape, EveryKindOfTrainingLoop) {
  const std::vector<ModelOptions> all{{},
                                      {.alike = true},
                                      {.shared = true},
                                      {.micro_steps = 3},
                                      {.keep_gradients = true},
                                      {.late_release = true},
                                      {.prefetch = true},
                                      {.keep_losses = true},
                                      {.late_release = true, .prefetch = true}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    StepLog log;
    Tape tape(log);
    Model model(tape, all[i]);
    for (int step = 0; step < 7; ++step) model.step();
    ASSERT_FALSE(tape.reports.empty());
    expect_true_shape(tape, log, tape.reports.back());
  }
}

TEST(StepsShape, BlocksAndOperatorsByHand) {
  StepLog log;
  Tape tape(log);
  tape.polls = false;
  const BlockUid idle = tape.make(1000);  // never used
  const BlockUid weight = tape.was_there(100);
  const BlockUid state = tape.was_there(200);
  const BlockUid late = tape.was_there(400);
  tape.run(90, {late}, {state});
  BlockUid y = 0;
  BlockUid raw = 0;
  for (int i = 0; i < 2; ++i) {
    raw = tape.make(50);       // belongs to the next operator
    tape.drop(tape.make(30));  // as does this
    tape.begin(2);
    tape.use(weight);
    tape.use(raw, true);
    tape.use(weight);
    const BlockUid a = tape.make(5);
    const BlockUid b = tape.make(6);
    tape.drop(a);
    y = tape.make(60);
    tape.use(y);  // nested operators use the result,
    const BlockUid c = tape.make(7);
    tape.use(c);  // and a temporary
    tape.drop(b);
    tape.drop(c);
    tape.end();
    tape.run(3, {weight, y}, {y, state});
    tape.drop(y);  // after its last use
    tape.begin(4);
    tape.use(raw);
    tape.drop(raw);  // inside
    tape.end();
  }
  tape.run(5, {});
  const StepShape shape = make_shape(log, StepLog::Span{4, 7});

  EXPECT_EQ(shape.trace.validate(), std::vector<std::string>{});
  ASSERT_EQ(shape.uids, (std::vector<BlockUid>{weight, state, idle, late, raw, y}));
  const auto& blocks = shape.trace.blocks;
  for (const TraceBlockId id : Ids{0, 1, 3, 4, 5}) EXPECT_TRUE(blocks[id].movable) << id;
  EXPECT_FALSE(blocks[2].movable);
  for (TraceBlockId id = 0; id < 6; ++id) {
    EXPECT_EQ(blocks[id].born_in_step, id >= 4);
    EXPECT_EQ(blocks[id].carried_from, kNoBlock);
  }
  EXPECT_EQ(blocks[3].bytes, 400);

  const TraceOperator& first = shape.trace.operators[0];
  EXPECT_EQ(first.reads, Ids{0});
  EXPECT_EQ(first.writes, Ids{});
  EXPECT_EQ(first.allocs, (Ids{4, 5}));
  EXPECT_EQ(first.frees, Ids{});
  EXPECT_EQ(first.workspace, 13);  // 6 + 7 beside both results; the 30 bytes go before they come
  ASSERT_EQ(first.temporaries.size(), 4U);
  const auto expect_temporary = [&](std::size_t at, Bytes bytes, std::uint32_t begin,
                                    std::uint32_t end) {
    EXPECT_EQ(first.temporaries[at].bytes, bytes);
    EXPECT_EQ(first.temporaries[at].begin, begin);
    EXPECT_EQ(first.temporaries[at].end, end);
  };
  expect_temporary(0, 30, 1, 2);  // the allocations: raw, this, a, b, y, c
  expect_temporary(1, 5, 2, 4);
  expect_temporary(2, 6, 3, 6);
  expect_temporary(3, 7, 5, 6);
  const auto& made = shape.operators[0].allocations;
  ASSERT_EQ(made.size(), 6U);
  const std::vector<std::int64_t> made_ids{4, kNoBlock, kNoBlock, kNoBlock, 5, kNoBlock};
  const std::vector<Bytes> made_bytes{50, 30, 5, 6, 60, 7};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(made[i].block, made_ids[i]);
    EXPECT_EQ(made[i].bytes, made_bytes[i]);
    EXPECT_EQ(made[i].inside, i >= 2);
  }
  const auto& touches = shape.operators[0].touches;
  ASSERT_EQ(touches.size(), 4U);
  const std::vector<BlockUid> touched{0, 4, 0, 5};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(touches[i].block, touched[i]);
  EXPECT_TRUE(touches[1].writes);

  EXPECT_EQ(shape.trace.operators[1].reads, (Ids{0, 5, 1}));
  EXPECT_EQ(shape.trace.operators[1].writes, (Ids{5, 1}));
  EXPECT_EQ(shape.trace.operators[1].frees, Ids{5});
  EXPECT_EQ(shape.trace.operators[2].reads, Ids{4});
  EXPECT_EQ(shape.trace.operators[2].frees, Ids{4});
}

TEST(StepsShape, CarriedBlocksKnowTheirSuccessors) {
  StepLog log;
  Tape tape(log);
  Model model(tape, {.layers = 2, .late_release = true, .prefetch = true});
  for (int i = 0; i < 6; ++i) model.step();
  const StepLog::Span span = tape.reports.back();
  const StepShape shape = make_shape(log, span);
  const auto& blocks = shape.trace.blocks;
  std::size_t carried = 0;
  std::set<std::int64_t> successors;
  for (const TraceBlock& block : blocks) {
    if (block.carried_from == kNoBlock) continue;
    ++carried;
    ASSERT_LT(static_cast<std::size_t>(block.carried_from), blocks.size());
    const TraceBlock& next = blocks[static_cast<std::size_t>(block.carried_from)];
    EXPECT_FALSE(block.born_in_step);
    EXPECT_TRUE(next.born_in_step);
    EXPECT_EQ(next.bytes, block.bytes);
    EXPECT_TRUE(next.movable);
    successors.insert(block.carried_from);
  }
  EXPECT_EQ(successors.size(), carried);
  // Those that die though they were there before, and those born that stay.
  std::size_t dying = 0;
  std::size_t staying = 0;
  std::set<TraceBlockId> freed;
  for (const TraceOperator& op : shape.trace.operators) {
    freed.insert(op.frees.begin(), op.frees.end());
  }
  for (TraceBlockId id = 0; id < blocks.size(); ++id) {
    if (!blocks[id].born_in_step && freed.contains(id)) ++dying;
    if (blocks[id].born_in_step && !freed.contains(id)) ++staying;
  }
  EXPECT_GE(carried, 1U);
  EXPECT_EQ(dying, carried);
  EXPECT_EQ(staying, carried);
}

TEST(StepsShape, WhatIsKeptIsNotMovable) {
  StepLog log;
  Tape tape(log);
  tape.polls = false;
  const BlockUid weight = tape.was_there(100);
  const BlockUid bucket = tape.was_there(200);
  BlockUid gradient = tape.make(10);
  BlockUid sum = 0;
  for (int i = 0; i < 3; ++i) {
    tape.run(1, {weight, gradient}, {bucket});
    log.keep(bucket);
    tape.drop(gradient);
    gradient = tape.run(2, {bucket}, {}, {10})[0];
    log.keep(gradient);
    sum = tape.run(3, {gradient}, {}, {20})[0];
    tape.run(4, {sum});
    tape.drop(sum);
  }
  const StepShape shape = make_shape(log, StepLog::Span{8, 12});
  for (TraceBlockId id = 0; id < shape.uids.size(); ++id) {
    const BlockUid uid = shape.uids[id];
    const bool kept = uid == bucket || shape.trace.blocks[id].bytes == 10;
    EXPECT_EQ(shape.trace.blocks[id].movable, !kept) << id;
  }
  EXPECT_EQ(std::ranges::count_if(shape.trace.blocks, [](const auto& one) { return !one.movable; }),
            3);  // the bucket, and the gradients of this step and of that before
}

TEST(StepsShape, WhatIsUsedInTheNextStepIsMovableInThis) {
  StepLog log;
  Tape tape(log);
  tape.polls = false;
  BlockUid batch = tape.make(10);
  for (int i = 0; i < 3; ++i) {
    tape.run(1, {});
    tape.run(2, {batch});
    tape.drop(batch);
    batch = tape.run(3, {}, {}, {10})[0];
  }
  const StepShape shape =
      make_shape(log, StepLog::Span{6, 9});  // the last batch has not been used yet
  ASSERT_EQ(shape.trace.blocks.size(), 2U);
  EXPECT_EQ(shape.trace.blocks[0].carried_from, 1);
  EXPECT_TRUE(shape.trace.blocks[0].movable);
  EXPECT_TRUE(shape.trace.blocks[1].movable);
}

TEST(StepsShape, WhatIsOnlyKeptIsNotCarried) {
  StepLog log;
  Tape tape(log);
  Model model(tape, {.keep_losses = true});
  for (int i = 0; i < 6; ++i) model.step();
  ASSERT_FALSE(tape.reports.empty());
  const StepShape shape = make_shape(log, tape.reports.back());
  for (const TraceBlock& block : shape.trace.blocks) EXPECT_EQ(block.carried_from, kNoBlock);
}

TEST(StepsShape, TheSameStepGetsTheSameNumbers) {
  StepLog log;
  Tape tape(log);
  Model model(tape, {.late_release = true, .prefetch = true});
  for (int i = 0; i < 6; ++i) model.step();
  ASSERT_GE(tape.reports.size(), 2U);
  const StepShape a = make_shape(log, tape.reports[tape.reports.size() - 2]);
  const StepShape b = make_shape(log, tape.reports.back());
  ASSERT_EQ(a.trace.blocks.size(), b.trace.blocks.size());
  for (std::size_t id = 0; id < a.trace.blocks.size(); ++id) {
    const TraceBlock& block = b.trace.blocks[id];
    EXPECT_EQ(a.trace.blocks[id].bytes, block.bytes);
    EXPECT_EQ(a.trace.blocks[id].born_in_step, block.born_in_step);
    EXPECT_EQ(a.trace.blocks[id].carried_from, block.carried_from);
    const bool same = block.lasts();
    EXPECT_EQ(a.uids[id] == b.uids[id], same) << id;
    if (block.carried_from != kNoBlock) {
      EXPECT_EQ(b.uids[id], a.uids[static_cast<std::size_t>(block.carried_from)]);
    }
  }
  for (std::size_t i = 0; i < a.operators.size(); ++i) {
    EXPECT_EQ(a.trace.operators[i].reads, b.trace.operators[i].reads);
    EXPECT_EQ(a.trace.operators[i].writes, b.trace.operators[i].writes);
    EXPECT_EQ(a.trace.operators[i].allocs, b.trace.operators[i].allocs);
    EXPECT_EQ(a.trace.operators[i].frees, b.trace.operators[i].frees);
  }
}

TEST(StepsShape, OnlyOfWhatIsInTheLog) {
  StepLog log(20);
  for (int i = 0; i < 30; ++i) {
    log.begin_operator(1, "a", false);
    log.end_operator();
  }
  EXPECT_THROW(make_shape(log, StepLog::Span{15, 20}),
               Error);  // nothing is known of what was before 10
  EXPECT_NO_THROW(make_shape(log, StepLog::Span{16, 21}));
  EXPECT_THROW(make_shape(log, StepLog::Span{25, 31}), Error);
  EXPECT_THROW(make_shape(log, StepLog::Span{25, 25}), Error);
}

// Random steps -----------------------------------------------------------------------------------

/// A random step that can be run again and again, with blocks that live on into the next.
class RandomStep {
 public:
  explicit RandomStep(Tape& tape) : tape_(&tape) {
    for (int i = 1 + upto(4); i > 0; --i) weights_.push_back(tape.make(1 + upto(9)));
    std::vector<std::size_t> free;
    for (int i = 9 + upto(20); i > 0; --i) {
      Act act{static_cast<OperatorKey>(upto(3)), {}, {}, {}, {}, {}};
      for (int k = upto(2); k > 0; --k) {
        act.uses.emplace_back(upto(static_cast<int>(weights_.size() + slots_) - 1), upto(3) == 0);
      }
      if (upto(2) == 0) act.results.push_back(1 + upto(99));
      if (upto(3) == 0) act.results.push_back(1 + upto(99));
      if (upto(2) == 0) act.temporaries.push_back(1 + upto(99));
      if (upto(3) == 0) act.temporaries.push_back(1 + upto(99));
      act.outside = upto(5) == 0 ? 1 + upto(9) : 0;
      act.slots = slots_;
      slots_ += act.results.size() + (act.outside > 0 ? 1 : 0);
      acts_.push_back(std::move(act));
    }
    // Every slot's block dies at one place: before its slot is filled again in the next step.
    for (std::size_t slot = 0; slot < slots_; ++slot) {
      acts_[static_cast<std::size_t>(upto(static_cast<int>(acts_.size()) - 1))].dying.push_back(
          slot);
    }
    filled_.assign(slots_, 0);
  }

  void run() {
    for (const Act& act : acts_) {
      std::size_t slot = act.slots;
      if (act.outside > 0) fill(slot++, act.outside);
      tape_->begin(act.key);
      for (const auto& [what, writes] : act.uses) {
        const auto at = static_cast<std::size_t>(what);
        const BlockUid uid = at < weights_.size() ? weights_[at] : filled_[at - weights_.size()];
        if (uid != 0) tape_->use(uid, writes);
      }
      for (const Bytes bytes : act.results) fill(slot++, bytes);
      for (const Bytes bytes : act.temporaries) held_.push_back(tape_->make(bytes));
      for (const BlockUid uid : held_) tape_->drop(uid);
      held_.clear();
      tape_->end();
      for (const std::size_t dying : act.dying) empty(dying);
    }
  }
  [[nodiscard]] std::size_t size() const { return acts_.size(); }

 private:
  struct Act {
    OperatorKey key;
    std::vector<std::pair<int, bool>> uses;  ///< weights first, then slots
    std::vector<Bytes> results;
    std::vector<Bytes> temporaries;
    std::vector<std::size_t> dying;
    Bytes outside = 0;
    std::size_t slots = 0;  ///< the first that it fills
  };
  void empty(std::size_t slot) {
    if (filled_[slot] != 0) tape_->drop(filled_[slot]);
    filled_[slot] = 0;
  }
  void fill(std::size_t slot, Bytes bytes) {
    empty(slot);
    filled_[slot] = tape_->make(bytes);
  }

  Tape* tape_;
  std::vector<BlockUid> weights_;
  std::vector<Act> acts_;
  std::size_t slots_ = 0;
  std::vector<BlockUid> filled_;
  std::vector<BlockUid> held_;
};

RC_GTEST_PROP(StepsProperty, RandomStepsAreFoundAndTrue, ()) {
  StepLog log;
  Tape tape(log);
  RandomStep step(tape);
  for (int i = 0; i < 6; ++i) step.run();
  RC_ASSERT(!tape.reports.empty());
  for (const auto& span : tape.reports) RC_ASSERT(tape.objection(span) == "");
  // The whole step, unless it happens to consist of equal parts.
  const StepLog::Span last = tape.reports.back();
  RC_ASSERT(step.size() % (last.end - last.begin) == 0U);
  expect_true_shape(tape, log, last);
}

RC_GTEST_PROP(StepsProperty, WhateverIsReportedIsTrue, ()) {
  StepLog log(64 + static_cast<std::size_t>(upto(400)));
  Tape tape(log);
  std::vector<RandomStep> steps;
  for (int i = 1 + upto(2); i > 0; --i) steps.emplace_back(tape);
  for (int i = 0; i < 25; ++i) {
    RandomStep& step = steps[static_cast<std::size_t>(upto(static_cast<int>(steps.size()) - 1))];
    const std::size_t before = tape.reports.size();
    step.run();
    if (upto(9) == 0) log.mark_step();
    for (std::size_t k = before; k < tape.reports.size(); ++k) {
      RC_ASSERT(tape.objection(tape.reports[k]) == "");
    }
    const auto now = log.repeated_step();
    if (now) expect_true_shape(tape, log, *now);
  }
}

}  // namespace
}  // namespace lms::testing
