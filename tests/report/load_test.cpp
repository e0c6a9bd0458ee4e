// What is read, and what is said of what cannot be.

#include "lab/report/load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "report/support.h"

namespace lms::report {
namespace {

using nlohmann::json;

std::string problem_with(const std::string& text, bool named = true) {
  Input input;
  load_text(text, "x.json", named, input);
  EXPECT_TRUE(input.records.empty() && input.boundaries.empty() && input.steps.empty());
  return input.problems.empty() ? "" : input.problems[0].file + ": " + input.problems[0].what;
}

TEST(Load, SaysWhatIsNoRecord) {
  EXPECT_EQ(problem_with(""), "x.json: it is empty");
  EXPECT_NE(problem_with("{\"schema\": ").find("x.json: this is no JSON: "), std::string::npos);
  EXPECT_EQ(problem_with("7"), "x.json: this is no record: it is a JSON number, not an object");
  EXPECT_EQ(problem_with("{}"), "x.json: this is no record: there is no \"schema\" in it");
  EXPECT_NE(problem_with(R"({"schema":"lms-bench/9"})").find("unknown schema \"lms-bench/9\""),
            std::string::npos);
  EXPECT_NE(problem_with(R"({"schema":null})").find("unknown schema null"), std::string::npos);
  EXPECT_NE(problem_with(R"({"schema":"lms-bench/1","study":"B3","outcome":"ok"})")
                .find("no \"method\", which every record has"),
            std::string::npos);
  EXPECT_NE(problem_with(std::string(100000, '[')).find("x.json: "), std::string::npos);
  EXPECT_NE(problem_with("{\"schema\":\"\xff\"}").find("no JSON"), std::string::npos);
}

TEST(Load, OtherJsonInAFolderIsPassedOver) {
  EXPECT_EQ(problem_with("{}", false), "");
  EXPECT_EQ(problem_with("[{}, {}]", false), "");
}

TEST(Load, AFieldOfAWrongTypeIsLeftOutAlone) {
  nlohmann::json json = made_up("lms", 6000, 70);
  json["batch"] = "one";
  json["peak"] = 7;
  json["rate"]["spread"] = nullptr;
  json["timeline"] = {{"step", 1}, {"kernels", {{1, 2, 3}}}};
  const Input input = input_of({json});
  ASSERT_EQ(input.records.size(), 1U);
  EXPECT_FALSE(input.records[0].batch);
  EXPECT_EQ(input.records[0].rate(), 70);
  ASSERT_EQ(input.problems.size(), 3U);
  EXPECT_EQ(input.problems[0].what, "\"batch\" is not a number; it is left out");
  EXPECT_EQ(input.problems[1].what,
            "\"timeline.kernels\" is not a list of pairs of seconds; it is left out");
  EXPECT_EQ(input.problems[2].what, "\"peak\" is not an object; it is left out");
}

TEST(Load, LossesThatAreNotFiniteAreNull) {
  nlohmann::json json = made_up("lms", 6000, 70);
  json["losses"] = {1.5, nullptr};
  const Input input = input_of({json});
  EXPECT_TRUE(input.problems.empty());
  EXPECT_EQ(input.records.at(0).losses.size(), 2U);
}

TEST(Load, ARateFollowsFromStepsAndSamples) {
  nlohmann::json json = made_up("lms", 6000, 70);
  json.erase("rate");
  json["steps"] = {0.5, 0.7, 0.4};
  EXPECT_DOUBLE_EQ(*input_of({json}).records.at(0).rate(), 36 / 0.5);
}

TEST(Load, ARunWithoutARateIsAProblem) {
  nlohmann::json json = made_up("lms", 6000, 70);
  json.erase("rate");
  json.erase("steps");
  const Input input = input_of({json});
  EXPECT_EQ(input.records.size(), 1U);
  EXPECT_EQ(input.problems.size(), 1U);
}

TEST(Load, StepsOfThePythonBenchmark) {
  const Input input = input_of({{{"schema", 2},
                                 {"step", "net"},
                                 {"method", "lms"},
                                 {"ratio", 2.0},
                                 {"step_ms", 110},
                                 {"overhead", 0.1},
                                 {"predicted_overhead", 0.09},
                                 {"bound_overhead", nullptr},
                                 {"bound_recompute_overhead", 0.08}}});
  ASSERT_EQ(input.steps.size(), 1U);
  EXPECT_DOUBLE_EQ(*input.steps[0].seconds, 0.11);
  EXPECT_DOUBLE_EQ(*input.steps[0].bound(), 0.08);
  EXPECT_TRUE(input.problems.empty());
}

TEST(Load, FoldersOnceAndInOrder) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("lms-report-" + std::to_string(::getpid()));
  fs::create_directories(folder / "b");
  std::ofstream(folder / "b/2.json") << made_up("lms", 4000, 70).dump();
  std::ofstream(folder / "b/1.json") << made_up("plain", 3000, 80).dump();
  std::ofstream(folder / "b/notes.txt") << "no JSON";
  std::ofstream(folder / "other.json") << "{}";
  const std::string file = (folder / "b/1.json").string();
  const Input input = load({folder.string(), file, (folder / "gone.json").string()});
  fs::remove_all(folder);
  ASSERT_EQ(input.records.size(), 2U);
  EXPECT_EQ(input.records[0].method, "plain");
  EXPECT_EQ(input.passed_over.size(), 1U);
  ASSERT_EQ(input.problems.size(), 1U);
  EXPECT_EQ(input.problems[0].what, "there is no such file or folder");
}

TEST(Load, NoCapAndBadSizes) {
  json bare = made_up("lms", 6000, 70);
  bare["cap"] = 0;
  bare["limit"] = 0;
  const Input free = input_of({bare});
  EXPECT_FALSE(free.records.at(0).cap);
  EXPECT_FALSE(free.records.at(0).limit);
  EXPECT_TRUE(free.problems.empty());
  // The square root of a negative area would be no number to sort by.
  bare["sides"] = {-5, 5};
  bare["steps"] = {0.5, -0.5};
  bare["losses"] = {{"first", 1}};
  const Input bad = input_of({bare});
  EXPECT_TRUE(bad.records.at(0).sides.empty());
  EXPECT_TRUE(bad.records.at(0).steps.empty());
  EXPECT_TRUE(bad.records.at(0).losses.empty());
  EXPECT_EQ(bad.problems.size(), 3U);
}

TEST(Load, TheLongestGapsOfMany) {
  json run = made_up("lms", 6000, 70);
  json gaps = json::array();
  for (int i = 0; i < 200; ++i) gaps.push_back({{"at", i * 0.01}, {"for", 1e-5 * i}});
  run["timeline"] = {{"step", 2}, {"gaps", gaps}};
  const Timeline timeline = *input_of({run}).records.at(0).timeline;
  ASSERT_EQ(timeline.gaps.size(), 50U);
  EXPECT_DOUBLE_EQ(timeline.gaps.front().length, 199e-5);
  EXPECT_DOUBLE_EQ(timeline.gaps.back().length, 150e-5);
  for (const json& bad : {json{{"at", 1}}, json{{"at", 1}, {"for", -1}}, json(7)}) {
    run["timeline"]["gaps"] = {bad};
    const Input input = input_of({run});
    EXPECT_TRUE(input.records.at(0).timeline->gaps.empty());
    EXPECT_EQ(input.problems.size(), 1U) << bad;
  }
}

TEST(Load, AllIntervalsCountAndBackwardOnesAreAProblem) {
  json run = made_up("lms", 6000, 70);
  json kernels = json::array();
  for (int i = 0; i < 30000; ++i) kernels.push_back({i * 1e-4, i * 1e-4 + 5e-5});
  run["timeline"] = {{"step", 3}, {"kernels", kernels}};
  EXPECT_EQ(input_of({run}).records.at(0).timeline->kernels.size(), 30000U);
  run["timeline"]["kernels"] = {{2, 1}};
  EXPECT_EQ(input_of({run}).problems.size(), 1U);
}

TEST(Load, AProblemDoesNotQuoteAWholeFile) {
  EXPECT_LT(problem_with("{\"schema\": \"" + std::string(1000000, 'x')).size(), 600U);
  EXPECT_LT(problem_with("{\"schema\": \"" + std::string(1000000, 'x') + "\"}").size(), 600U);
  EXPECT_NE(problem_with(R"({"schema":4294967298,"step":"s","method":"lms"})").find("unknown"),
            std::string::npos);
}

TEST(Load, SearchesWithoutRunsAndFoldersThatCannotBeReadAreNamed) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("lms-lonely-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  json search = {{"schema", "lms-bench-boundary/1"},
                 {"study", "B3"},
                 {"series", "resolution"},
                 {"method", "lms"},
                 {"over", "side"},
                 {"largest_ok", 3000},
                 {"cap", 17179869184}};
  std::ofstream(folder / "search.json") << search.dump();
  EXPECT_EQ(load({folder.string()}).problems.at(0).what,
            "no run of this search is here; it is not shown");
  std::ofstream(folder / "run.json") << made_up("lms", 3000, 70).dump();
  EXPECT_TRUE(load({folder.string()}).problems.empty());
  fs::create_directories(folder / "closed");
  fs::permissions(folder / "closed", fs::perms::none);
  // Root reads all folders.
  const bool root = ::geteuid() == 0;
  constexpr ::uid_t kNobody = 65534;
  if (root) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const Input input = load({folder.string()});
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  fs::permissions(folder / "closed", fs::perms::owner_all);
  fs::remove_all(folder);
  EXPECT_EQ(input.records.size(), 1U);
  ASSERT_EQ(input.problems.size(), 1U);
  EXPECT_NE(input.problems[0].what.find("it cannot be read"), std::string::npos);
}

