#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/plan_maker.h"
#include "core/plan_random.h"
#include "core/plan_words.h"
#include "placement_random.h"
#include "plan/place/live_ranges.h"
#include "plan/place/placement.h"
#include "plan/place/scatter.h"
#include "plan/search.h"
#include "trace/trace_io.h"

namespace lms {
namespace {

using testing::joined;
using testing::kAmple;

/// Three blocks whose ends leave two holes of one page each when a fourth of two pages comes.
struct TwoHoles {
  TwoHoles() {
    TraceBuilder builder;
    builder.run("make", {}, {}, 1);
    const auto a = builder.result(4);
    const auto b = builder.result(4);
    const auto c = builder.result(4);
    builder.run("use a, c", {a, b, c}, {}, 1);
    builder.dies(a);
    builder.dies(c);
    builder.run("make d", {b}, {}, 1);
    const auto d = builder.result(8);
    builder.run("use b, d", {b, d}, {}, 1);
    trace = builder.build();
  }
  Trace trace;
};

TEST(Scatter, NothingIsScatteredThatFitsInOnePiece) {
  const TwoHoles step;
  const Placement placement = place(step.trace, {}, 1, 0.05, {.room = 12, .page = 4});
  EXPECT_EQ(joined(verify_placement(step.trace, {}, placement, 1)), "");
  EXPECT_EQ(placement.bytes, 12);
  EXPECT_TRUE(placement.scattered.empty());
}

/// `e` comes while the first half is full, and stays until the end; what goes round comes back to
/// the only pages that are free then.
TEST(Scatter, WhatComesBackLetsOthersStayAndMovesWhenTheStepHasEnded) {
  TraceBuilder builder;
  const auto w = builder.existing(8);
  builder.run("use w", {w}, {}, 1);
  builder.run("make a", {}, {}, 1);
  const auto a = builder.result(8);
  builder.run("make g", {a}, {}, 1);
  const auto g = builder.result(8);
  builder.run("use a", {a, g}, {}, 1);
  builder.dies(a);
  builder.run("use w, g", {w, g}, {}, 1);
  builder.dies(g);
  builder.run("rest", {w}, {}, 1);
  const Trace trace = builder.build();
  // Away while `a` and `g` are there together.
  Plan plan;
  plan.directives = {
      {1, Action::kStartOut, w}, {2, Action::kFinishOut, w}, {4, Action::kStartIn, w}};
  ASSERT_EQ(joined(verify_plan(trace, plan, 16)), "");
  const Placement placement = place(trace, plan, 1, 0.05, {.room = 16, .page = 4});
  EXPECT_EQ(joined(verify_placement(trace, plan, placement, 1)), "");
  EXPECT_LE(placement.bytes, 16);
}

TEST(Scatter, TheVerifierChecksPages) {
  const TwoHoles step;
  // By hand: d in the holes of a and c.
  Placement placement;
  placement.allocations = {{0, 4, 8}, {}, {kScattered}, {}};
  placement.page = 4;
  placement.scattered = {{0, 2}};
  placement.bytes = placement.lower_bound = 12;
  EXPECT_EQ(joined(verify_placement(step.trace, {}, placement, 1)), "");
  const auto wrong = [&](const std::vector<std::uint32_t>& pages) {
    Placement bad = placement;
    bad.scattered = {pages};
    return joined(verify_placement(step.trace, {}, bad, 1));
  };
  EXPECT_NE(wrong({0, 1}).find("overlaps block 1"), std::string::npos);
  EXPECT_NE(wrong({0, 3}).find("beyond the end"), std::string::npos);
  EXPECT_NE(wrong({0}).find("other pages"), std::string::npos);
  EXPECT_NE(wrong({0, 0}).find("overlaps block 3"), std::string::npos);
  Placement bad = placement;
  bad.scattered.clear();
  EXPECT_NE(joined(verify_placement(step.trace, {}, bad, 1)).find("other pages"),
            std::string::npos);
}

TEST(Scatter, TheVerifierChecksMoves) {
  TraceBuilder builder;
  const auto w = builder.existing(4);
  const auto x = builder.existing(4);
  builder.run("a", {w}, {}, 1);
  builder.run("b", {w}, {}, 1);
  builder.run("c", {x}, {}, 1);
  const Trace trace = builder.build();
  Plan plan;
  plan.directives = {
      {1, Action::kStartOut, w}, {1, Action::kFinishOut, w}, {1, Action::kStartIn, w}};
  ASSERT_EQ(joined(verify_plan(trace, plan, kAmple)), "");
  Placement placement;
  placement.allocations = {{}, {}, {}};
  placement.arrivals = {kNoAddress, kNoAddress, 8};
  placement.remakes.resize(3);
  placement.at_start = {{w, 0}, {x, 4}};
  placement.bytes = 12;
  placement.lower_bound = 8;
  EXPECT_NE(joined(verify_placement(trace, plan, placement, 1)).find("is at 8"), std::string::npos);
  placement.moved = {w};
  EXPECT_EQ(joined(verify_placement(trace, plan, placement, 1)), "");
  placement.at_start = {{w, 0}, {x, 2}};
  EXPECT_NE(joined(verify_placement(trace, plan, placement, 1)).find("overlaps"),
            std::string::npos);
}

/// What is wrong with the order of moves at moment 0: each must find its pages left.
std::string stuck_moves(const std::vector<Rectangle>& rectangles, std::int32_t period,
                        const Scattering& found) {
  std::map<std::uint32_t, std::size_t> owners;
  std::size_t moving = 0;
  for (std::size_t i = 0; i < rectangles.size(); ++i) {
    const bool goes_round =
        rectangles[i].begin == 0 || rectangles[i].begin + rectangles[i].length > period;
    if (!goes_round || rectangles[i].length == 0) continue;
    const auto& before = found.before_moving[i];
    moving += before.empty() ? 0 : 1;
    for (const auto page : before.empty() ? found.pages[i] : before) owners[page] = i;
  }
  if (found.order.size() != moving) return "not all are moved\n";
  std::string text;
  for (const std::uint32_t i : found.order) {
    for (const auto page : found.pages[i]) {
      if (!owners.try_emplace(page, i).second) text += std::to_string(i) + " has to wait\n";
    }
    for (const auto page : found.before_moving[i]) owners.erase(page);
  }
  return text;
}

/// Which rectangle has each page at each moment of a period; "" if none is given twice.
std::string conflicts(const std::vector<Rectangle>& rectangles, std::int32_t period,
                      const Scattering& found, Bytes page) {
  std::string text;
  std::map<std::pair<std::int32_t, Bytes>, std::size_t> owners;
  const auto hold = [&](std::size_t i, std::int32_t moment, Bytes number) {
    const auto [at, fresh] = owners.try_emplace({moment % period, number}, i);
    if (fresh) return;
    text += std::to_string(i) + " and " + std::to_string(at->second) + " at moment " +
            std::to_string(moment % period) + "\n";
  };
  for (std::size_t i = 0; i < rectangles.size(); ++i) {
    const Rectangle& each = rectangles[i];
    const std::int32_t end = each.begin + each.length;
    const auto& before = found.before_moving[i];
    for (std::int32_t moment = each.begin; moment < end; ++moment) {
      const bool late = !before.empty() && moment < period;
      for (const auto number : late ? before : found.pages[i]) hold(i, moment, number);
      if (!found.pages[i].empty() || each.length == 0) continue;
      for (Bytes n = each.address / page; n * page < each.address + each.size; ++n) {
        // Two in one piece may share a page; their addresses are the packing's affair.
        owners.try_emplace({moment % period, n}, i);
      }
    }
    const auto needed = static_cast<std::size_t>((each.size + page - 1) / page);
    if (!found.pages[i].empty() && found.pages[i].size() != needed) text += "other count\n";
    if (!before.empty() && before.size() != needed) text += "other count before\n";
  }
  return text;
}

RC_GTEST_PROP(ScatterProperty, NoPageIsGivenTwice, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int32_t n) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(n));
  };
  constexpr Bytes kPage = 4;
  const std::int32_t period = 2 + below(40);
  std::vector<Rectangle> rectangles;
  std::vector<bool> whole;
  for (std::int32_t n = 1 + below(40); n > 0; --n) {
    rectangles.push_back({below(period), below(period + 1), kPage * (1 + below(6)), 0});
    whole.push_back(below(10) == 0);
  }
  const Bytes most = most_at_once(rectangles, period);
  const Bytes room = most + kPage * below(6);
  const auto found = scatter(rectangles, whole, period, room, kPage);
  RC_CLASSIFY(!found.has_value(), "does not fit");
  if (!found) return;
  const auto moves =
      std::ranges::count_if(found->before_moving, [](const auto& p) { return !p.empty(); });
  RC_CLASSIFY(moves > 0, "some move");
  const auto waits = [&](std::uint32_t i) {
    return std::ranges::any_of(found->order, [&](std::uint32_t other) {
      return std::ranges::any_of(found->before_moving[other], [&](std::uint32_t page) {
        return std::ranges::find(found->pages[i], page) != found->pages[i].end();
      });
    });
  };
  RC_CLASSIFY(std::ranges::any_of(found->order, waits), "some wait for another");
  RC_ASSERT(conflicts(rectangles, period, *found, kPage) == "");
  RC_ASSERT(stuck_moves(rectangles, period, *found) == "");
  for (const auto* lists : {&found->pages, &found->before_moving}) {
    for (const auto& pages : *lists) {
      if (!pages.empty()) RC_ASSERT((pages.back() + 1) * kPage <= room);
    }
  }
}

