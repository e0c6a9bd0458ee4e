// Limits and what they cost: what `lms plan` answers where it is given no limit.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "bound/below.h"
#include "bound/forecast.h"
#include "trace/trace_io.h"

namespace lms::tool {
namespace {

constexpr LinkModel kMiBPerMs{kMiB, kMiB, kMiB, 0, 0, 0};  ///< a MiB a ms

/// x (4 MiB) is made first and used last, y (2 MiB) and its successors in between; "d" needs most.
Trace small_step() {
  TraceBuilder builder;
  builder.run("a", {}, {}, 1);
  const auto x = builder.result(4 * kMiB);
  builder.run("b", {}, {}, 20);
  const auto y = builder.result(2 * kMiB);
  builder.run("d", {y}, {}, 20, 5 * kMiB);
  builder.dies(y);
  builder.run("e", {x}, {}, 4);
  builder.dies(x);
  return builder.build();
}

/// Blocks of odd sizes that live for a while, so that addresses waste some of the room.
Trace random_step(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto upto = [&](int most) { return static_cast<int>(random() % (most + 1)); };
  const auto bytes = [&] { return kMiB / 4 * (1 + upto(160)) + 512 * upto(7); };
  TraceBuilder builder;
  std::vector<TraceBlockId> alive;
  for (int i = upto(4); i >= 0; --i) alive.push_back(builder.existing(bytes()));
  const std::size_t existing = alive.size();
  for (int i = 8 + upto(30); i > 0; --i) {
    std::vector<TraceBlockId> reads;
    for (const TraceBlockId id : alive) {
      if (upto(4) == 0) reads.push_back(id);
    }
    builder.run("op", reads, {}, upto(5), upto(2) * bytes());
    alive.push_back(builder.result(bytes()));
    if (upto(1) == 0 && alive.size() > existing) {
      const auto at = static_cast<std::ptrdiff_t>(existing + random() % (alive.size() - existing));
      builder.dies(alive[static_cast<std::size_t>(at)]);
      alive.erase(alive.begin() + at);
    }
  }
  for (std::size_t i = existing; i < alive.size(); ++i) builder.dies(alive[i]);
  return builder.build();
}

TEST(Limits, TheSmallestIsFoundAboveWhatOneOperatorNeeds) {
  const Trace trace = small_step();
  const auto smallest = smallest_fit(trace, kMiBPerMs);
  ASSERT_TRUE(smallest.has_value());
  EXPECT_EQ(least_limit(trace).bytes, 7 * kMiB);
  EXPECT_EQ(smallest->limit, 8 * kMiB) << "in pages of two";
  EXPECT_TRUE(verify_plan(trace, smallest->planned->plan, smallest->limit).empty());
  EXPECT_FALSE(forecast(trace, least_limit(trace).bytes - 1, kMiBPerMs, 0).fits());
}

TEST(Limits, APlanForTheSmallestIsProvedRight) {
  constexpr Bytes kPage = 2 * kMiB;
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const Trace trace = random_step(seed);
    const auto smallest = smallest_fit(trace, kMiBPerMs);
    ASSERT_TRUE(smallest.has_value());
    const Bytes limit = smallest->limit;
    EXPECT_EQ(limit % kPage, 0);
    EXPECT_GE(limit, least_limit(trace).bytes);
    EXPECT_TRUE(verify_plan(trace, smallest->planned->plan, limit).empty());
    EXPECT_TRUE(verify_placement(trace, smallest->planned->plan, smallest->placement).empty());
    EXPECT_LE(smallest->placement.bytes, limit);
    const Bytes below = round_up(least_limit(trace).bytes, kPage) - kPage;
    EXPECT_TRUE(below == 0 || !forecast(trace, below, kMiBPerMs, 0).fits());
  }
}

TEST(Limits, AreAskedFromThePeakDownToTheSmallest) {
  const std::vector<Bytes> all = {1200, 960, 800, 600, 400, 300, 100};
  EXPECT_EQ(limits_to_ask(1200, 100), all);
  EXPECT_EQ(limits_to_ask(1200, 595), (std::vector<Bytes>{1200, 960, 800, 595})) << "600 is near";
  EXPECT_EQ(limits_to_ask(1200, 1300), std::vector<Bytes>{1300});
}

TEST(Limits, NoLargerLimitIsSlower) {
  // So near to each other that searches this short come out in any order.
  const auto folder = std::filesystem::path(__FILE__).parent_path().parent_path() / "golden";
  const Trace trace = load_trace((folder / "recorded_unet3d_bf16_192.json.gz").string());
  std::vector<Bytes> limits;
  for (Bytes limit = 2100 * kMiB; limit > 2080 * kMiB; limit -= 4 * kMiB) limits.push_back(limit);
  const std::vector<Forecast> answers = forecasts(trace, limits, kMiBPerMs, 0.01);
  ASSERT_EQ(answers.size(), limits.size());
  for (std::size_t at = 0; at < answers.size(); ++at) {
    ASSERT_TRUE(answers[at].fits()) << answers[at].why_not;
    EXPECT_EQ(answers[at].limit, limits[at]);
    EXPECT_LE(answers[at].placement.bytes, limits[at]);
    EXPECT_TRUE(verify_plan(trace, answers[at].planned->plan, limits[at]).empty());
    EXPECT_GE(answers[at].overhead(), answers[at == 0 ? 0 : at - 1].overhead());
  }
}

TEST(Limits, WhatDoesNotFitIsARowToo) {
  const std::vector<Forecast> answers =
      forecasts(small_step(), {12 * kMiB, 4 * kMiB}, kMiBPerMs, 0);
  EXPECT_TRUE(answers[0].fits());
  EXPECT_FALSE(answers[1].fits());
  EXPECT_NE(answers[1].why_not.find("operator 2 (d)"), std::string::npos) << answers[1].why_not;
}

TEST(Limits, AnAnswerThatIsKnownIsNotLost) {
  // As if the search found nothing for the last limit, and something slow for the first.
  const Trace trace = small_step();
  Forecast known = forecast(trace, 8 * kMiB, kMiBPerMs, 0.1);
  ASSERT_TRUE(known.fits());
  const std::vector<Forecast> answers = forecasts(trace, {9 * kMiB, 4 * kMiB}, kMiBPerMs, 0, known);
  EXPECT_TRUE(answers[1].fits());
  EXPECT_EQ(answers[1].limit, 4 * kMiB);
  EXPECT_LE(answers[0].overhead(), known.overhead());
}

Bytes below(const Trace& trace, std::vector<Directive> directives,
            std::vector<TraceBlockId> absent = {}) {
  const Plan plan{.directives = std::move(directives), .absent_at_start = std::move(absent)};
  const auto wrong = verify_plan(trace, plan, kGiB);
  EXPECT_TRUE(wrong.empty()) << wrong.front();
  return most_below(trace, plan);
}

TEST(Below, WhatLeavesTakesItsPlaceUntilItIsWrittenOrDies) {
  TraceBuilder builder;
  builder.run("make", {}, {}, 1);
  const auto x = builder.result(4 * kMiB);
  const auto y = builder.result(3 * kMiB);
  builder.run("use", {}, {}, 1);
  builder.run("write", {}, {x}, 1);
  builder.run("read", {y}, {}, 1);
  builder.run("end", {x}, {}, 1);
  builder.dies(x);
  builder.dies(y);
  const Trace trace = builder.build();
  const std::vector<Directive> x_away = {
      {1, Action::kStartOut, x}, {1, Action::kFinishOut, x}, {2, Action::kStartIn, x}};
  std::vector<Directive> both = x_away;
  EXPECT_EQ(below(trace, {}), 0);
  EXPECT_EQ(below(trace, both), 4 * kMiB);
  for (const std::size_t at : {2U, 3U}) {
    both = x_away;
    both.push_back({at, Action::kStartOut, y});
    both.push_back({at, Action::kFinishOut, y});
    both.push_back({3, Action::kStartIn, y});
    EXPECT_EQ(below(trace, both), at == 2 ? 7 * kMiB : 4 * kMiB) << "x is written by operator 2";
  }
}

TEST(Below, WeightsThatNobodyWritesStayBelowFromStepToStep) {
  TraceBuilder builder;
  const auto frozen = builder.existing(8 * kMiB);
  builder.run("use", {frozen}, {}, 1);
  const auto x = builder.result(2 * kMiB);
  builder.run("other", {}, {}, 1);
  builder.run("end", {x}, {}, 1);
  builder.dies(x);
  const Trace trace = builder.build();
  // It is copied out once; the second step finds the copy there, when x leaves as well.
  EXPECT_EQ(below(trace, {{1, Action::kStartOut, x},
                          {1, Action::kFinishOut, x},
                          {2, Action::kStartIn, x},
                          {2, Action::kStartOut, frozen},
                          {2, Action::kFinishOut, frozen},
                          {3, Action::kStartIn, frozen}}),
            10 * kMiB);
  EXPECT_EQ(below(trace,
                  {{0, Action::kStartIn, frozen},
                   {3, Action::kStartOut, frozen},
                   {3, Action::kFinishOut, frozen}},
                  {frozen}),
            8 * kMiB);
}

}  // namespace
}  // namespace lms::tool