/// Every figure of the published studies, as the studies give it.
TEST(Load, ThePublishedFiguresAreThoseOfTheStudies) {
  std::map<std::string, Published> studies;
  for (const Published& each : load({}).published) studies[each.study] = each;
  const auto goal = [&](const char* study, std::size_t at, double least, double most, double aim) {
    const Goal& goal = studies.at(study).goals.at(at);
    EXPECT_DOUBLE_EQ(*goal.published_least, least) << study << at;
    EXPECT_DOUBLE_EQ(*goal.published_most, most) << study << at;
    EXPECT_DOUBLE_EQ(*goal.target, aim) << study << at;
  };
  goal("B1", 0, 0.30, 1.06, 0.12);
  goal("B2", 0, 8.35, 8.35, 9);
  goal("B2", 1, 10, 10, 12);
  goal("B3", 0, 10, 10, 8.5);
  goal("B3", 1, -0.05, -0.05, -0.15);
  goal("B4", 0, 5, 5, 4);
  goal("B4", 1, -0.14, -0.14, -0.02);
  goal("B5", 0, 10, 10, 10);
  goal("B5", 1, -0.15, -0.15, -0.08);
  EXPECT_NEAR(*studies.at("B6").goals.at(0).published_least, 15.0 / 11, 1e-4);
  EXPECT_DOUBLE_EQ(*studies.at("B6").goals.at(0).target, 4);
  EXPECT_FALSE(studies.at("B6").goals.at(1).published_least);
  EXPECT_DOUBLE_EQ(*studies.at("B6").goals.at(1).target, 0.35);
  EXPECT_FALSE(studies.at("B6").goals.at(1).judge_at) << "at the largest batch";
  EXPECT_DOUBLE_EQ(*studies.at("B1").goals.at(0).judge_at, 2);
  EXPECT_DOUBLE_EQ(*studies.at("B3").goals.at(1).judge_at, 4);
  EXPECT_DOUBLE_EQ(*studies.at("B4").goals.at(1).judge_at, 2);
  const Goal& range = studies.at("B5").goals.at(1);
  EXPECT_DOUBLE_EQ(*range.from, 1.4);
  EXPECT_DOUBLE_EQ(*range.to, 2.6);
  EXPECT_DOUBLE_EQ(*range.judge_at, 2);

  std::vector<double> overheads;
  for (const PublishedOverhead& each : studies.at("B1").overheads) overheads.push_back(each.value);
  EXPECT_EQ(overheads, (std::vector<double>{0.43, 1.06, 1.05, 0.30, 0.728, 0.91}));
  EXPECT_DOUBLE_EQ(studies.at("B2").links.at(0).value, 2.92);
  EXPECT_DOUBLE_EQ(studies.at("B2").links.at(1).value, 2.4);
  EXPECT_DOUBLE_EQ(studies.at("B6").links.at(0).value, 2.7);
  EXPECT_DOUBLE_EQ(studies.at("B6").links.at(1).value, 4.7);
  constexpr double kGib = 1073741824.0;
  EXPECT_DOUBLE_EQ(studies.at("B3").operators.at(0).bytes, 16 * kGib);
  EXPECT_DOUBLE_EQ(studies.at("B4").operators.at(0).bytes, 19 * kGib);
  const PublishedUse& use = *studies.at("B5").use;
  EXPECT_DOUBLE_EQ(use.at, 10);
  EXPECT_DOUBLE_EQ(use.link, 0.95);
  EXPECT_DOUBLE_EQ(use.link_rate, 71.4e9);
  EXPECT_DOUBLE_EQ(use.gpu, 0.64);
  EXPECT_DOUBLE_EQ(studies.at("B5").traffic.at(0).to_device, 826e9);
  EXPECT_DOUBLE_EQ(studies.at("B5").traffic.at(1).to_device, 1.4e12);
  for (const PublishedTraffic& each : studies.at("B5").traffic) EXPECT_EQ(each.batches, 5);
}

TEST(Load, ThePublishedFiguresAreBuiltIn) {
  const Input input = load({});
  ASSERT_EQ(input.published.size(), 6U);
  EXPECT_TRUE(input.problems.empty());
  for (const Published& published : input.published) {
    EXPECT_FALSE(published.hardware.empty()) << published.study;
    EXPECT_FALSE(published.goals.empty()) << published.study;
  }
  EXPECT_DOUBLE_EQ(*input.published[1].goals[0].published_least, 8.35);
  EXPECT_DOUBLE_EQ(*input.published[0].goals[0].published_most, 1.06);
}

TEST(Load, AWrongStudyAmongThePublishedIsNamed) {
  Input input;
  add(input,
      {{"schema", "lms-published/1"},
       {"studies", {{{"study", "X"}}, {{"study", "Y"}, {"goals", {{{"measure", "luck"}}}}}}}});
  EXPECT_EQ(input.published.size(), 1U);
  ASSERT_EQ(input.problems.size(), 1U);
  EXPECT_NE(input.problems[0].what.find("studies[1]"), std::string::npos);
}

}  // namespace
}  // namespace lms::report
