// Ticks, and labels that do not overlap.

#include "lab/report/scale.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>

namespace lms::report {
namespace {

TEST(Ticks, AreRoundAndWithin) {
  EXPECT_EQ(nice_ticks(0, 100, 6), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(nice_ticks(1500, 9000, 5), (std::vector<double>{2000, 4000, 6000, 8000}));
  EXPECT_EQ(nice_ticks(-0.1, 0.1, 3), (std::vector<double>{-0.1, 0, 0.1}));
  EXPECT_DOUBLE_EQ(nice_end(0, 83, 6), 100);
}

TEST(Ticks, NoneForWhatIsNoRange) {
  EXPECT_TRUE(nice_ticks(1, 1, 5).empty());
  EXPECT_TRUE(nice_ticks(2, 1, 5).empty());
  EXPECT_TRUE(nice_ticks(0, std::numeric_limits<double>::infinity(), 5).empty());
  EXPECT_TRUE(nice_ticks(std::nan(""), 1, 5).empty());
}

TEST(Ticks, OfAnyRange) {
  rc::check("few, even, within", [] {
    const double low = *rc::gen::inRange(-1000000, 1000000) / 97.0;
    const double range = *rc::gen::inRange(1, 1000000) / 31.0;
    const int most = *rc::gen::inRange(2, 12);
    const std::vector<double> ticks = nice_ticks(low, low + range, most);
    RC_ASSERT(ticks.size() <= static_cast<std::size_t>(most));
    for (std::size_t i = 0; i < ticks.size(); ++i) {
      RC_ASSERT(ticks[i] >= low - 1e-6 * range && ticks[i] <= low + range * (1 + 1e-6));
      if (i < 2) continue;
      const double step = ticks[1] - ticks[0];
      RC_ASSERT(std::fabs(ticks[i] - ticks[i - 1] - step) <= 1e-6 * step);
    }
  });
}

TEST(Spread, StaysWhereThereIsRoom) {
  const auto centres = spread({{10, 4}, {50, 4}, {30, 4}}, 0, 100);
  ASSERT_TRUE(centres);
  EXPECT_EQ(*centres, (std::vector<double>{10, 50, 30}));
}

TEST(Spread, MovesApartByTheSameOnBothSides) {
  const auto centres = spread({{50, 10}, {50, 10}}, 0, 100);
  ASSERT_TRUE(centres);
  EXPECT_EQ(*centres, (std::vector<double>{45, 55}));
}

TEST(Spread, NothingWhereTheyDoNotFit) {
  EXPECT_FALSE(spread({{5, 6}, {5, 6}}, 0, 10));
  EXPECT_TRUE(spread({{5, 5}, {5, 5}}, 0, 10));
}

TEST(Spread, OfAnyLabels) {
  rc::check("apart, within, in order", [] {
    const int count = *rc::gen::inRange(0, 12);
    std::vector<Span> spans;
    double whole = 0;
    for (int i = 0; i < count; ++i) {
      const auto wanted = static_cast<double>(*rc::gen::inRange(-50, 250));
      const auto size = static_cast<double>(*rc::gen::inRange(1, 30));
      spans.push_back({wanted, size});
      whole += size;
    }
    const auto centres = spread(spans, 0, 200);
    RC_ASSERT(centres.has_value() == (whole <= 200));
    if (!centres) return;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const double half = spans[i].size / 2;
      RC_ASSERT((*centres)[i] - half >= -1e-6 && (*centres)[i] + half <= 200 + 1e-6);
      for (std::size_t j = 0; j < i; ++j) {
        const double away = std::fabs((*centres)[i] - (*centres)[j]);
        RC_ASSERT(away >= half + spans[j].size / 2 - 1e-6);
        if (spans[i].wanted < spans[j].wanted) RC_ASSERT((*centres)[i] < (*centres)[j]);
      }
    }
  });
}

TEST(Rows, FirstFreeRow) {
  EXPECT_EQ(rows_of({{10, 20}, {15, 20}, {50, 20}, {16, 20}}, 2), (std::vector<int>{0, 1, 0, 2}));
}

TEST(Thinned, EarlierOnesWin) {
  EXPECT_EQ(thinned({{10, 10}, {15, 10}, {25, 10}}, 2), (std::vector<bool>{true, false, true}));
}

}  // namespace
}  // namespace lms::report
