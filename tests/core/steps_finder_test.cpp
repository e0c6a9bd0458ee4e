// Training loops of every shape, operator by operator: which steps the log finds, and when.

#include <gtest/gtest.h>

#include "steps_model.h"

namespace lms::testing {
namespace {

class StepsFinder : public ::testing::Test {
 public:
  /// Every report was right.
  void TearDown() override {
    for (const StepLog::Span& span : tape.reports) {
      EXPECT_EQ(tape.objection(span), "") << span.begin << " to " << span.end;
    }
  }
  [[nodiscard]] std::uint64_t last_length() const {
    return tape.reports.empty() ? 0 : tape.reports.back().end - tape.reports.back().begin;
  }

  StepLog log;
  Tape tape{log};
};

TEST_F(StepsFinder, FindsAStepWhenItHasRepeatedAndTheNextHasBegun) {
  Model model(tape, {});
  std::vector<std::uint64_t> begins;
  begins.reserve(5);
  for (int i = 0; i < 5; ++i) begins.push_back(model.step());
  // The first step makes the optimizer's state, the second and the third are equal.
  ASSERT_GE(tape.reports.size(), 1U);
  EXPECT_EQ(tape.reports[0].begin, begins[2]);
  EXPECT_EQ(tape.reports[0].end, begins[3]);
  EXPECT_EQ(tape.reported_at[0], begins[3] + 1);
}

TEST_F(StepsFinder, FollowsFromStepToStep) {
  Model model(tape, {});
  std::vector<std::uint64_t> begins;
  begins.reserve(7);
  for (int i = 0; i < 7; ++i) begins.push_back(model.step());
  ASSERT_EQ(tape.reports.size(), 4U - 1U + 1U - 0U);
  for (std::size_t i = 0; i < tape.reports.size(); ++i) {
    EXPECT_EQ(tape.reports[i].begin, begins[i + 2]);
  }
}

TEST_F(StepsFinder, TakesNoStackOfEqualLayersForSteps) {
  Model model(tape, {.layers = 24, .alike = true});
  for (int i = 0; i < 2; ++i) model.step();
  EXPECT_TRUE(tape.reports.empty());
  const std::uint64_t third = model.step();
  const std::uint64_t fourth = model.step();
  ASSERT_EQ(tape.reports.size(), 1U);
  EXPECT_EQ(tape.reports[0].begin, third);
  EXPECT_EQ(tape.reports[0].end, fourth);
}

TEST_F(StepsFinder, TakesNoRecurrentLayerForSteps) {
  Model model(tape, {.layers = 24, .alike = true, .shared = true});
  for (int i = 0; i < 2; ++i) model.step();
  EXPECT_TRUE(tape.reports.empty());
  const std::uint64_t third = model.step();
  const std::uint64_t fourth = model.step();
  ASSERT_EQ(tape.reports.size(), 1U);
  EXPECT_EQ(tape.reports[0].begin, third);
  EXPECT_EQ(tape.reports[0].end, fourth);
}

TEST_F(StepsFinder, FindsTheValidationLoopAndTheTrainingAgain) {
  Model model(tape, {.layers = 10, .alike = true});
  for (int i = 0; i < 5; ++i) model.step();
  const std::uint64_t step = last_length();
  const auto validation = tape.size();
  model.validate();
  const std::uint64_t batch = tape.size() - validation;
  for (int i = 0; i < 3; ++i) model.validate();
  EXPECT_EQ(last_length(), batch);
  // Found when two were equal and a third had begun.
  EXPECT_EQ(std::ranges::count(tape.reported_at, validation + 2 * batch + 1), 1);
  const std::uint64_t again = model.step();
  model.step();
  const std::uint64_t third = model.step();
  EXPECT_EQ(last_length(), step);
  EXPECT_EQ(tape.reports.back().begin, again + step);
  EXPECT_EQ(tape.reports.back().end, third);
}

TEST_F(StepsFinder, AccumulationEndsInTheWholePeriod) {
  for (const bool keep : {false, true}) {
    StepLog other;
    Tape tape(other);
    Model model(tape, {.micro_steps = 4, .keep_gradients = keep});
    std::uint64_t begin = 0;
    for (int i = 0; i < 3; ++i) begin = model.step();
    const std::uint64_t length = tape.size() - begin;
    for (int i = 0; i < 3; ++i) begin = model.step();
    // Micro-steps that repeat may be taken for steps until the whole has repeated.
    const auto whole = std::ranges::find_if(
        tape.reports, [&](const auto& span) { return span.end - span.begin == length; });
    ASSERT_NE(whole, tape.reports.end());
    EXPECT_LE(tape.reported_at[whole - tape.reports.begin()], begin);
    for (auto span = tape.reports.begin(); span < whole; ++span) {
      EXPECT_EQ(tape.objection(*span), "");
      EXPECT_LT(span->end - span->begin, length);
    }
    for (auto span = whole; span < tape.reports.end(); ++span) {
      EXPECT_EQ(tape.objection(*span), "");
      EXPECT_EQ(span->end - span->begin, length);
    }
    if (!keep) {
      EXPECT_EQ(tape.reports.back().end, begin);
    }
  }
}

TEST_F(StepsFinder, ASmallerBatchAtTheEndOfTheEpochIsNoStep) {
  Model model(tape, {});
  for (int i = 0; i < 4; ++i) model.step();
  const std::uint64_t length = last_length();
  ASSERT_GT(length, 0U);
  const auto reports = tape.reports.size();
  const std::uint64_t odd = model.step(5);
  for (std::size_t i = reports; i < tape.reports.size(); ++i) EXPECT_LE(tape.reports[i].end, odd);
  const std::uint64_t next = model.step();
  model.step();
  const std::uint64_t third = model.step();
  EXPECT_EQ(tape.reports.back().begin, next + length);
  EXPECT_EQ(tape.reports.back().end, third);
}

TEST_F(StepsFinder, GradientsThatOutliveTheirStep) {
  Model model(tape, {.late_release = true});
  std::uint64_t begin = 0;
  for (int i = 0; i < 6; ++i) begin = model.step();
  EXPECT_EQ(last_length(), tape.size() - begin);
}

TEST_F(StepsFinder, BatchesFetchedAhead) {
  Model model(tape, {.prefetch = true});
  std::uint64_t begin = 0;
  for (int i = 0; i < 6; ++i) begin = model.step();
  EXPECT_EQ(last_length(), tape.size() - begin);
}

TEST_F(StepsFinder, AListOfLossesIsATrifle) {
  Model model(tape, {.keep_losses = true});
  std::uint64_t begin = 0;
  for (int i = 0; i < 6; ++i) begin = model.step();
  EXPECT_EQ(last_length(), tape.size() - begin);
}

TEST_F(StepsFinder, TwoBuffersInTurnMakeAStepOfTwo) {
  const BlockUid even = tape.was_there(100);
  const BlockUid odd = tape.was_there(100);
  for (int i = 0; i < 12; ++i) {
    const BlockUid buffer = i % 2 == 0 ? even : odd;
    tape.run(1, {}, {buffer});
    const BlockUid x = tape.run(2, {buffer}, {}, {30})[0];
    tape.run(3, {x}, {}, {}, {20});
    tape.drop(x);
  }
  ASSERT_FALSE(tape.reports.empty());
  for (const auto& span : tape.reports) EXPECT_EQ(span.end - span.begin, 6U);
}

TEST_F(StepsFinder, WhoIsWhoIsToldByTheOrderOfAllocations) {
  for (const bool outside : {false, true}) {
    StepLog alternating;
    Tape other(alternating);
    for (int i = 0; i < 12; ++i) {
      std::vector<BlockUid> pair;
      if (outside) pair = {other.make(50), other.make(50)};
      const auto made =
          other.run(1, {}, {}, outside ? std::vector<Bytes>{} : std::vector<Bytes>{50, 50});
      if (!outside) pair = made;
      if (i % 2 == 0) std::swap(pair[0], pair[1]);
      for (OperatorKey key = 2; key < 10; ++key) other.run(key, {pair[key % 2]});
      other.drop(pair[0]);
      other.drop(pair[1]);
    }
    ASSERT_FALSE(other.reports.empty());
    for (const auto& span : other.reports) {
      EXPECT_EQ(span.end - span.begin, 18U);
      EXPECT_EQ(other.objection(span), "");
    }
  }
}

TEST_F(StepsFinder, WhoDiesFirstMatters) {
  for (int i = 0; i < 12; ++i) {
    std::vector<BlockUid> pair = tape.run(1, {}, {}, {50, 50});
    if (i % 2 == 0) std::swap(pair[0], pair[1]);
    for (OperatorKey key = 2; key < 6; ++key) tape.run(key, {});
    tape.drop(pair[0]);
    for (OperatorKey key = 6; key < 10; ++key) tape.run(key, {});
    tape.drop(pair[1]);
  }
  ASSERT_FALSE(tape.reports.empty());
  for (const auto& span : tape.reports) EXPECT_EQ(span.end - span.begin, 18U);
}

TEST_F(StepsFinder, OneBlockDoesNotPlayTwoParts) {
  BlockUid first = tape.make(50);
  BlockUid second = tape.make(50);
  for (int i = 0; i < 6; ++i) {
    tape.run(1, {first});
    const BlockUid next = tape.run(2, {}, {}, {50})[0];
    const BlockUid big = tape.run(3, {}, {}, {9999})[0];
    for (OperatorKey key = 4; key < 11; ++key) tape.run(key, {});
    tape.run(11, {second});
    tape.drop(big);
    first = second = next;  // those that were are kept, for nothing
  }
  // The first run had two where the second has one.
  ASSERT_FALSE(tape.reports.empty());
  EXPECT_GE(tape.reports.front().begin, 2U * 11U);
}

TEST_F(StepsFinder, ABlockOfTheFirstRunThatStaysHasNoPartnerInTheSecond) {
  BlockUid buffer = 0;
  for (int i = 0; i < 6; ++i) {
    const BlockUid made = tape.run(1, {}, {}, {50})[0];
    if (buffer == 0) buffer = made;
    const BlockUid big = tape.run(2, {}, {}, {9999})[0];
    for (OperatorKey key = 3; key < 11; ++key) tape.run(key, {buffer});
    tape.drop(big);
  }
  ASSERT_FALSE(tape.reports.empty());
  EXPECT_GE(tape.reports.front().begin, 2U * 10U);
}

TEST_F(StepsFinder, BatchesFetchedTwoStepsAheadMakeAStepOfTwo) {
  std::vector<BlockUid> queue{tape.make(50), tape.make(50)};
  for (int i = 0; i < 12; ++i) {
    for (OperatorKey key = 1; key < 5; ++key) tape.run(key, {queue[0]});
    queue.push_back(tape.run(5, {}, {}, {50})[0]);
    for (OperatorKey key = 6; key < 11; ++key) tape.run(key, {queue[0]});
    tape.drop(queue[0]);
    queue.erase(queue.begin());
  }
  ASSERT_FALSE(tape.reports.empty());
  for (const auto& span : tape.reports) EXPECT_EQ(span.end - span.begin, 20U);
}

TEST_F(StepsFinder, AStepBeginsAfterTheLongestWayAboveTheFewestBytes) {
  // Blocks live from after operator 2 till after 4, from after 5 till after 9.
  for (int i = 0; i < 6; ++i) {
    BlockUid block = 0;
    for (OperatorKey key = 0; key < 12; ++key) {
      tape.run(key, {});
      if (key == 2 || key == 5) block = tape.make(40);
      if (key == 4 || key == 9) tape.drop(block);
    }
  }
  ASSERT_FALSE(tape.reports.empty());
  for (const auto& span : tape.reports) EXPECT_EQ(span.begin % 12, 10U);
}

TEST_F(StepsFinder, AmongEqualWaysTheBoundaryIsTheSameWhereverTheLogBegins) {
  std::set<OperatorKey> boundaries;
  for (OperatorKey first = 0; first < 12; ++first) {
    StepLog rotated;
    Tape other(rotated);
    BlockUid block = first > 2 && first < 5 ? other.make(40) : 0;
    if (first > 8 && first < 11) block = other.make(40);
    for (OperatorKey i = first; i < first + 60; ++i) {
      const OperatorKey key = i % 12;
      other.run(key, {});
      if (key == 2 || key == 8) block = other.make(40);
      if (key == 4 || key == 10) other.drop(block);
    }
    ASSERT_FALSE(other.reports.empty());
    for (const auto& span : other.reports) {
      EXPECT_EQ(span.end - span.begin, 12U);
      boundaries.insert((first + span.begin) % 12);
    }
  }
  EXPECT_EQ(boundaries.size(), 1U);
}

TEST_F(StepsFinder, AStepBeginsWhereNoBlockIsCarriedOverTwice) {
  for (const bool used : {true, false}) {
    StepLog fresh;
    Tape other(fresh);
    std::vector<BlockUid> queue{other.make(50), other.make(50)};
    BlockUid big = other.make(1000);
    for (int i = 0; i < 8; ++i) {
      other.run(1, {});
      other.run(2, {});
      other.drop(big);
      // Here are the fewest bytes.
      for (OperatorKey key = 3; key < 10; ++key) {
        other.run(key, used ? std::vector<BlockUid>{queue[0]} : std::vector<BlockUid>{});
      }
      other.drop(queue[0]);
      big = other.make(1000);
      queue = {queue[1], other.run(10, {}, {}, {50})[0]};
    }
    ASSERT_FALSE(other.reports.empty());
    for (const auto& span : other.reports) {
      EXPECT_EQ(span.end - span.begin, 10U);
      EXPECT_EQ(span.begin % 10, 9U);
      EXPECT_EQ(other.objection(span), "");
    }
  }
}

TEST_F(StepsFinder, NothingRepeatsInARandomWalk) {
  const BlockUid weight = tape.was_there(100);
  std::uint64_t state = 1;
  for (int i = 0; i < 3000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    tape.run(state >> 61U, {weight}, {}, {}, {static_cast<Bytes>(1 + (state >> 40U) % 3)});
  }
  EXPECT_TRUE(tape.reports.empty());
}

TEST_F(StepsFinder, StepsOfAModelThatTakesBranches) {
  Model small(tape, {.layers = 3});
  Model large(tape, {.layers = 6, .alike = true});
  std::uint64_t state = 7;
  for (int i = 0; i < 60; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    ((state >> 62U) != 0 ? small : large).step();
  }
  std::set<std::uint64_t> lengths;
  for (const auto& span : tape.reports) lengths.insert(span.end - span.begin);
  EXPECT_GE(lengths.size(), 1U);  // TearDown: all of them true
}

TEST_F(StepsFinder, TheUsersMarksDecide) {
  Model model(tape, {.micro_steps = 3});
  std::vector<std::uint64_t> begins;
  log.mark_step();
  for (int i = 0; i < 5; ++i) {
    begins.push_back(model.step());
    log.mark_step();
  }
  ASSERT_EQ(tape.reports.size(), 2U);
  EXPECT_EQ(tape.reports[0].begin, begins[2]);
  EXPECT_EQ(tape.reports[0].end, begins[3]);
  EXPECT_EQ(tape.reported_at[0], begins[3] + 1);
  EXPECT_EQ(tape.reports[1].begin, begins[3]);
  EXPECT_EQ(tape.reports[1].end, begins[4]);
}

TEST_F(StepsFinder, WithMarksNothingElseIsAStep) {
  Model model(tape, {});
  log.mark_step();
  for (int i = 0; i < 10; ++i) {
    for (int k = 0; k <= i; ++k) model.step();
    log.mark_step();
  }
  EXPECT_TRUE(tape.reports.empty());
}

TEST_F(StepsFinder, MarkedStepsMustBeEqualToo) {
  const BlockUid even = tape.was_there(100);
  const BlockUid odd = tape.was_there(100);
  for (int i = 0; i < 8; ++i) {  // as long, but on another block
    for (OperatorKey key = 1; key < 10; ++key) tape.run(key, {i % 2 == 0 ? even : odd});
    log.mark_step();
  }
  for (int i = 0; i < 8; ++i) {  // as long, but of another size
    for (OperatorKey key = 1; key < 10; ++key) tape.run(key, {even}, {}, {}, {1 + i % 2});
    log.mark_step();
  }
  EXPECT_TRUE(tape.reports.empty());
}

TEST_F(StepsFinder, MarksThatTheLogHasForgottenCountNoMore) {
  StepLog shorter(300);
  Tape other(shorter);
  Model model(other, {});
  shorter.mark_step();
  model.step();
  shorter.mark_step();
  const std::uint64_t begin = model.step();
  const std::uint64_t length = other.size() - begin;
  while (other.size() < 600) model.step();
  ASSERT_FALSE(other.reports.empty());
  EXPECT_EQ(other.reports.back().end - other.reports.back().begin, length);
}

TEST_F(StepsFinder, AMarkBetweenNoOperatorsIsNone) {
  Model model(tape, {});
  for (int i = 0; i < 5; ++i) {
    model.step();
    log.mark_step();
    log.mark_step();
  }
  EXPECT_FALSE(tape.reports.empty());
}

TEST_F(StepsFinder, StepsLongerThanHalfTheLogAreNotFound) {
  for (const std::size_t most : {100U, 150U}) {
    StepLog shorter(most);
    Tape other(shorter);
    Model model(other, {.layers = 10});  // 64 operators
    for (int i = 0; i < 8; ++i) model.step();
    EXPECT_EQ(other.reports.empty(), most < 130) << most;
    for (const auto& span : other.reports) EXPECT_EQ(other.objection(span), "");
    EXPECT_EQ(shorter.end() - shorter.first(), most);
  }
}

TEST_F(StepsFinder, ForgettingIsNoHindrance) {
  for (std::size_t most = 120; most < 420; most += 23) {
    StepLog shorter(most);
    Tape other(shorter);
    Model model(other, {.late_release = true, .prefetch = true, .scratch = true});
    std::uint64_t begin = 0;
    for (int i = 0; i < 100; ++i) begin = model.step();
    ASSERT_FALSE(other.reports.empty());
    EXPECT_EQ(other.reports.back().end - other.reports.back().begin, other.size() - begin);
    EXPECT_EQ(other.reports.size(), 96U) << most;
    for (const auto& span : other.reports) EXPECT_EQ(other.objection(span), "");
    EXPECT_LT(shorter.blocks().slots(), 1000U);  // those of the forgotten are used again
  }
}

TEST_F(StepsFinder, WhatWasForgottenUnreadIsNoHindrance) {
  StepLog shorter(200);
  Tape other(shorter);
  Model model(other, {});
  for (int i = 0; i < 5; ++i) model.step();
  const std::uint64_t length = other.reports.back().end - other.reports.back().begin;
  other.polls = false;
  for (int i = 0; i < 50; ++i) model.step(i < 45 ? 5 + i : 8);
  other.polls = true;
  const auto reports = other.reports.size();
  const std::uint64_t begin = model.step();
  ASSERT_GT(other.reports.size(), reports);
  EXPECT_EQ(other.reports.back().end, begin);
  EXPECT_EQ(other.reports.back().end - other.reports.back().begin, length);
  EXPECT_EQ(other.objection(other.reports.back()), "");
}

TEST_F(StepsFinder, AskedLateItAnswersForNow) {
  tape.polls = false;
  Model model(tape, {});
  for (int i = 0; i < 20; ++i) model.step();
  const std::uint64_t last = model.step();
  const auto step = log.repeated_step();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->end, last);
  EXPECT_EQ(tape.objection(*step), "");
}

TEST_F(StepsFinder, ClearedItBeginsAnew) {
  Model model(tape, {});
  for (int i = 0; i < 5; ++i) model.step();
  EXPECT_TRUE(log.repeated_step());
  const std::uint64_t number = log.end();
  log.clear();
  EXPECT_FALSE(log.repeated_step());
  EXPECT_EQ(log.first(), number);
  EXPECT_EQ(log.end(), number);
  const auto reports = tape.reports.size();
  const std::uint64_t first = model.step();
  const std::uint64_t second = model.step();
  const std::uint64_t third = model.step();
  ASSERT_EQ(tape.reports.size(), reports + 1);
  EXPECT_EQ(tape.reports.back().begin, second);
  EXPECT_EQ(tape.reports.back().end, third);
  EXPECT_EQ(first, number);
}

}  // namespace
}  // namespace lms::testing
