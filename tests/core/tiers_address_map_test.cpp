#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tiers/address_map.h"

namespace lms {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
using Stretches = std::vector<std::pair<Bytes, Bytes>>;

Stretches taken(const AddressMap& map) {
  Stretches all;
  map.for_each([&](Bytes address, Bytes size) { all.emplace_back(address, size); });
  return all;
}

Stretches overlapping(const AddressMap& map, Bytes address, Bytes size) {
  Stretches all;
  map.for_overlapping(address, size, [&](Bytes a, Bytes s) { all.emplace_back(a, s); });
  return all;
}

TEST(AddressMap, TakesTheSmallestHoleThatFitsAndTheLowestOfEquals) {
  AddressMap map(100);
  for (const Bytes address : {30, 40, 60, 70, 80}) ASSERT_TRUE(map.take_at(address, 10));
  // Holes: [0, 30), [50, 60), [90, 100).
  EXPECT_EQ(map.fit(10), 50);
  EXPECT_EQ(map.take(10), 50);
  EXPECT_EQ(map.take(5), 90);
  EXPECT_EQ(map.take(6), 0);
  EXPECT_EQ(map.take(25), std::nullopt);
  EXPECT_EQ(map.largest_hole(), 24);
  EXPECT_EQ(map.used(), 71);
  EXPECT_EQ(map.top(), 95);
  EXPECT_EQ(map.count(), 8U);
}

TEST(AddressMap, TakesAnExactPlaceOnlyIfItIsWhollyFree) {
  AddressMap map(100);
  EXPECT_TRUE(map.take_at(10, 10));
  EXPECT_FALSE(map.take_at(19, 1));
  EXPECT_FALSE(map.take_at(5, 6));
  EXPECT_FALSE(map.take_at(0, 100));
  EXPECT_FALSE(map.take_at(95, 6));
  EXPECT_FALSE(map.take_at(-1, 2));
  EXPECT_FALSE(map.take_at(100, 1));
  EXPECT_TRUE(map.take_at(20, 80));
  EXPECT_TRUE(map.take_at(0, 10));
  EXPECT_EQ(map.largest_hole(), 0);
  EXPECT_EQ(taken(map), (Stretches{{0, 10}, {10, 10}, {20, 80}}));
}

TEST(AddressMap, GivesBackAndJoinsHoles) {
  AddressMap map(30);
  for (const Bytes address : {0, 10, 20}) ASSERT_TRUE(map.take_at(address, 10));
  map.give(0);
  map.give(20);
  EXPECT_EQ(map.largest_hole(), 10);
  EXPECT_EQ(map.top(), 20);
  map.give(10);
  EXPECT_EQ(map.largest_hole(), 30);
  EXPECT_EQ(map.top(), 0);
  EXPECT_EQ(map.count(), 0U);
  EXPECT_THROW(map.give(10), Error);
  EXPECT_THROW(map.give(0), Error);
}

TEST(AddressMap, ItsCapacityFollowsButNotBelowWhatIsTaken) {
  AddressMap map;
  EXPECT_EQ(map.take(1), std::nullopt);
  EXPECT_FALSE(map.take_at(0, 1));
  map.set_capacity(10);
  EXPECT_TRUE(map.take_at(0, 10));
  map.set_capacity(30);
  EXPECT_EQ(map.largest_hole(), 20);
  EXPECT_TRUE(map.take_at(12, 4));
  EXPECT_THROW(map.set_capacity(15), Error);
  map.set_capacity(16);
  EXPECT_EQ(map.capacity(), 16);
  EXPECT_EQ(map.take(3), std::nullopt);
  EXPECT_EQ(map.take(2), 10);
}

TEST(AddressMap, RefusesSizesThatAreNone) {
  AddressMap map(10);
  EXPECT_THROW((void)map.take(0), Error);
  EXPECT_THROW((void)map.take_at(0, -1), Error);
  EXPECT_THROW((void)map.cheapest_window(0, [](Bytes, Bytes) { return 1.0; }), Error);
}

TEST(AddressMap, FindsTheCheapestWindow) {
  // 0    10   20   30   40   50   60
  // | A  |    | B  | C  |    | D  |
  AddressMap map(60);
  std::map<Bytes, double> cost{{0, 5}, {20, 3}, {30, 3}, {50, 4}};
  for (const auto& [address, unused] : cost) ASSERT_TRUE(map.take_at(address, 10));
  const auto find = [&](Bytes size) {
    return map.cheapest_window(size, [&](Bytes address, Bytes) { return cost.at(address); });
  };
  const auto expect = [&](Bytes size, Bytes address, Bytes evicted) {
    const auto window = find(size);
    ASSERT_TRUE(window);
    EXPECT_EQ(window->address, address);
    EXPECT_EQ(window->size, size);
    EXPECT_EQ(window->evicted, evicted);
  };
  expect(10, 10, 0);
  expect(20, 10, 10);  // B
  expect(30, 10, 20);  // B and C, 6, against C and D, 7
  cost[20] = kNever;
  expect(20, 30, 10);  // C
  expect(30, 30, 20);  // C and D
  EXPECT_FALSE(find(40));
  EXPECT_FALSE(find(61));
}

TEST(AddressMap, AmongEqualCostsEvictsFewerBytesThenTheLowest) {
  AddressMap map(40);
  ASSERT_TRUE(map.take_at(0, 20));
  ASSERT_TRUE(map.take_at(20, 10));
  ASSERT_TRUE(map.take_at(30, 10));
  const auto window = map.cheapest_window(8, [](Bytes, Bytes) { return 1.0; });
  ASSERT_TRUE(window);
  EXPECT_EQ(window->address, 20);
  EXPECT_EQ(window->evicted, 10);
}

/// The owner of each unit: 0 is nobody.
class Model {
 public:
  explicit Model(Bytes capacity) : units_(static_cast<std::size_t>(capacity)) {}

