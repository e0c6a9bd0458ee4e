#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tiers/extent_map.h"

namespace lms {
namespace {

TEST(ExtentMap, TakesTheSmallestRangeThatFitsAndTheLowestOfEquals) {
  ExtentMap map;
  map.put(0, 30);
  map.put(100, 10);
  map.put(200, 20);
  map.put(300, 10);
  EXPECT_EQ(map.take(10), 100);
  EXPECT_EQ(map.take(10), 300);
  EXPECT_EQ(map.take(5), 200);
  EXPECT_EQ(map.take(15), 205);
  EXPECT_EQ(map.take(31), std::nullopt);
  EXPECT_EQ(map.take(30), 0);
  EXPECT_EQ(map.free_bytes(), 0);
  EXPECT_EQ(map.largest(), 0);
}

TEST(ExtentMap, CoalescesWithBothNeighbours) {
  ExtentMap map;
  map.put(0, 10);
  map.put(20, 10);
  EXPECT_EQ(map.ranges(), 2U);
  map.put(10, 10);
  EXPECT_EQ(map.ranges(), 1U);
  EXPECT_EQ(map.largest(), 30);
  EXPECT_EQ(map.fit(30), 30);
}

TEST(ExtentMap, CutsTheTail) {
  ExtentMap map;
  map.put(0, 10);
  map.put(50, 50);
  EXPECT_EQ(map.tail(100), 50);
  EXPECT_EQ(map.tail(99), 0);
  EXPECT_EQ(map.tail(10), 10);
  map.cut_tail(100, 20);
  EXPECT_EQ(map.tail(80), 30);
  map.cut_tail(80, 30);
  EXPECT_EQ(map.tail(80), 0);
  EXPECT_EQ(map.free_bytes(), 10);
}

// The model is one flag a unit: free or not.
RC_GTEST_PROP(ExtentMapProperty, AgreesWithAMapOfUnits, ()) {
  constexpr Bytes kUnits = 64;
  std::vector<bool> free(kUnits, true);
  ExtentMap map;
  map.put(0, kUnits);
  std::vector<std::pair<Bytes, Bytes>> taken;
  const auto operations = *rc::gen::container<std::vector<std::pair<bool, int>>>(
      rc::gen::pair(rc::gen::arbitrary<bool>(), rc::gen::inRange(1, 24)));
  for (const auto& [take, number] : operations) {
    if (take) {
      // The smallest run of free units that holds `number`, the lowest of equals.
      Bytes best = -1;
      Bytes best_size = kUnits + 1;
      for (Bytes begin = 0; begin < kUnits;) {
        Bytes end = begin;
        while (end < kUnits && free[static_cast<std::size_t>(end)]) ++end;
        if (end - begin >= number && end - begin < best_size) {
          best = begin;
          best_size = end - begin;
        }
        begin = std::max(end, begin + 1);
      }
      const auto got = map.take(number);
      RC_ASSERT(got.value_or(-1) == best);
      if (got) {
        std::fill_n(free.begin() + *got, number, false);
        taken.emplace_back(*got, number);
      }
    } else if (!taken.empty()) {
      const auto which = taken.begin() + number % static_cast<int>(taken.size());
      std::fill_n(free.begin() + which->first, which->second, true);
      map.put(which->first, which->second);
      taken.erase(which);
    }
    RC_ASSERT(map.free_bytes() == std::count(free.begin(), free.end(), true));
  }
}

}  // namespace
}  // namespace lms
