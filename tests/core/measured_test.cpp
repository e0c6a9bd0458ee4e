#include "plan/timing/measured.h"

#include <gtest/gtest.h>

#include <vector>

namespace lms {
namespace {

constexpr Bytes kCopy = 16 * kMiB;
constexpr LinkModel kDefault;

/// Copies of one lane that follow each other, each at `gb_per_s` after the latency.
void add(std::vector<MeasuredCopy>& copies, bool out, int count, double begin_ms, double gb_per_s,
         Bytes bytes = kCopy) {
  for (int i = 0; i < count; ++i) {
    const double ms = kDefault.latency_ms + static_cast<double>(bytes) / (gb_per_s * 1e6);
    copies.push_back({1, bytes, out, begin_ms, begin_ms + ms});
    begin_ms += ms;
  }
}

TEST(MeasuredLink, RatesOfEachLaneAlone) {
  std::vector<MeasuredCopy> copies;
  add(copies, true, 4, 0, 25);
  add(copies, false, 4, 100, 20);
  const LinkModel link = measured_link(copies);
  EXPECT_NEAR(link.out_bytes_per_ms, 25e6, 1);
  EXPECT_NEAR(link.in_bytes_per_ms, 20e6, 1);
  EXPECT_NEAR(link.both_bytes_per_ms, 20e6 * 50.9 / 55.5, 1) << "not seen: the ratio stays";
  EXPECT_EQ(link.latency_ms, kDefault.latency_ms);
  EXPECT_EQ(link.out_tax_ms_per_byte, kDefault.out_tax_ms_per_byte);
  EXPECT_EQ(link.in_tax_ms_per_byte, kDefault.in_tax_ms_per_byte);
}

TEST(MeasuredLink, TheRateOfBothAtOnceIsThatOfCopiesBesideEachOther) {
  std::vector<MeasuredCopy> copies;
  add(copies, true, 8, 0, 40);
  add(copies, false, 8, 0.01, 40);
  add(copies, true, 4, 100, 50);
  const LinkModel link = measured_link(copies);
  EXPECT_NEAR(link.both_bytes_per_ms, 40e6, 1);
  EXPECT_NEAR(link.out_bytes_per_ms, 50e6, 1);
  EXPECT_EQ(link.in_bytes_per_ms, kDefault.in_bytes_per_ms) << "never seen alone";
}

TEST(MeasuredLink, BothAtOnceAreNoFasterEachThanTheSlowerAlone) {
  std::vector<MeasuredCopy> copies;
  add(copies, true, 8, 0, 40);
  add(copies, false, 8, 0.01, 40);
  add(copies, false, 4, 100, 30);
  EXPECT_NEAR(measured_link(copies).both_bytes_per_ms, 30e6, 1);
}

TEST(MeasuredLink, CopiesHalfBesideOthersSayNothing) {
  std::vector<MeasuredCopy> copies;
  for (int i = 0; i < 8; ++i) {
    add(copies, true, 1, 10.0 * i, 10);
    add(copies, false, 1, 10.0 * i + 0.8, 10);
  }
  const LinkModel link = measured_link(copies);
  EXPECT_EQ(link.out_bytes_per_ms, kDefault.out_bytes_per_ms);
  EXPECT_EQ(link.in_bytes_per_ms, kDefault.in_bytes_per_ms);
  EXPECT_EQ(link.both_bytes_per_ms, kDefault.both_bytes_per_ms);
}

TEST(MeasuredLink, TooLittleEvidenceChangesNothing) {
  std::vector<MeasuredCopy> copies;
  add(copies, true, 3, 0, 25);                     // 48 MiB
  add(copies, false, 1000, 100, 25, kMiB);         // all too small
  copies.push_back({1, 512 * kMiB, false, 5, 5});  // took no time
  const LinkModel link = measured_link(copies);
  EXPECT_EQ(link.out_bytes_per_ms, kDefault.out_bytes_per_ms);
  EXPECT_EQ(link.in_bytes_per_ms, kDefault.in_bytes_per_ms);
  EXPECT_EQ(measured_link({}).both_bytes_per_ms, kDefault.both_bytes_per_ms);
}

TEST(MeasuredLink, AFewCopiesThatWereHeldUpDoNotCount) {
  std::vector<MeasuredCopy> copies;
  add(copies, true, 3, 0, 2);
  add(copies, true, 4, 100, 54);
  EXPECT_NEAR(measured_link(copies).out_bytes_per_ms, 54e6, 1);
}

TEST(MeasuredLink, WhatIsNoLinkIsLeftOut) {
  std::vector<MeasuredCopy> copies;
  add(copies, true, 8, 0, 5000);
  add(copies, false, 8, 1000, 0.1);
  const LinkModel link = measured_link(copies);
  EXPECT_EQ(link.out_bytes_per_ms, kDefault.out_bytes_per_ms);
  EXPECT_EQ(link.in_bytes_per_ms, kDefault.in_bytes_per_ms);
}

TEST(MeasuredLink, KeepsWhatItKnewWhereNothingNewIsSeen) {
  LinkModel known;
  known.in_bytes_per_ms = 12e6;
  known.both_bytes_per_ms = 11e6;
  std::vector<MeasuredCopy> copies;
  add(copies, true, 8, 0, 13);
  const LinkModel link = measured_link(copies, known);
  EXPECT_NEAR(link.out_bytes_per_ms, 13e6, 1);
  EXPECT_EQ(link.in_bytes_per_ms, 12e6);
  EXPECT_EQ(link.both_bytes_per_ms, 11e6);
}

}  // namespace
}  // namespace lms