  [[nodiscard]] Bytes capacity() const { return static_cast<Bytes>(units_.size()); }
  void set_capacity(Bytes capacity) { units_.resize(static_cast<std::size_t>(capacity)); }
  [[nodiscard]] bool free(Bytes address, Bytes size) const {
    if (address < 0 || address + size > capacity()) return false;
    return std::all_of(units_.begin() + address, units_.begin() + address + size,
                       [](int owner) { return owner == 0; });
  }
  void take(Bytes address, Bytes size) {
    std::fill_n(units_.begin() + address, size, ++owners_);
    stretches_[address] = size;
  }
  void give(Bytes address) {
    std::fill_n(units_.begin() + address, stretches_.at(address), 0);
    stretches_.erase(address);
  }
  [[nodiscard]] Stretches holes() const {
    Stretches all;
    for (Bytes begin = 0; begin < capacity();) {
      Bytes end = begin;
      while (free(end, 1)) ++end;
      if (end > begin) all.emplace_back(begin, end - begin);
      begin = std::max(end, begin + 1);
    }
    return all;
  }
  [[nodiscard]] Bytes best_fit(Bytes size) const {
    std::pair<Bytes, Bytes> best{capacity() + 1, -1};
    for (const auto& [address, bytes] : holes()) {
      if (bytes >= size) best = std::min(best, {bytes, address});
    }
    return best.second;
  }
  [[nodiscard]] Bytes top() const {
    return stretches_.empty() ? 0 : stretches_.rbegin()->first + stretches_.rbegin()->second;
  }
  [[nodiscard]] const std::map<Bytes, Bytes>& stretches() const { return stretches_; }
  [[nodiscard]] Stretches overlapping(Bytes address, Bytes size) const {
    Stretches all;
    for (const auto& [begin, bytes] : stretches_) {
      if (begin < address + size && begin + bytes > address) all.emplace_back(begin, bytes);
    }
    return all;
  }

