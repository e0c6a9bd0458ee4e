#include "pilot/plan_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "core/plan_saved.h"
#include "trace/gz_file.h"

namespace lms {
namespace {

namespace fs = std::filesystem;

StepShape shape_of(const Trace& trace) {
  StepShape shape = {.trace = trace, .operators = {}, .uids = {}};
  for (const TraceOperator& op : trace.operators) {
    auto& seen = shape.operators.emplace_back();
    seen.key = std::hash<std::string>()(op.name);
    for (const TraceBlockId id : op.reads) seen.touches.push_back({id, false});
    for (const TraceBlockId id : op.allocs) {
      seen.allocations.push_back({id, trace.blocks[id].bytes, true});
    }
    for (const TraceTemporary& temporary : op.temporaries) {
      seen.allocations.push_back({kNoBlock, temporary.bytes, true});
    }
  }
  shape.uids.assign(trace.blocks.size(), 1);
  return shape;
}

TEST(PlanKey, IsOfWhatTheStepDoes) {
  const StepShape shape = shape_of(step_to_save());
  const std::string key = plan_key(shape, 512, true);
  EXPECT_EQ(key.size(), 32U);
  EXPECT_EQ(key.find_first_not_of("0123456789abcdef"), std::string::npos);
  StepShape later = shape;
  later.uids[0] = 77;
  later.trace.operators[1].ms = 99;
  EXPECT_EQ(plan_key(later, 512, true), key);

  std::set<std::string> keys = {key};
  keys.insert(plan_key(shape, 1024, true));
  keys.insert(plan_key(shape, 512, false));
  const std::vector<std::function<void(StepShape&)>> changes = {
      [](StepShape& s) { s.operators[2].key += 1; },
      [](StepShape& s) { s.operators[3].touches[0].writes = true; },
      [](StepShape& s) { std::swap(s.operators[3].touches[0], s.operators[3].touches[1]); },
      [](StepShape& s) { s.operators[0].allocations[0].bytes += 1; },
      [](StepShape& s) { s.operators[0].allocations[0].inside = false; },
      [](StepShape& s) { s.operators[0].allocations[0].block = 1; },
      [](StepShape& s) { s.trace.blocks[1].bytes += 1; },
      [](StepShape& s) { s.trace.blocks[1].movable = false; },
      [](StepShape& s) { s.trace.blocks[1].carried_from = 0; },
      [](StepShape& s) { s.trace.operators[0].repeatable = false; },
      [](StepShape& s) { s.trace.operators[0].temporaries[0].end = 1; },
      [](StepShape& s) { std::swap(s.trace.operators[2].frees, s.trace.operators[3].frees); },
      [](StepShape& s) { s.trace.operators[1].spared = {1}; },
      [](StepShape& s) { s.trace.operators[2].workspace += 1; },
      [](StepShape& s) {
        s.operators.pop_back();
        s.trace.operators.pop_back();
      },
  };
  for (const auto& change : changes) {
    StepShape other = shape;
    change(other);
    keys.insert(plan_key(other, 512, true));
  }
  EXPECT_EQ(keys.size(), 3 + changes.size());
}

TEST(PlanCache, FindsWhatItHasKept) {
  const TestFolder folder;
  const Trace trace = step_to_save();
  PlanCache cache(folder.path("made/on/demand"));
  EXPECT_FALSE(cache.find("aa", trace, 10'000));
  ASSERT_TRUE(cache.keep(plan_to_save("aa", 10'000))) << cache.why();
  EXPECT_FALSE(cache.find("ab", trace, 10'000));
  EXPECT_FALSE(cache.find("a", trace, 10'000));
  const auto found = PlanCache(folder.path("made/on/demand")).find("aa", trace, 10'000);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->key, "aa");
  EXPECT_EQ(found->made.placement.allocations, plan_to_save().made.placement.allocations);
  EXPECT_EQ(cache.why(), "");
}

TEST(PlanCache, TakesThePlanThatMakesMostOfTheRoom) {
  const TestFolder folder;
  const Trace trace = step_to_save();
  PlanCache cache(folder.path("plans"));
  for (const Bytes room : {9'900, 9'950, 10'010}) cache.keep(plan_to_save("aa", room));
  EXPECT_EQ(cache.find("aa", trace, 10'000)->room, 9'950);
  EXPECT_EQ(cache.find("aa", trace, 10'010)->room, 10'010);
  EXPECT_FALSE(cache.find("aa", trace, 9'899));
  EXPECT_FALSE(cache.find("aa", trace, 11'000));
}

TEST(PlanCache, RemovesWhatIsDamagedOrDoesNotFit) {
  const TestFolder folder;
  const Trace trace = step_to_save();
  PlanCache cache(folder.path("plans"));
  cache.keep(plan_to_save("aa", 10'000));
  const std::string path = folder.path("plans/aa-10000.json.gz");
  ASSERT_TRUE(fs::exists(path));
  fs::resize_file(path, fs::file_size(path) / 2);
  EXPECT_FALSE(cache.find("aa", trace, 10'000));
  EXPECT_NE(cache.why().find("cannot"), std::string::npos) << cache.why();
  EXPECT_FALSE(fs::exists(path));

  cache.keep(plan_to_save("aa", 10'000));
  EXPECT_FALSE(cache.find("aa", Trace{}, 10'000));
  EXPECT_NE(cache.why().find("does not fit"), std::string::npos) << cache.why();
  EXPECT_FALSE(fs::exists(path));

  save_plan(plan_to_save("bb", 10'000), path);
  EXPECT_FALSE(cache.find("aa", trace, 10'000));
  EXPECT_NE(cache.why().find("another step's"), std::string::npos) << cache.why();
}

TEST(PlanCache, ForgetsTheLeastRecentlyUsed) {
  const TestFolder folder;
  const Trace trace = step_to_save();
  PlanCache(folder.path("plans")).keep(plan_to_save("aa", 10'000));
  const auto bytes = static_cast<Bytes>(fs::file_size(folder.path("plans/aa-10000.json.gz")));
  PlanCache cache(folder.path("plans"), 3 * bytes + bytes / 2);
  const auto age = [&](const std::string& name, int hours) {
    fs::last_write_time(folder.path("plans/" + name),
                        fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  age("aa-10000.json.gz", 5);
  cache.keep(plan_to_save("bb", 10'000));
  age("bb-10000.json.gz", 4);
  cache.keep(plan_to_save("cc", 10'000));
  age("cc-10000.json.gz", 3);
  EXPECT_TRUE(cache.find("aa", trace, 10'000));  // used just now
  write_gz_file(folder.path("plans/x.json.gz.1-0.tmp.gz"), "left by a writer that is no more");
  age("x.json.gz.1-0.tmp.gz", 2);
  cache.keep(plan_to_save("dd", 10'000));
  EXPECT_FALSE(fs::exists(folder.path("plans/x.json.gz.1-0.tmp.gz")));
  EXPECT_TRUE(cache.find("aa", trace, 10'000));
  EXPECT_FALSE(cache.find("bb", trace, 10'000));
  EXPECT_TRUE(cache.find("cc", trace, 10'000));
  EXPECT_TRUE(cache.find("dd", trace, 10'000));
  // One that is larger than all may be is kept, alone.
  PlanCache tiny(folder.path("plans"), 1);
  tiny.keep(plan_to_save("ee", 10'000));
  EXPECT_TRUE(tiny.find("ee", trace, 10'000));
  EXPECT_FALSE(tiny.find("aa", trace, 10'000));
}

TEST(PlanCache, FailingIsNoError) {
  const TestFolder folder;
  const Trace trace = step_to_save();
  PlanCache none("");
  EXPECT_FALSE(none.keep(plan_to_save()));
  EXPECT_FALSE(none.find("0123abcd", trace, 10 * kKiB));
  write_gz_file(folder.path("file"), "no folder");
  PlanCache cache(folder.path("file/plans"));
  EXPECT_FALSE(cache.keep(plan_to_save()));
  EXPECT_NE(cache.why().find("cannot make"), std::string::npos) << cache.why();
  EXPECT_FALSE(cache.find("0123abcd", trace, 10 * kKiB));
  // Keys are names of files, and of nothing else.
  EXPECT_FALSE(PlanCache(folder.path("plans")).keep(plan_to_save("../up")));
  EXPECT_FALSE(PlanCache(folder.path("plans")).keep(plan_to_save("")));
  EXPECT_FALSE(fs::exists(folder.path("up-10240.json.gz")));
}

TEST(PlanCache, ServesManyAtOnce) {
  const TestFolder folder;
  const Trace trace = step_to_save();
  PlanCache(folder.path("plans")).keep(plan_to_save("aa", 10'000));
  const auto bytes = static_cast<Bytes>(fs::file_size(folder.path("plans/aa-10000.json.gz")));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      PlanCache cache(folder.path("plans"), 2 * bytes + bytes / 2);
      for (std::size_t i = 0; i < 40; ++i) {
        const std::string key(2, static_cast<char>('a' + (i + t) % 3));
        cache.keep(plan_to_save(key, 10'000));
        const auto found = cache.find(key, trace, 10'000);
        // Another may just have removed it; but nobody sees one that is not whole.
        if (found ? found->key != key
                  : !cache.why().empty() && fs::exists(folder.path("plans")) &&
                        cache.why().find("open") == std::string::npos) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

TEST(PlanCache, LiesWhereCachesLie) {
  const auto set = [](const char* name, const char* value) { setenv(name, value, 1); };
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  set("XDG_CACHE_HOME", "/caches");
  EXPECT_EQ(PlanCache::default_folder(), "/caches/lms/plans");
  set("XDG_CACHE_HOME", "relative");
  set("HOME", "/home/me");
  EXPECT_EQ(PlanCache::default_folder(), "/home/me/.cache/lms/plans");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(PlanCache::default_folder(), "/home/me/.cache/lms/plans");
  unsetenv("HOME");
  EXPECT_EQ(PlanCache::default_folder(), "");
  if (home != nullptr) set("HOME", before.c_str());
}

}  // namespace
}  // namespace lms
