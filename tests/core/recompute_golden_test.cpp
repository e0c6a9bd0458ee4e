// Recorded steps under plans that drop much: checks, times, unfolding and placement agree on them.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/plan_drops.h"
#include "core/plan_words.h"
#include "core/unfold.h"
#include "plan/place/placement.h"
#include "plan/plan.h"
#include "plan/timing/timing.h"
#include "trace/trace_io.h"

namespace lms::testing {
namespace {

class RecomputeGolden : public ::testing::TestWithParam<const char*> {
 protected:
  RecomputeGolden() {
    const auto folder = std::filesystem::path(__FILE__).parent_path().parent_path() / "golden";
    trace_ = load_trace((folder / GetParam()).string() + ".json.gz");
    plan_ = DropCheapResults(trace_).make();
  }
  Trace trace_;
  Plan plan_;
};

TEST_P(RecomputeGolden, ChecksTimesAndUnfoldingAgree) {
  const PlanTiming timing = time_plan(trace_, plan_, {});
  const Bytes plain = std::ranges::max(trace_.live_bytes());
  EXPECT_LT(timing.peak, plain);
  EXPECT_EQ(joined(verify_plan(trace_, plan_, timing.peak)), "");
  EXPECT_FALSE(verify_plan(trace_, plan_, timing.peak - 1).empty());

  const Unfolded unfolded = unfold(trace_, plan_);
  ASSERT_EQ(joined(unfolded.trace.validate()), "");
  EXPECT_EQ(std::ranges::max(unfolded.trace.live_bytes()), timing.peak);
  const PlanTiming again = time_plan(unfolded.trace, unfolded.plan, {});
  EXPECT_NEAR(again.step_ms, timing.step_ms, 1e-9 * timing.step_ms);
  EXPECT_EQ(verify_plan(trace_, fold(unfolded, unfolded.plan), timing.peak),
            std::vector<std::string>{});
  EXPECT_GT(unfolded.blocks.size(), trace_.blocks.size() + 100) << "much is computed again";
}

TEST_P(RecomputeGolden, EverythingHasAPlace) {
  const Bytes needed = time_plan(trace_, plan_, {}).peak;
  const Bytes room = needed + needed / 30;
  const Placement placement = place(trace_, plan_, 512, 0.05, {.room = room, .page = 2 * kMiB});
  EXPECT_EQ(joined(verify_placement(trace_, plan_, placement)), "");
  EXPECT_LE(placement.bytes, room);
}

INSTANTIATE_TEST_SUITE_P(Steps, RecomputeGolden,
                         ::testing::Values("resnet50_bf16_256x224", "googlenet_bf16_15x1120",
                                           "deeplabv3_r101_bf16_16x513",
                                           "llama1b_adamw_bf16_4x2048"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lms::testing