 private:
  std::vector<int> units_;
  std::map<Bytes, Bytes> stretches_;
  int owners_ = 0;
};

void check_same(const AddressMap& map, const Model& model) {
  RC_ASSERT(taken(map) == Stretches(model.stretches().begin(), model.stretches().end()));
  Bytes used = 0;
  for (const auto& [address, size] : model.stretches()) used += size;
  Bytes largest = 0;
  for (const auto& [address, size] : model.holes()) largest = std::max(largest, size);
  RC_ASSERT(map.used() == used);
  RC_ASSERT(map.capacity() == model.capacity());
  RC_ASSERT(map.count() == model.stretches().size());
  RC_ASSERT(map.top() == model.top());
  RC_ASSERT(map.largest_hole() == largest);
}

RC_GTEST_PROP(AddressMapProperty, AgreesWithAMapOfUnits, ()) {
  const Bytes first = *rc::gen::inRange(0, 80);
  AddressMap map(first);
  Model model(first);
  const auto steps = *rc::gen::container<std::vector<std::tuple<int, Bytes, Bytes>>>(rc::gen::tuple(
      rc::gen::inRange(0, 8), rc::gen::inRange<Bytes>(1, 24), rc::gen::inRange<Bytes>(0, 90)));
  for (const auto& [action, size, address] : steps) {
    if (action < 3) {
      const Bytes expected = model.best_fit(size);
      RC_ASSERT(map.fit(size).value_or(-1) == expected);
      RC_ASSERT(map.take(size).value_or(-1) == expected);
      if (expected >= 0) model.take(expected, size);
    } else if (action < 5) {
      const bool free = model.free(address, size);
      RC_ASSERT(map.take_at(address, size) == free);
      if (free) model.take(address, size);
    } else if (action < 7) {
      if (model.stretches().empty()) continue;
      const auto index = address % static_cast<Bytes>(model.stretches().size());
      const Bytes begin = std::next(model.stretches().begin(), index)->first;
      map.give(begin);
      model.give(begin);
    } else if (address >= model.top()) {
      map.set_capacity(address);
      model.set_capacity(address);
    } else {
      RC_ASSERT_THROWS_AS(map.set_capacity(address), Error);
    }
    check_same(map, model);
    RC_ASSERT(overlapping(map, address, size) == model.overlapping(address, size));
  }
}

RC_GTEST_PROP(AddressMapProperty, TheCheapestWindowIsTheBestOfAllWindows, ()) {
  constexpr Bytes kUnits = 60;
  AddressMap map(kUnits);
  Model model(kUnits);
  std::map<Bytes, double> cost;
  const auto stretches = *rc::gen::container<std::vector<std::tuple<Bytes, Bytes, int>>>(
      rc::gen::tuple(rc::gen::inRange<Bytes>(0, kUnits), rc::gen::inRange<Bytes>(1, 9),
                     rc::gen::inRange(0, 6)));
  for (const auto& [address, size, price] : stretches) {
    if (!map.take_at(address, size)) continue;
    model.take(address, size);
    cost[address] = price == 5 ? kNever : price;
  }
  const Bytes size = *rc::gen::inRange<Bytes>(1, 30);
  std::tuple<double, Bytes, Bytes> best{kNever, 0, 0};
  for (Bytes address = 0; address + size <= kUnits; ++address) {
    double sum = 0;
    Bytes evicted = 0;
    for (const auto& [begin, bytes] : model.overlapping(address, size)) {
      sum += cost.at(begin);
      evicted += bytes;
    }
    best = std::min(best, {sum, evicted, address});
  }
  const auto window = map.cheapest_window(size, [&](Bytes address, Bytes bytes) {
    RC_ASSERT(model.stretches().at(address) == bytes);
    return cost.at(address);
  });
  RC_ASSERT(window.has_value() == (std::get<0>(best) != kNever));
  if (!window) return;
  RC_ASSERT(window->size == size);
  RC_ASSERT(window->evicted == std::get<1>(best));
  RC_ASSERT(window->address == std::get<2>(best));
}

}  // namespace
}  // namespace lms
