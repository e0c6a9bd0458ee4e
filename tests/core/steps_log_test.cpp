// The log itself: what it keeps, what it ignores, and what it forgets.

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "steps/known_blocks.h"
#include "steps/step_log.h"

namespace lms {
namespace {

TEST(StepsLog, KeepsWhatHappenedInOrder) {
  StepLog log;
  log.alloc(1, 100);  // before the first operator: belongs to none
  log.begin_operator(7, "first", true);
  log.touch(1, 100, false);
  log.touch(2, 30, true);  // was there, unheard of
  log.alloc(3, 5);
  log.release(3);
  log.alloc(4, 8);
  log.end_operator();
  log.release(2);
  log.alloc(5, 9);
  log.begin_operator(8, "second", false);
  log.end_operator();

  ASSERT_EQ(log.first(), 0U);
  ASSERT_EQ(log.end(), 2U);
  const LoggedOperator& op = log.at(0);
  EXPECT_EQ(op.key, 7U);
  EXPECT_EQ(log.name_of(op), "first");
  EXPECT_TRUE(op.repeatable);
  ASSERT_EQ(op.touches.size(), 2U);
  EXPECT_EQ(op.touches[0].block, 1U);
  EXPECT_FALSE(op.touches[0].writes);
  EXPECT_EQ(op.touches[1].block, 2U);
  EXPECT_TRUE(op.touches[1].writes);
  const std::vector<LoggedOperator::Change> expected{
      {3, true, true}, {3, false, true}, {4, true, true}, {2, false, false}, {5, true, false}};
  ASSERT_EQ(op.changes.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(op.changes[i].block, expected[i].block);
    EXPECT_EQ(op.changes[i].alloc, expected[i].alloc);
    EXPECT_EQ(op.changes[i].inside, expected[i].inside);
  }
  EXPECT_EQ(op.live_after, 100 + 8 + 9);
  EXPECT_EQ(log.name_of(log.at(1)), "second");
  EXPECT_FALSE(log.at(1).repeatable);
  log.set_ms(1, 2.5);
  EXPECT_EQ(log.at(1).ms, 2.5);
  EXPECT_EQ(log.bytes_of(4), 8);
  EXPECT_EQ(log.bytes_of(6), 0);
}

TEST(StepsLog, IgnoresWhatMakesNoSense) {
  StepLog log;
  log.end_operator();
  log.touch(1, 10, true);
  log.release(1);
  EXPECT_EQ(log.end(), 0U);
  log.begin_operator(1, "a", false);
  log.alloc(2, 0);
  log.touch(3, 0, false);
  log.release(9);
  log.alloc(4, 10);
  log.alloc(4, 20);
  log.release(4);
  log.release(4);
  log.touch(4, 10, false);            // has been released
  log.begin_operator(2, "b", false);  // the first has not been said to end
  log.end_operator();
  log.set_ms(7, 1);
  EXPECT_EQ(log.end(), 2U);
  EXPECT_TRUE(log.at(0).touches.empty());
  EXPECT_EQ(log.at(0).changes.size(), 2U);
  EXPECT_EQ(log.at(1).live_after, 0);
}

TEST(StepsLog, SignaturesTellWhatDiffers) {
  StepLog log;
  std::set<std::uint64_t> signatures;
  BlockUid uid = 0;
  const auto run = [&](OperatorKey key, Bytes used, bool writes, Bytes made, Bytes outside,
                       Bytes released) {
    if (outside > 0) log.alloc(++uid, outside);
    log.begin_operator(key, "op", false);
    log.touch(++uid, used, writes);
    const BlockUid last = uid;
    if (made > 0) log.alloc(++uid, made);
    log.end_operator();
    if (released > 0) log.release(last);
    log.begin_operator(99, "op", false);
    log.end_operator();
    return log.at(log.end() - 2).signature;
  };
  run(0, 1, false, 0, 0, 0);
  signatures.insert(run(1, 10, false, 0, 0, 0));
  signatures.insert(run(2, 10, false, 0, 0, 0));
  signatures.insert(run(1, 11, false, 0, 0, 0));
  signatures.insert(run(1, 10, true, 0, 0, 0));
  signatures.insert(run(1, 10, false, 5, 0, 0));
  signatures.insert(run(1, 10, false, 6, 0, 0));
  signatures.insert(run(1, 10, false, 0, 5, 0));
  signatures.insert(run(1, 10, false, 0, 0, 1));
  EXPECT_EQ(signatures.size(), 8U);
  EXPECT_TRUE(signatures.contains(run(1, 10, false, 0, 5, 0)));
}

TEST(StepsLog, ListsOfAnyLengthSurviveTillForgotten) {
  constexpr std::size_t kMost = 50;
  StepLog log(kMost);
  const auto length = [](std::uint64_t number) { return number % 7 == 0 ? 3000 : number % 90; };
  for (std::uint64_t number = 0; number < 300; ++number) {
    log.begin_operator(number, "op", false);
    for (std::uint64_t i = 0; i < length(number); ++i) log.touch(1 + i, 64, i % 3 == 0);
    for (std::uint64_t i = 0; i < length(number) / 2; ++i) {
      log.alloc(1'000'000 * number + i + 5000, 8);
    }
    for (std::uint64_t i = 0; i < length(number) / 2; ++i) {
      log.release(1'000'000 * number + i + 5000);
    }
    log.end_operator();
    ASSERT_EQ(log.end(), number + 1);
    ASSERT_EQ(log.first(), number < kMost ? 0 : number + 1 - kMost);
    if (number % 20 != 0) continue;
    for (std::uint64_t old = log.first(); old < log.end(); ++old) {
      const auto& op = log.at(old);
      ASSERT_EQ(op.key, old);
      ASSERT_EQ(op.touches.size(), length(old));
      for (std::uint64_t i = 0; i < length(old); ++i) {
        ASSERT_EQ(op.touches[i].block, 1 + i);
        ASSERT_EQ(op.touches[i].writes, i % 3 == 0);
        ASSERT_EQ(log.blocks()[op.touches[i].slot].uid, 1 + i);
      }
      ASSERT_EQ(op.changes.size(), length(old) / 2 * 2);
      for (const auto& change : op.changes) {
        ASSERT_EQ(log.blocks()[change.slot].uid, change.block);
        ASSERT_EQ(log.bytes_of(change.block), 8);
      }
    }
  }
  EXPECT_EQ(log.bytes_of(5000), 0);  // released, and its operator is forgotten
}

TEST(StepsLog, BlocksAreFoundAmongMany) {
  KnownBlocks blocks;
  std::vector<std::pair<BlockUid, std::uint32_t>> known;
  std::uint64_t state = 3;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    if (state >> 62U != 0 || known.empty()) {
      const BlockUid uid = i % 2 == 0 ? state >> 8U : static_cast<BlockUid>(i) * 4096;
      if (!blocks.find(uid)) known.emplace_back(uid, blocks.insert(uid, i + 1, i));
    } else {
      std::swap(known[(state >> 20U) % known.size()], known.back());
      blocks.erase(known.back().second);
      EXPECT_FALSE(blocks.find(known.back().first));
      known.pop_back();
    }
  }
  EXPECT_GT(known.size(), 5000U);
  for (const auto& [uid, slot] : known) {
    ASSERT_EQ(blocks.find(uid), slot);
    EXPECT_EQ(blocks[slot].uid, uid);
  }
}

}  // namespace
}  // namespace lms
