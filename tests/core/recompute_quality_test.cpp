// How near plans that recompute come to what is possible, on recorded steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "plan/placed_plan.h"
#include "trace/trace_io.h"

namespace lms::testing {
namespace {

/// Batch norms run again from their saved statistics.
Trace recorded(const std::string& name) {
  const auto folder = std::filesystem::path(__FILE__).parent_path().parent_path() / "golden";
  Trace trace = load_trace((folder / name).string() + ".json.gz");
  for (TraceOperator& op : trace.operators) {
    if (op.name == "aten::native_batch_norm") op.replay_ms = op.ms / 3;
  }
  return trace;
}

Bytes part_of_peak(const Trace& trace, double ratio) {
  const auto live = trace.live_bytes();
  return static_cast<Bytes>(static_cast<double>(std::ranges::max(live)) / ratio);
}

double overhead(const Trace& trace, const PlanTiming& timing) {
  double ms = 0;
  for (const TraceOperator& op : trace.operators) ms += op.ms;
  return timing.step_ms / ms - 1;
}

double planned(const Trace& trace, double ratio, std::int64_t rounds) {
  const Bytes budget = part_of_peak(trace, ratio);
  const PlannedStep step =
      make_plan(trace, budget, {}, {.seconds = 60, .rounds = rounds, .recompute = true});
  EXPECT_EQ(verify_plan(trace, step.plan, budget), std::vector<std::string>{});
  return overhead(trace, step.predicted);
}

TEST(RecomputeQuality, ResNet50) {
  // The bounds, without copy tax and chains: 4.6 % at 2, 9 % at 3, 12 % at 4.
  const Trace trace = recorded("resnet50_bf16_256x224");
  EXPECT_LE(planned(trace, 2, 300), 0.08);
  EXPECT_LE(planned(trace, 3, 300), 0.14);
  EXPECT_LE(planned(trace, 4, 1000), 0.20);
}

TEST(RecomputeQuality, GoogLeNet) {
  // The bounds, with stock kernels: 11.1 % at 2, 18.1 % at 3.
  const Trace trace = recorded("googlenet_bf16_15x1120");
  EXPECT_LE(planned(trace, 2, 300), 0.15);
  EXPECT_LE(planned(trace, 3, 300), 0.22);
}

TEST(RecomputeQuality, Transformer) {
  // Residual sums and casts die in the forward pass. The bound at 1.5: 3.4 %.
  EXPECT_LE(planned(recorded("llama1b_adamw_bf16_4x2048"), 1.5, 60), 0.11);
}

TEST(RecomputeQuality, FewLargeCopiesRatherThanManySmallOnes) {
  // For the device they are the same; each takes some of the host's time.
  const Trace trace = recorded("deeplabv3_r101_bf16_16x513");
  const Bytes budget = part_of_peak(trace, 2);
  const PlannedStep step =
      make_plan(trace, budget, {}, {.seconds = 60, .rounds = 60, .recompute = true});
  EXPECT_LE(overhead(trace, step.predicted), 0.065);
  const auto copies = std::ranges::count_if(step.plan.directives, [](const Directive& directive) {
    return directive.action == Action::kStartOut || directive.action == Action::kStartIn;
  });
  EXPECT_LE(copies, 200) << "there were 384 when none counted";
}

TEST(RecomputeQuality, PlansThatComputeAgainArePlaced) {
  const Trace trace = recorded("resnet50_bf16_256x224");
  constexpr Bytes kPage = 2 * kMiB;
  const Bytes room = part_of_peak(trace, 3) / kPage * kPage;
  const PlacedPlan made = make_placed_plan(trace, {.room = room, .page = kPage}, {},
                                           {.seconds = 0.5, .recompute = true});
  EXPECT_LE(made.placement.bytes, room);
  EXPECT_EQ(verify_plan(trace, made.step.plan, made.budget), std::vector<std::string>{});
  EXPECT_EQ(verify_placement(trace, made.step.plan, made.placement, kPlacedUnit),
            std::vector<std::string>{});
  EXPECT_GT(made.step.predicted.recomputed_ms, 0);
  EXPECT_LE(overhead(trace, made.step.predicted), 0.3);
}

}  // namespace
}  // namespace lms::testing
