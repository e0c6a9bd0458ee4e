#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/placement_random.h"
#include "plan/plan_io.h"

namespace lms {

/// A folder of the running test's own, which goes with it.
class TestFolder {
 public:
  TestFolder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("lms-" + std::string(test->test_suite_name()) + "-" + test->name() + "-" +
               std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~TestFolder() { std::filesystem::remove_all(folder_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  TestFolder(TestFolder&&) = delete;
  TestFolder& operator=(TestFolder&&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

 private:
  std::filesystem::path folder_;
};

/// A step in which b leaves and comes back, and a is dropped and made again.
inline Trace step_to_save() {
  TraceBuilder builder;
  builder.run("make a", {}, {}, 1, /*workspace=*/700);
  builder.repeatable();
  const auto a = builder.result(3000);
  builder.temporary(700, 1, 2);
  builder.run("make b", {}, {}, 1.0 / 3);
  const auto b = builder.result(1000);
  builder.run("big", {}, {}, 1, /*workspace=*/4000);
  builder.run("use", {a, b}, {}, 1);
  builder.dies(a);
  builder.dies(b);
  return builder.build();
}

inline SavedPlan plan_to_save(const std::string& key = "0123abcd", Bytes room = 10 * kKiB) {
  const Trace trace = step_to_save();
  SavedPlan saved = {.key = key, .room = room, .page = 512, .link = {}, .made = {}};
  saved.made.budget = 6000;
  saved.made.step.plan.directives = {{2, Action::kStartOut, 1},
                                     {2, Action::kFinishOut, 1},
                                     {2, Action::kDrop, 0},
                                     {3, Action::kStartIn, 1},
                                     {3, Action::kRematerialise, 0}};
  saved.made.step.predicted = time_plan(trace, saved.made.step.plan, saved.link);
  saved.made.placement = place(trace, saved.made.step.plan, kPlacedUnit, 0, {});
  return saved;
}

/// A random step whose blocks are of up to some tens of KiB.
inline Trace random_step_to_save(RandomPlan& random) {
  constexpr Bytes kFactor = 700;
  Trace trace = random.trace();
  for (TraceBlock& block : trace.blocks) block.bytes *= kFactor;
  for (TraceOperator& op : trace.operators) {
    op.workspace *= kFactor;
    for (TraceTemporary& temporary : op.temporaries) temporary.bytes *= kFactor;
  }
  return trace;
}

/// A random plan of `trace`, on pages where it does not fit without.
inline SavedPlan random_plan_to_save(RandomPlan& random, const Trace& trace) {
  SavedPlan saved = {.key = "random", .room = 0, .page = 512, .link = {}, .made = {}};
  saved.made.step.plan = random.plan(trace);
  saved.made.step.predicted = time_plan(trace, saved.made.step.plan, saved.link);
  saved.made.budget = saved.made.step.predicted.peak;
  const Placement whole = place(trace, saved.made.step.plan, kPlacedUnit, 0);
  saved.made.placement = place(trace, saved.made.step.plan, kPlacedUnit, 0,
                               {.room = (whole.lower_bound + whole.bytes) / 2, .page = saved.page});
  saved.room = std::max(saved.made.placement.bytes, saved.made.budget);
  return saved;
}

}  // namespace lms
