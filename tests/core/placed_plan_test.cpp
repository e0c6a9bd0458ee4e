#include "plan/placed_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/error.h"
#include "core/plan_unet.h"

namespace lms {
namespace {

constexpr SearchOptions kQuick{.seconds = 0.1};

TEST(PlacedPlan, FitsTheRoomWithItsAddresses) {
  const Trace trace = testing::Unet::trace();
  const Bytes peak = std::ranges::max(trace.live_bytes());
  for (const double part : {1.0, 0.66, 0.5}) {
    const auto room = static_cast<Bytes>(part * static_cast<double>(peak));
    const PlacedPlan made = make_placed_plan(trace, {.room = room}, {}, kQuick);
    EXPECT_LE(made.placement.bytes, room);
    EXPECT_LE(made.budget, room);
    EXPECT_TRUE(verify_plan(trace, made.step.plan, made.budget).empty());
    EXPECT_TRUE(verify_placement(trace, made.step.plan, made.placement, kPlacedUnit).empty());
  }
}

TEST(PlacedPlan, MovesNothingWhereEverythingFits) {
  const Trace trace = testing::Unet::trace();
  const Bytes peak = std::ranges::max(trace.live_bytes());
  const PlacedPlan made = make_placed_plan(trace, {.room = 2 * peak}, {}, kQuick);
  EXPECT_EQ(made.step.predicted.bytes_out, 0);
}

TEST(PlacedPlan, InHasteOneThatFitsWillDo) {
  const Trace trace = testing::Unet::trace();
  const Bytes peak = std::ranges::max(trace.live_bytes());
  for (const double part : {1.0, 0.66, 0.5}) {
    const auto room = static_cast<Bytes>(part * static_cast<double>(peak));
    const SearchOptions hasty{.seconds = 0.1, .hasty = true};
    const PlacedPlan made = make_placed_plan(trace, {.room = room}, {}, hasty);
    EXPECT_LE(made.placement.bytes, room);
    EXPECT_TRUE(verify_plan(trace, made.step.plan, made.budget).empty());
    EXPECT_TRUE(verify_placement(trace, made.step.plan, made.placement, kPlacedUnit).empty());
  }
}

TEST(PlacedPlan, IsNotLookedForOnceNobodyWantsIt) {
  const Trace trace = testing::Unet::trace();
  const Bytes peak = std::ranges::max(trace.live_bytes());
  const std::atomic<bool> stop = true;
  const SearchOptions options{.seconds = 600, .stop = &stop};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW((void)make_placed_plan(trace, {.room = peak / 2}, {}, options), OutOfMemory);
  (void)make_plan(trace, peak / 2, {}, options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(PlacedPlan, SaysWhatIsTooLargeForTheRoom) {
  const Trace trace = testing::Unet::trace();
  try {
    (void)make_placed_plan(trace, {.room = 64 * kMiB}, {}, kQuick);
    FAIL() << "no operator of the network fits into so little";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("operator"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lms
