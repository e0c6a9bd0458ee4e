// What is read, and what is said of what cannot be.

#include "report/load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "report/support.h"

namespace lms::report {
namespace {

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
