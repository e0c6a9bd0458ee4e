// The program `lms`, from its arguments to what it writes.

#include "tools/lms/tool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trace/gz_file.h"
#include "trace/trace_io.h"

namespace lms::tool {
namespace {

using Json = nlohmann::json;

/// A stream whose text can be read.
class Capture {
 public:
  Capture() : file_(open_memstream(&text_, &size_)) {}
  ~Capture() {
    std::fclose(file_);
    std::free(text_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Capture(Capture&&) = delete;
  Capture& operator=(Capture&&) = delete;

  [[nodiscard]] std::FILE* file() const { return file_; }
  [[nodiscard]] std::string text() const {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

class Tool : public ::testing::Test {
 protected:
  Tool() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("lms-tool-" + std::string(test->name()) + "-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    TraceBuilder builder;
    builder.run("forward", {}, {}, 1);
    const auto x = builder.result(4 * kMiB);
    builder.run("between", {}, {}, 10, 3 * kMiB);
    builder.run("backward", {x}, {}, 2);
    builder.dies(x);
    save_trace(builder.build(), path("step.json.gz"));
  }
  ~Tool() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  int run_tool(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"lms"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    const Capture out;
    const Capture err;
    const int status = run(static_cast<int>(argv.size()), argv.data(), out.file(), err.file());
    out_ = out.text();
    err_ = err.text();
    return status;
  }
  [[nodiscard]] bool said(const std::string& part) const {
    return out_.find(part) != std::string::npos;
  }

  std::filesystem::path folder_;
  std::string out_;
  std::string err_;
};

TEST_F(Tool, PlanSaysThatItFits) {
  EXPECT_EQ(run_tool({"plan", path("step.json.gz"), "--limit", "5MiB", "--seconds", "0.1"}), kFits)
      << err_;
  EXPECT_TRUE(said("step.json.gz: 3 operators, 1 blocks")) << out_;
  EXPECT_TRUE(said("It fits into 5.00 MiB (71.4 % of the peak in memory)")) << out_;
  EXPECT_TRUE(said("4.00 MiB, for operator 0 (forward)")) << out_;
  EXPECT_TRUE(said("twice the limit")) << out_;
  EXPECT_TRUE(said("half the batch")) << out_;
  EXPECT_TRUE(said("an approximation")) << out_;
  EXPECT_TRUE(said("bound")) << out_;
  EXPECT_EQ(err_, "");
}

TEST_F(Tool, PlanSaysThatItDoesNotFit) {
  EXPECT_EQ(run_tool({"plan", path("step.json.gz"), "--limit", "40%", "--picture", path("p.svg")}),
            kDoesNotFit);
  EXPECT_TRUE(said("It does not fit into 2.80 MiB")) << out_;
  EXPECT_TRUE(said("operator 0 (forward) needs 4.00 MiB")) << out_;
  EXPECT_NE(err_.find("no plan to draw"), std::string::npos) << err_;
  EXPECT_FALSE(std::filesystem::exists(path("p.svg")));
}

TEST_F(Tool, PlanWithoutALimitIsATable) {
  EXPECT_EQ(
      run_tool({"plan", path("step.json.gz"), "--seconds", "0.1", "--json", path("answer.json")}),
      kFits)
      << err_;
  EXPECT_TRUE(said("7.00 MiB   100 %     0.0 %     13.0 ms        0 B        0 B")) << out_;
  EXPECT_TRUE(
      said("5.60 MiB    80 %     1.3 %     13.2 ms   4.00 MiB   4.00 MiB     0.00 ms     "
           "4.00 MiB"))
      << out_;
  EXPECT_TRUE(said("smallest limit        4.00 MiB (4MiB): operator 0 (forward) needs 4.00 MiB"))
      << out_;
  EXPECT_TRUE(said("up to 7.00 MiB may lie in host memory")) << out_;
  EXPECT_EQ(err_, "");
  const Json answer = Json::parse(read_gz_file(path("answer.json")));
  EXPECT_EQ(answer.at("format"), "lms-limits");
  EXPECT_EQ(answer.at("in_memory_peak"), 7 * kMiB);
  EXPECT_EQ(answer.at("least_limit"), 4 * kMiB);
  EXPECT_EQ(answer.at("least_limit_where"), "operator 0 (forward)");
  EXPECT_EQ(answer.at("smallest_limit"), 4 * kMiB);
  const Json& limits = answer.at("limits");
  ASSERT_EQ(limits.size(), 4U);
  EXPECT_EQ(limits.front().at("overhead"), 0);
  EXPECT_EQ(limits.front().at("host_bytes"), 0);
  EXPECT_EQ(limits.back().at("limit"), 4 * kMiB);
  EXPECT_EQ(limits.back().at("host_bytes"), 4 * kMiB);
}

TEST_F(Tool, ATableIsNotDrawn) {
  EXPECT_EQ(run_tool({"plan", path("step.json.gz"), "--picture", path("p.svg")}), kFailed);
  EXPECT_NE(err_.find("name it (--limit)"), std::string::npos) << err_;
  EXPECT_FALSE(std::filesystem::exists(path("p.svg")));
}

TEST_F(Tool, RatesOfTheLinkCount) {
  // 4 MiB at 1 MiB/ms both ways hide behind 10 ms; at a quarter of that they take 16 + 16 ms.
  const auto step_ms = [&](const std::string& rate) {
    EXPECT_EQ(run_tool({"plan", path("step.json.gz"), "--limit", "5MiB", "--seconds", "0.1",
                        "--out-rate", rate, "--in-rate", rate, "--json", path("answer.json")}),
              kFits);
    const Json answer = Json::parse(read_gz_file(path("answer.json")));
    return answer.at("at_limit").at("step_ms").get<double>();
  };
  EXPECT_GT(step_ms("0.262144"), 13 + 16 + 16 - 1);
  EXPECT_LT(step_ms("55"), 14);
}

TEST_F(Tool, JsonHasTheSameAnswer) {
  EXPECT_EQ(run_tool({"plan", path("step.json.gz"), "--limit", "5MiB", "--seconds", "0.1", "--json",
                      path("answer.json.gz")}),
            kFits);
  const Json answer = Json::parse(read_gz_file(path("answer.json.gz")));
  EXPECT_EQ(answer.at("format"), "lms-forecast");
  const Json& at = answer.at("at_limit");
  EXPECT_EQ(at.at("fits"), true);
  EXPECT_EQ(at.at("limit"), 5 * kMiB);
  EXPECT_EQ(at.at("in_memory_peak"), 7 * kMiB);
  EXPECT_EQ(at.at("in_memory_ms"), 13);
  EXPECT_EQ(at.at("least_limit"), 4 * kMiB);
  EXPECT_EQ(at.at("bytes_out"), 4 * kMiB);
  EXPECT_EQ(at.at("bytes_in"), 4 * kMiB);
  EXPECT_EQ(answer.at("at_twice_the_limit").at("overhead"), 0);
  EXPECT_EQ(answer.at("at_half_the_batch_approximately").at("in_memory_ms"), 6.5);
}

TEST_F(Tool, WritesTimelineAndPicture) {
  EXPECT_EQ(run_tool({"plan", path("step.json.gz"), "--limit", "5MiB", "--seconds", "0.1",
                      "--timeline", path("t.json"), "--picture", path("p.svg")}),
            kFits);
  const Json timeline = Json::parse(read_gz_file(path("t.json")));
  EXPECT_GT(timeline.at("traceEvents").size(), 8U);
  EXPECT_NE(read_gz_file(path("p.svg")).find("step.json.gz under 5.00 MiB"), std::string::npos);
}

TEST_F(Tool, TraceSummarises) {
  EXPECT_EQ(run_tool({"trace", path("step.json.gz")}), kFits);
  EXPECT_TRUE(said("3, 13.0 ms")) << out_;
  EXPECT_TRUE(said("7.00 MiB, in operator 1 (between)")) << out_;
  EXPECT_TRUE(said("10.0 ms    76.9 %   1 x     between")) << out_;
  EXPECT_TRUE(said("(workspace 3.00 MiB)")) << out_;
}

TEST_F(Tool, MistakesAreErrors) {
  EXPECT_EQ(run_tool({}), kFailed);
  EXPECT_EQ(run_tool({"plan"}), kFailed);
  EXPECT_NE(err_.find("trace is required"), std::string::npos) << err_;
  EXPECT_EQ(run_tool({"plan", path("step.json.gz"), "--limit", "much"}), kFailed);
  EXPECT_NE(err_.find("'much' is no amount of memory"), std::string::npos) << err_;
  EXPECT_EQ(run_tool({"plan", path("step.json.gz"), "--limit", "5MiB", "--in-rate", "-3"}),
            kFailed);
  EXPECT_EQ(run_tool({"trace", path("no.json")}), kFailed);
  EXPECT_NE(err_.find("no.json"), std::string::npos) << err_;
  EXPECT_EQ(run_tool({"trace", path("step.json.gz"), "more"}), kFailed);
  EXPECT_EQ(run_tool({"--version"}), kFits);
  EXPECT_EQ(out_, "lms " LMS_VERSION "\n");
  EXPECT_EQ(run_tool({"--help"}), kFits);
  EXPECT_TRUE(said("plan")) << out_;
  // Of an unknown command, or none: what there is.
  const std::vector<std::vector<std::string>> wrong = {{}, {"foo", "-h"}, {"foo"}};
  for (const std::vector<std::string>& words : wrong) {
    EXPECT_EQ(run_tool(words), kFailed);
    for (const std::string name :
         {"plan", "trace", "report", "top", "run", "doctor", "train", "eval", "predict", "bench"}) {
      EXPECT_NE(err_.find("\n  " + name + " "), std::string::npos) << err_;
    }
    EXPECT_EQ(out_, "");
  }
  EXPECT_NE(err_.find("there is no command 'foo'"), std::string::npos) << err_;
  EXPECT_EQ(run_tool({"run", "train.py"}), kFailed);
  EXPECT_NE(err_.find("python -m torch_lms run"), std::string::npos) << err_;
  EXPECT_EQ(run_tool({"--wrong"}), kFailed);
  EXPECT_NE(err_.find("--wrong"), std::string::npos) << err_;
  // There is no lms-train beside this test.
  EXPECT_EQ(run_tool({"train", "recipe.toml"}), kFailed);
  EXPECT_NE(err_.find("'train' is a command of the program lms-train"), std::string::npos) << err_;
}

}  // namespace
}  // namespace lms::tool
