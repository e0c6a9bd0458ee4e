#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "base/background.h"
#include "base/bytes.h"
#include "base/counter.h"
#include "base/error.h"

namespace lms {
namespace {

TEST(Bytes, AreShownWithUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(kKiB), "1.00 KiB");
  EXPECT_EQ(format_bytes(kGiB + kGiB / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(12 * kMiB), "12.0 MiB");
  EXPECT_EQ(format_bytes(345 * kMiB), "345 MiB");
}

TEST(Bytes, FourDigitsBecomeTheNextUnit) {
  EXPECT_EQ(format_bytes(999 * kKiB), "999 KiB");
  EXPECT_EQ(format_bytes(1023 * kKiB), "1.00 MiB");
  EXPECT_EQ(format_bytes(1023 * kMiB), "1.00 GiB");
  EXPECT_EQ(format_bytes_up(1023), "1023 B");
  EXPECT_EQ(format_bytes_up(5529600), "5.28 MiB");
  EXPECT_EQ(format_bytes_up(12 * kMiB), "12.0 MiB");
  EXPECT_EQ(format_bytes_up(12 * kMiB + 1), "12.1 MiB");
  EXPECT_EQ(format_bytes_up(345 * kMiB + 1), "346 MiB");
}

TEST(Bytes, NothingIsAboveTheLargestUnit) {
  EXPECT_EQ(format_bytes(1024 * kGiB), "1.00 TiB");
  EXPECT_EQ(format_bytes(5000 * 1024 * kGiB), "5000 TiB");
}

TEST(Bytes, DifferencesMayBeNegative) {
  EXPECT_EQ(format_bytes(-17), "-17 B");
  EXPECT_EQ(format_bytes(-3 * kKiB), "-3.00 KiB");
  EXPECT_EQ(format_bytes(-1023 * kKiB), "-1.00 MiB");
}

TEST(Bytes, RoundUpToAMultiple) {
  EXPECT_EQ(round_up(0, 512), 0);
  EXPECT_EQ(round_up(1, 512), 512);
  EXPECT_EQ(round_up(512, 512), 512);
  EXPECT_EQ(round_up(513, 512), 1024);
  EXPECT_EQ(round_up(7, 1), 7);
}

TEST(Counter, FollowsRisesAndFalls) {
  Counter counter;
  counter.add(5);
  counter.add(7);
  counter.sub(10);
  counter.add(1);
  EXPECT_EQ(counter.current, 3);
  EXPECT_EQ(counter.peak, 12);
  EXPECT_EQ(counter.allocated, 13);
  EXPECT_EQ(counter.freed, 10);
  counter.reset_peak();
  EXPECT_EQ(counter.peak, 3);
  counter.add(1);
  EXPECT_EQ(counter.peak, 4);
}

TEST(Errors, AreAllOfOneFamily) {
  EXPECT_THROW(throw OutOfMemory("x"), Error);
  EXPECT_THROW(throw TierFull("x"), Error);
  EXPECT_THROW(throw BadSetting("x"), Error);
}

TEST(Background, OnlyTheCallingThreadAndThoseItStartsGiveWay) {
  const int before = getpriority(PRIO_PROCESS, 0);
  int itself = 0;
  int started = 0;
  std::thread([&] {
    run_in_background();
    itself = getpriority(PRIO_PROCESS, 0);
    std::thread([&] { started = getpriority(PRIO_PROCESS, 0); }).join();
  }).join();
  EXPECT_GT(itself, before);
  EXPECT_EQ(started, itself);
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

}  // namespace
}  // namespace lms