/// Steps recorded on a GPU fit into little more than what they need at once.
TEST(Scatter, RealStepsWasteNextToNothing) {
  const auto folder = std::filesystem::path(__FILE__).parent_path().parent_path() / "golden";
  struct Case {
    const char* name;
    Bytes budget;
    double waste;
  };
  for (const auto& [name, budget, waste] :
       {Case{"recorded_llama1b_adamw_bf16_4x2048", 28400 * kMiB, 0.005},
        Case{"recorded_unet3d_bf16_192", 2048 * kMiB, 0.025},
        Case{"recorded_resnet50_bf16_256x224", 5500 * kMiB, 0.02}}) {
    const Trace trace = load_trace((folder / name).string() + ".json.gz");
    const PlannedStep step = make_plan(trace, budget, {}, {.rounds = 0});
    const auto room = static_cast<Bytes>(static_cast<double>(budget) * (1 + waste));
    const Placement placement =
        place(trace, step.plan, 512, 0.05, {.room = room, .page = 2 * kMiB});
    EXPECT_EQ(joined(verify_placement(trace, step.plan, placement)), "") << name;
    EXPECT_LE(placement.bytes, room) << name;
    EXPECT_FALSE(placement.scattered.empty()) << name;
  }
}

/// A random step, a plan for it, and pages to put it on.
struct RandomStep {
  explicit RandomStep(std::uint64_t seed, bool again = false) : random(seed) {
    if (again) {
      trace = testing::random_trace({.operators = 9, .repeatable = 95, .writes = 5, .dies = 20});
      random.give_temporaries(trace);
      plan = testing::PlanMaker(trace).make();
      RC_PRE(verify_plan(trace, plan, kAmple).empty());
    } else {
      trace = random.trace();
      plan = random.plan(trace);
    }
    RC_ASSERT(joined(verify_plan(trace, plan, kAmple)).empty());
    page = Bytes{1} << random.below(4);
  }
  RandomPlan random;
  Trace trace;
  Plan plan;
  Bytes page = 0;
};

