// What is dropped where the tier below is full.

#include <gtest/gtest.h>

#include <vector>

#include "engine_drop_fixture.h"

namespace lms::testing {
namespace {

/// With room for 15 bytes below.
class EngineDropFull : public EngineDrop {
 protected:
  void SetUp() override { hook(tight); }
  SimBlock& block(Bytes size, std::uint64_t value, bool known) {
    SimBlock& block = tight.used(size, value);
    if (known) values[&block] = value;
    return block;
  }
  World tight{40, {.host_bytes = 15}};
};

TEST_F(EngineDropFull, WhatFindsNoRoomBelowIsDropped) {
  SimBlock& a = block(10, 1, true);
  SimBlock& b = block(10, 2, true);
  ASSERT_TRUE(tight.evict(a));
  EXPECT_EQ(tight.state(a), BlockState::kAbsent) << "as long as there is room it is copied";
  ASSERT_TRUE(tight.evict(b));
  EXPECT_EQ(tight.state(b), BlockState::kDropped);
  check_consistent(tight);
  EXPECT_TRUE(tight.reads(a, 1));
  EXPECT_TRUE(tight.reads(b, 2));
  EXPECT_EQ(tight.stats().drops, 1);
  check_consistent(tight);
}

TEST_F(EngineDropFull, AnotherIsDroppedWhereTheVictimCannotBe) {
  SimBlock& a = block(10, 1, false);
  SimBlock& b = block(10, 2, false);
  SimBlock& c = block(10, 3, true);
  ASSERT_TRUE(tight.evict(a));
  // The least recently used is b, for which there is no room, and no lineage.
  ASSERT_TRUE(tight.make_room(25));
  EXPECT_EQ(tight.state(b), BlockState::kResident);
  EXPECT_EQ(tight.state(c), BlockState::kDropped);
  check_consistent(tight);
  EXPECT_THROW(tight.make_room(35), TierFull) << "nothing else can be computed again";
  EXPECT_TRUE(tight.reads(c, 3) && tight.reads(b, 2) && tight.reads(a, 1));
  check_consistent(tight);
}

TEST_F(EngineDropFull, WhatIsBelowIsDroppedForWhatCannotBe) {
  SimBlock& a = block(10, 1, true);
  SimBlock& b = block(10, 2, false);
  SimBlock& c = block(10, 3, false);
  ASSERT_TRUE(tight.evict(a));
  ASSERT_TRUE(tight.make_room(25));
  EXPECT_EQ(tight.state(a), BlockState::kDropped);
  EXPECT_NE(tight.state(b), tight.state(c)) << "one of them has left";
  EXPECT_EQ(tight.sim.host_used(), 10);
  check_consistent(tight);
  EXPECT_THROW(tight.make_room(35), TierFull) << "nothing else can be computed again";
  EXPECT_TRUE(tight.reads(a, 1) && tight.reads(b, 2) && tight.reads(c, 3));
  EXPECT_EQ(tight.stats().drops, 1);
  check_consistent(tight);
}

TEST_F(EngineDropFull, OfWhatIsBelowOneThatIsLargeEnoughGoesAndTheLeastRecentlyUsed) {
  SimBlock& small = block(3, 1, true);
  SimBlock& older = block(6, 2, true);
  SimBlock& newer = block(6, 3, true);
  SimBlock& large = block(5, 4, false);
  for (SimBlock* one : {&small, &newer, &older}) ASSERT_TRUE(tight.evict(*one));
  auto lock = tight.engine.lock();
  EXPECT_TRUE(tight.engine.make_room_below(lock, 5));
  EXPECT_EQ(small.state, BlockState::kAbsent);
  EXPECT_EQ(older.state, BlockState::kDropped);
  EXPECT_EQ(newer.state, BlockState::kAbsent);
  EXPECT_EQ(large.state, BlockState::kResident) << "what is on the device stays";
  EXPECT_TRUE(tight.engine.make_room_below(lock, 8)) << "or several";
  EXPECT_EQ(small.state, BlockState::kDropped);
  EXPECT_EQ(newer.state, BlockState::kDropped);
  EXPECT_FALSE(tight.engine.make_room_below(lock, 1)) << "there is nothing more";
}

TEST_F(EngineDropFull, WhatIsLentOrAboutToBeIsNotDropped) {
  SimBlock& known = block(10, 1, true);
  SimBlock& unknown = block(10, 2, false);
  ASSERT_TRUE(tight.evict(known));
  const std::vector<Use> uses{{&known, false}, {&unknown, false}};
  auto lock = tight.engine.lock();
  EXPECT_THROW(tight.engine.lend(lock, uses), TierFull) << "one would have to go for the other";
  EXPECT_EQ(known.state, BlockState::kAbsent);
  EXPECT_EQ(known.pins, 0);
  ASSERT_TRUE(tight.engine.lend(lock, {uses.data(), 1}));
  EXPECT_FALSE(tight.engine.make_room_below(lock, 1));
  tight.engine.give_back(lock, {uses.data(), 1});
  EXPECT_TRUE(tight.engine.make_room_below(lock, 1));
}

TEST_F(EngineDropFull, WhatIsPinnedTogetherIsNotDroppedForEachOther) {
  SimBlock& absent = block(10, 1, true);
  ASSERT_TRUE(tight.evict(absent));
  SimBlock& dropped = block(10, 2, true);
  ASSERT_TRUE(tight.drop(dropped));
  SimBlock& other = block(25, 3, false);
  during = [&](SimBlock& /*block*/) {
    auto lock = tight.engine.lock();
    EXPECT_FALSE(tight.engine.make_room_below(lock, 1));
  };
  const std::vector<Use> uses{{&dropped, false}, {&absent, false}};
  auto lock = tight.engine.lock();
  EXPECT_THROW(tight.engine.pin(lock, uses), TierFull) << "the other cannot leave";
  EXPECT_EQ(absent.pins + dropped.pins, 0);
  EXPECT_EQ(other.state, BlockState::kResident);
}

TEST_F(EngineDropFull, WhereEverythingIsToLeaveWhatIsBelowStays) {
  SimBlock& below = block(10, 1, true);
  (void)block(10, 2, false);
  ASSERT_TRUE(tight.evict(below));
  auto lock = tight.engine.lock();
  EXPECT_THROW(tight.engine.reclaim(lock, INT64_MAX), TierFull);
  EXPECT_EQ(below.state, BlockState::kAbsent);
  EXPECT_EQ(tight.engine.reclaim(lock, 10), 10) << "but for a block of its size it goes";
  EXPECT_EQ(below.state, BlockState::kDropped);
}

TEST_F(EngineDropFull, WhatIsLentFindsRoomBelowInPlaceOfWhatCanBeComputed) {
  SimBlock& below = block(10, 1, true);
  SimBlock& lent = block(10, 2, false);
  ASSERT_TRUE(tight.evict(below));
  const std::vector<Use> uses{{&lent, false}};
  {
    auto lock = tight.engine.lock();
    ASSERT_TRUE(tight.engine.lend(lock, uses));
    EXPECT_EQ(below.state, BlockState::kDropped);
    tight.engine.give_back(lock, uses);
  }
  EXPECT_TRUE(tight.reads(lent, 2) && tight.reads(below, 1));
  check_consistent(tight);
}

TEST_F(EngineDropFull, ItMayDieWhileItIsDroppedBelow) {
  SimBlock& a = block(10, 1, true);
  ASSERT_TRUE(tight.evict(a));
  dropping = [&](SimBlock& block) { tight.remove(block); };
  {
    auto lock = tight.engine.lock();
    EXPECT_TRUE(tight.engine.make_room_below(lock, 1));
  }
  EXPECT_EQ(tight.stats().blocks.current, 0);
  EXPECT_EQ(tight.stats().dropped.current, 0);
  EXPECT_EQ(tight.stats().below.current, 0);
}

}  // namespace
}  // namespace lms::testing
