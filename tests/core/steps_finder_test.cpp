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
  StepLog shorter(400);
  Tape other(shorter);
  Model model(other, {.late_release = true, .prefetch = true});
  std::uint64_t begin = 0;
  for (int i = 0; i < 200; ++i) begin = model.step();
  ASSERT_FALSE(other.reports.empty());
  EXPECT_EQ(other.reports.back().end - other.reports.back().begin, other.size() - begin);
  EXPECT_EQ(other.reports.size(), 197U);
  for (const auto& span : other.reports) EXPECT_EQ(other.objection(span), "");
  EXPECT_LT(shorter.blocks().slots(), 1000U);  // those of the forgotten are used again
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