/// The same of whole steps, also where one piece each would have done.
void check_scattered(RandomStep& step) {
  auto& [random, trace, plan, page] = step;
  LiveRanges ranges(trace, plan, 1);
  const Bytes room =
      ranges.most_at_once() + random.below(static_cast<int>(ranges.most_at_once()) + 8);
  std::vector<Rectangle> apart = ranges.rectangles();
  const auto found = scatter(apart, ranges.whole(), ranges.period(), room, page);
  RC_CLASSIFY(!found.has_value(), "does not fit");
  if (!found) return;
  ranges.rectangles() = std::move(apart);
  const Placement placement = ranges.placement(*found, page);
  RC_CLASSIFY(!placement.scattered.empty(), "scattered");
  RC_CLASSIFY(!placement.moved.empty(), "moved between steps");
  RC_CLASSIFY(!placement.taking_turns.empty(), "blocks take turns");
  RC_ASSERT(joined(verify_placement(trace, plan, placement, 1)) == "");
  RC_ASSERT(placement.bytes <= room);
}

RC_GTEST_PROP(ScatterProperty, EveryScatteredPlacementHolds, (std::uint64_t seed)) {
  RandomStep step(seed);
  check_scattered(step);
}

RC_GTEST_PROP(ScatterProperty, EveryScatteredPlacementOfRecomputingPlansHolds,
              (std::uint64_t seed)) {
  RandomStep step(seed, true);
  const auto again =
      std::ranges::count(step.plan.directives, Action::kRematerialise, &Directive::action);
  RC_CLASSIFY(again > 0, "computes again");
  check_scattered(step);
}

RC_GTEST_PROP(ScatterProperty, EveryPlacementHolds, (std::uint64_t seed)) {
  RandomStep step(seed);
  auto& [random, trace, plan, page] = step;
  const Placement tight = place(trace, plan, 1, 0.001);
  // Between what is needed at least, and what it takes in one piece each.
  const Bytes waste = tight.bytes - tight.lower_bound;
  const Bytes room =
      tight.lower_bound + (waste > 0 ? random.below(static_cast<int>(waste) + 1) : 0);
  const Placement placement = place(trace, plan, 1, 0.001, {.room = room, .page = page});
  RC_ASSERT(joined(verify_placement(trace, plan, placement, 1)) == "");
  RC_ASSERT(placement.scattered.empty() || placement.bytes <= room);
  RC_CLASSIFY(!placement.scattered.empty(), "scattered");
  RC_CLASSIFY(!placement.moved.empty(), "moved between steps");
  RC_CLASSIFY(placement.bytes > room, "does not fit");
}

}  // namespace
}  // namespace lms
