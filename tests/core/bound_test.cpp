#include "bound/bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "bound/in_backward.h"
#include "bound/linear_program.h"
#include "bound/lives.h"
#include "trace/trace_io.h"

namespace lms {
namespace {

// One byte a millisecond each way, and as much both ways at once.
constexpr LinkModel kLink = {.out_bytes_per_ms = 1, .in_bytes_per_ms = 1, .both_bytes_per_ms = 1};

TEST(LinearProgram, LeastValue) {
  // x + y >= 3, y <= 2, 2x + y as small as can be: x = 1, y = 2.
  LinearProgram program;
  const auto x = program.column(2, 0, kUnlimited);
  const auto y = program.column(1, 0, 2);
  program.row(3, kUnlimited, {{x, 1}, {y, 1}});
  EXPECT_NEAR(minimum(program).value(), 4, 1e-6);
}

TEST(LinearProgram, NoValues) {
  LinearProgram program;
  const auto x = program.column(1, 0, 1);
  program.row(2, kUnlimited, {{x, 1}});
  EXPECT_FALSE(minimum(program).has_value());
}

TEST(LinearProgram, SeveralAtOnce) {
  LinearProgram program;
  const auto x = program.column(1, 0, kUnlimited);
  program.row(2, kUnlimited, {{x, 1}});
  std::vector<std::thread> threads;
  std::vector<double> results(4);
  threads.reserve(results.size());
  for (double& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) result += minimum(program).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const double result : results) EXPECT_NEAR(result, 40, 1e-4);
}

// a (10) is made, idle while b (10) is made and used up, and used at the end.
//   0 make a | 1 make b | 2 use b, which dies | 3 use a
Trace idle_middle(double ms, bool again = false) {
  TraceBuilder builder;
  builder.run("make a", {}, {}, ms);
  if (again) builder.repeatable();
  const auto a = builder.result(10);
  builder.run("make b", {}, {}, ms);
  const auto b = builder.result(10);
  builder.run("use b", {b}, {}, ms);
  builder.dies(b);
  builder.run("use a", {a}, {}, ms);
  builder.dies(a);
  return builder.build();
}

TEST(Bound, StepThatFitsTakesItsOwnTime) {
  const Bound all = bound(idle_middle(2), 20, kLink);
  EXPECT_TRUE(all.feasible);
  EXPECT_EQ(all.step_ms, 8);
  EXPECT_EQ(all.overhead, 0);
  EXPECT_TRUE(bound(Trace{}, 0, kLink).feasible);
}

TEST(Bound, OperatorThatAloneNeedsMore) {
  EXPECT_FALSE(bound(idle_middle(2), 9, kLink).feasible);
  TraceBuilder builder;
  const auto w = builder.existing(4);
  builder.run("op", {w}, {}, 1, /*workspace=*/3);
  EXPECT_FALSE(bound(builder.build(), 6, kLink).feasible);
  EXPECT_TRUE(bound(builder.build(), 7, kLink).feasible);
}

// Under 14, 6 bytes of a must be out by the end of operator 1's bin and in from that of 2's on: the
// first two operators have time for 6 bytes out, the last two for 6 bytes in, if they take 3 ms.
TEST(Bound, CopiesThatHide) { EXPECT_NEAR(bound(idle_middle(3), 14, kLink).step_ms, 12, 1e-6); }

// If operators take 1 ms, they have time for 2 bytes; 4 more each way take 8 ms.
TEST(Bound, CopiesThatDoNot) {
  const Bound result = bound(idle_middle(1), 14, kLink);
  EXPECT_TRUE(result.feasible);
  EXPECT_NEAR(result.step_ms, 12, 1e-6);
  EXPECT_NEAR(result.overhead, 2, 1e-6);
  LinkModel fast_in = kLink;
  // 6 bytes in within an operator, 6 out take 4 ms more
  fast_in.in_bytes_per_ms = fast_in.both_bytes_per_ms = 6;
  EXPECT_NEAR(bound(idle_middle(1), 14, fast_in).step_ms, 8, 1e-6);
}

// Dropping 6 of 10 bytes and making them again costs 0.6 of operator 0.
TEST(Bound, RecomputeInsteadOfCopies) {
  const BoundOptions recompute = {.recompute = true};
  LinkModel slow = kLink;
  slow.out_bytes_per_ms = slow.in_bytes_per_ms = 1e-3;
  EXPECT_NEAR(bound(idle_middle(1, true), 14, slow, recompute).step_ms, 4.6, 0.01);
  // An operator that cannot be run again must be copied.
  EXPECT_NEAR(bound(idle_middle(1, false), 14, kLink, recompute).step_ms, 12, 1e-6);
  // Both, where each is cheapest: copies have time for 2 bytes, 4 are made again.
  EXPECT_NEAR(bound(idle_middle(1, true), 14, kLink, recompute).step_ms, 4.4, 1e-4);
}

// A block that is changed in place is made again by both operators.
TEST(Bound, RecomputeRunsEveryOperatorThatWrote) {
  TraceBuilder builder;
  builder.run("make", {}, {}, 1);
  builder.repeatable();
  const auto a = builder.result(10);
  builder.run("change", {a}, {a}, 3);
  builder.repeatable();
  builder.run("big", {}, {}, 1, /*workspace=*/10);
  builder.run("use", {a}, {}, 1);
  builder.dies(a);
  LinkModel slow = kLink;
  slow.out_bytes_per_ms = slow.in_bytes_per_ms = 1e-6;
  EXPECT_NEAR(bound(builder.build(), 15, slow, {.recompute = true}).step_ms, 6 + 2, 1e-3);
}

// w (10) is used by operator 0 alone, and 2 needs 10 bytes of workspace. Under 11, 9 bytes leave
// during 0, 1 and 2, and come back during 2, 3 and the next step's 0.
Trace wrapping(bool written) {
  TraceBuilder builder;
  const auto w = builder.existing(10);
  builder.run("step", {w}, written ? std::vector{w} : std::vector<TraceBlockId>{}, 1);
  builder.run("small", {}, {}, 1);
  builder.run("big", {}, {}, 1, /*workspace=*/10);
  builder.run("small", {}, {}, 1);
  return builder.build();
}

TEST(Bound, BlocksFromBeforeTheStepMayBeOutOverItsEnd) {
  LinkModel link = kLink;
  link.out_bytes_per_ms = link.in_bytes_per_ms = 3;
  // Of 18 bytes, 1 and 3 copy 3 each in 1 ms, one way; 0 and 2 the others both ways, 4.5 a ms.
  link.both_bytes_per_ms = 2.25;
  EXPECT_NEAR(bound(wrapping(true), 11, link).step_ms, 1 + 1 + 12 / 4.5, 1e-6);
  // One way at a time is faster: 18 bytes, 3 a ms.
  link.both_bytes_per_ms = 1.125;
  EXPECT_NEAR(bound(wrapping(true), 11, link).step_ms, 18.0 / 3, 1e-6);
}

TEST(Bound, WhatNobodyWritesLeavesForFree) {
  // 9 bytes in within bins 2, 3 and 0; nothing out.
  EXPECT_NEAR(bound(wrapping(false), 11, kLink).step_ms, 10, 1e-6);
  Trace fixed = wrapping(false);
  fixed.blocks[0].movable = false;
  EXPECT_FALSE(bound(fixed, 19, kLink).feasible);
  EXPECT_TRUE(bound(fixed, 20, kLink).feasible);
}

// a is idle around both of the big operators: out once, in twice.
TEST(Bound, OneCopyOutServesAllGaps) {
  TraceBuilder builder;
  builder.run("make", {}, {}, 6);
  const auto a = builder.result(6);
  builder.run("big", {}, {}, 0.001, /*workspace=*/6);
  builder.run("use", {a}, {}, 0.001);
  builder.run("big", {}, {}, 0.001, /*workspace=*/6);
  builder.run("use", {a}, {}, 0.001);
  builder.dies(a);
  // 6 bytes leave while a is made (6 ms), and come in twice.
  EXPECT_NEAR(bound(builder.build(), 6, kLink, {.bins = 100000}).step_ms, 6 + 12, 0.02);
}

// b is made in every step and used in the next, across the end of the step.
TEST(Bound, CarriedBlocksAreOneBlockInTwoSteps) {
  TraceBuilder builder;
  const auto old = builder.existing(10);
  builder.run("use", {old}, {}, 1);
  builder.dies(old);
  builder.run("small", {}, {}, 1);
  builder.run("make", {}, {}, 1);
  const auto fresh = builder.result(10);
  builder.run("big", {}, {}, 1, /*workspace=*/10);
  builder.carried(old, fresh);
  // 9 bytes leave during 2 and 3 and come back during 3 and 0: 8 of each within 3.
  EXPECT_NEAR(bound(builder.build(), 11, kLink).step_ms, 1 + 1 + 1 + 8, 1e-6);
  LinkModel link = kLink;
  link.out_bytes_per_ms = link.in_bytes_per_ms = link.both_bytes_per_ms = 4.5;
  EXPECT_NEAR(bound(builder.build(), 11, link).step_ms, 4, 1e-6);
}

TEST(Bound, ListOperatorsCountAsOneATensor) {
  TraceBuilder builder;
  std::vector<TraceBlockId> weights;
  weights.reserve(4);
  for (int i = 0; i < 4; ++i) weights.push_back(builder.existing(10));
  builder.run("aten::_foreach_add_", weights, weights, 4);
  const Trace trace = builder.build();
  const Trace split = split_lists(trace);
  ASSERT_EQ(split.operators.size(), 4U);
  EXPECT_EQ(split.operators[2].writes, std::vector{weights[2]});
  EXPECT_EQ(split.operators[2].ms, 1);
  EXPECT_TRUE(split.validate().empty());
  EXPECT_FALSE(bound(trace, 9, kLink).feasible);
  EXPECT_TRUE(bound(trace, 10, kLink).feasible);
  // As an operator like others it would need all four at once.
  Trace plain = trace;
  plain.operators[0].name = "aten::add_";
  EXPECT_FALSE(bound(plain, 39, kLink).feasible);
}

// Two weights (10 and 20 bytes), used by 0 and 1; their gradients are made by 2 (of the second) and
// 3 (of the first), which uses the second weight once more; 4 updates both.
struct Training {
  Trace trace;
  TraceBlockId w1, w2, s1, s2, g1, g2;
};

Training training(bool kept = false) {
  TraceBuilder builder;
  Training t;
  t.w1 = builder.existing(10);
  t.w2 = builder.existing(20);
  t.s1 = builder.existing(10);
  t.s2 = builder.existing(20);
  const auto old = kept ? builder.existing(20) : 0;
  builder.run("forward", {t.w1}, {}, 1);
  if (kept) builder.dies(old);
  builder.run("forward", {t.w2}, {}, 1);
  builder.run("backward", {t.w2}, {}, 1);
  t.g2 = builder.result(20);
  builder.run("backward", {t.w1, t.w2}, {}, 1);
  t.g1 = builder.result(10);
  builder.run("aten::_fused_sgd_", {t.w1, t.w2, t.g1, t.g2, t.s1, t.s2}, {t.w1, t.w2, t.s1, t.s2},
              6,
              /*workspace=*/3);
  builder.dies(t.g1);
  if (kept) {
    builder.carried(old, t.g2);
  } else {
    builder.dies(t.g2);
  }
  t.trace = builder.build();
  return t;
}

TEST(UpdatesInBackward, FollowTheLastUse) {
  const Training t = training();
  const Trace trace = with_updates_in_backward(t.trace);
  ASSERT_EQ(trace.operators.size(), 6U);
  const TraceOperator& first = trace.operators[4];
  EXPECT_EQ(first.name, "aten::_fused_sgd_");
  EXPECT_EQ(first.reads, (std::vector{t.w1, t.g1, t.s1}));
  EXPECT_EQ(first.writes, (std::vector{t.w1, t.s1}));
  EXPECT_EQ(first.frees, std::vector{t.g1});
  EXPECT_EQ(first.ms, 2);
  EXPECT_EQ(first.workspace, 3);
  // The second weight is needed by operator 3, though its gradient is final after 2.
  EXPECT_EQ(trace.operators[5].reads, (std::vector{t.w2, t.g2, t.s2}));
  EXPECT_EQ(trace.operators[5].ms, 4);

  Trace early = t.trace;
  early.operators[3].reads = {t.w1};
  EXPECT_EQ(with_updates_in_backward(early).operators[3].reads, (std::vector{t.w2, t.g2, t.s2}));
}

TEST(UpdatesInBackward, KeepNoGradients) {
  const Training t = training(/*kept=*/true);
  const Trace trace = with_updates_in_backward(t.trace);
  EXPECT_EQ(trace.blocks.size(), t.trace.blocks.size() - 1);
  EXPECT_TRUE(trace.validate().empty());
  for (const TraceBlock& block : trace.blocks) EXPECT_EQ(block.carried_from, kNoBlock);
  EXPECT_EQ(trace.live_bytes().front(), 60);
  EXPECT_EQ(t.trace.live_bytes().front(), 80);
}

TEST(UpdatesInBackward, RefusesWhatHasNone) {
  EXPECT_THROW(with_updates_in_backward(idle_middle(1)), Error);
  Trace plain = training().trace;
  plain.operators.back().name = "aten::add_";
  EXPECT_THROW(with_updates_in_backward(plain), Error);
  Training used = training(/*kept=*/true);
  used.trace.operators[0].reads.push_back(4);
  EXPECT_THROW(with_updates_in_backward(used.trace), Error);
}

TEST(Bound, RefusesImpossibleOptions) {
  EXPECT_THROW(bound(idle_middle(1), 14, kLink, {.bins = 0}), BadSetting);
  LinkModel link = kLink;
  link.in_bytes_per_ms = 0;
  EXPECT_THROW(bound(idle_middle(1), 14, link), BadSetting);
}

// Published for these steps, in percent over the step in memory; less than 0: infeasible.
struct Published {
  const char* step;
  double ratio;
  bool recompute;
  double percent;
};

class BoundTable : public ::testing::TestWithParam<Published> {};

TEST_P(BoundTable, IsReproduced) {
  const Published& entry = GetParam();
  const auto folder = std::filesystem::path(__FILE__).parent_path().parent_path() / "golden";
  const Trace trace = load_trace((folder / entry.step).string() + ".json.gz");
  const auto peak = static_cast<double>(std::ranges::max(trace.live_bytes()));
  const Bound result = bound(trace, static_cast<Bytes>(peak / entry.ratio), LinkModel{},
                             {.recompute = entry.recompute});
  EXPECT_EQ(result.feasible, entry.percent >= 0);
  if (result.feasible) {
    EXPECT_NEAR(100 * result.overhead, entry.percent, entry.recompute ? 0.5 : 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, BoundTable,
                         ::testing::Values(Published{"resnet50_bf16_256x224", 1.25, false, 45},
                                           Published{"resnet50_bf16_256x224", 2, false, 277},
                                           Published{"resnet50_bf16_256x224", 10, false, -1},
                                           Published{"resnet50_bf16_256x224", 2, true, 4.6},
                                           Published{"resnet50_bf16_256x224", 4, true, 18.4},
                                           Published{"resnet50_tf32_4x2000", 1.25, false, 32},
                                           Published{"resnet50_tf32_4x2000", 3, true, 10.7},
                                           Published{"googlenet_bf16_15x1120", 1.5, false, 134},
                                           Published{"googlenet_bf16_15x1120", 2, true, 11.1},
                                           Published{"googlenet_bf16_15x1120", 6, true, -1},
                                           Published{"deeplabv3_r101_bf16_16x513", 1.25, false, 14},
                                           Published{"deeplabv3_r101_bf16_16x513", 2, false, 173},
                                           Published{"llama1b_adamw_bf16_4x2048", 1.25, false, 38},
                                           Published{"llama1b_adamw_bf16_4x2048", 1.5, false, 89}),
                         [](const auto& info) {
                           return std::string(info.param.step) + "_at_" +
                                  std::to_string(static_cast<int>(100 * info.param.ratio)) +
                                  (info.param.recompute ? "_recompute" : "_swap");
                         });

}  // namespace
}  // namespace lms
