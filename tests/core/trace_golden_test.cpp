#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "trace/trace_io.h"

namespace lms {
namespace {

struct Golden {
  const char* name;
  std::size_t operators;
  std::size_t blocks;
  double ms;
  double gib;
};

class TraceGolden : public ::testing::TestWithParam<Golden> {};

TEST_P(TraceGolden, Loads) {
  const Golden& golden = GetParam();
  const auto folder = std::filesystem::path(__FILE__).parent_path().parent_path() / "golden";
  const Trace trace = load_trace((folder / golden.name).string() + ".json.gz");
  EXPECT_EQ(trace.operators.size(), golden.operators);
  EXPECT_EQ(trace.blocks.size(), golden.blocks);
  const double ms =
      std::accumulate(trace.operators.begin(), trace.operators.end(), 0.0,
                      [](double sum, const TraceOperator& op) { return sum + op.ms; });
  EXPECT_NEAR(ms, golden.ms, 0.05);
  const auto live = trace.live_bytes();
  EXPECT_NEAR(static_cast<double>(std::ranges::max(live)) / static_cast<double>(kGiB), golden.gib,
              0.005);
}

INSTANTIATE_TEST_SUITE_P(
    Steps, TraceGolden,
    ::testing::Values(Golden{"resnet50_bf16_256x224", 702, 392, 55.0, 10.98},
                      Golden{"resnet50_tf32_4x2000", 582, 352, 156.4, 26.03},
                      Golden{"deeplabv3_r101_bf16_16x513", 1444, 913, 114.9, 16.40},
                      Golden{"googlenet_bf16_15x1120", 822, 360, 58.9, 10.89},
                      Golden{"llama1b_adamw_bf16_4x2048", 5602, 3067, 181.3, 35.44},
                      Golden{"recorded_unet3d_bf16_192", 937, 302, 224.96, 6.22},
                      Golden{"recorded_resnet50_bf16_256x224", 703, 392, 57.41, 10.89},
                      Golden{"recorded_llama1b_adamw_bf16_4x2048", 5238, 2891, 196.99, 35.37}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lms
