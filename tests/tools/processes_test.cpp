// What `lms top` reads of running processes, and what it makes of it.

#include "tools/lms/processes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace lms::tool {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// As the kernel says it, read in another way than the tool's.
std::int64_t started_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  text = text.substr(text.rfind(") ") + 2);
  for (int field = 3; field < 22; ++field) text = text.substr(text.find(' ') + 1);
  return std::stoll(text);
}

int dead_process() {
  const int child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

class Processes : public ::testing::Test {
 protected:
  Processes() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("lms-top-" + std::string(test->name()) + "-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  ~Processes() override { fs::remove_all(folder_); }

  static Json sample(int pid, std::int64_t started) {
    const Json stats = {{"limit", 12 * kGiB},          {"device.bytes.current", 11 * kGiB},
                        {"host.bytes.current", kGiB},  {"file.bytes.current", 0},
                        {"plan.predicted_us", 235100}, {"plan.steps", 40}};
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return {{"format", "lms-monitor"},
            {"version", 1},
            {"pid", pid},
            {"started", started},
            {"command", {"/usr/bin/python", "train.py", "--name", "a\x1b[2Jb"}},
            {"time", std::chrono::duration<double>(now).count()},
            {"devices",
             {{{"device", "cuda:0"},
               {"state", "planned"},
               {"stats", stats},
               {"out_per_s", 1.5 * kGiB},
               {"in_per_s", nullptr},
               {"step_ms", 245.1},
               {"steps_timed", 12}}}}};
  }
  fs::path write(const std::string& name, const std::string& text, bool old = false) {
    const fs::path path = folder_ / name;
    std::ofstream(path) << text;
    if (old) fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::minutes(1));
    return path;
  }
  [[nodiscard]] std::vector<WatchedProcess> found() const { return watched_processes({folder_}); }

  fs::path folder_;
};

TEST_F(Processes, ARunningOneIsShown) {
  const int pid = ::getpid();
  write(std::to_string(pid) + ".json", sample(pid, started_of(pid)).dump());
  const auto processes = found();
  ASSERT_EQ(processes.size(), 1U);
  EXPECT_EQ(processes[0].command, "python train.py --name a?[2Jb") << "no terminal obeys it";
  EXPECT_LT(processes[0].age_s, 60);
  const std::string text = processes_text(processes);
  EXPECT_NE(text.find("cuda:0      12.0 GiB    11.0 GiB    1.00 GiB  1.50 GiB/s             "
                      "   245.1 ms    235.1 ms  planned\n"),
            std::string::npos)
      << text;
  const Json answer = Json::parse(processes_json(processes));
  EXPECT_EQ(answer.at("format"), "lms-processes");
  const Json& device = answer.at("processes").at(0).at("devices").at(0);
  EXPECT_EQ(device.at("below"), kGiB);
  EXPECT_EQ(device.at("step_ms"), 245.1);
  EXPECT_EQ(device.at("predicted_ms"), 235.1);
  EXPECT_TRUE(device.at("in_per_s").is_null());
}

TEST_F(Processes, OneThatIsSilentSaysSo) {
  const int pid = ::getpid();
  Json silent = sample(pid, started_of(pid));
  silent["time"] = silent["time"].get<double>() - 90;
  write(std::to_string(pid) + ".json", silent.dump(), /*old=*/true);
  const std::string text = processes_text(found());
  EXPECT_NE(text.find("(silent for 9"), std::string::npos) << text;
  EXPECT_TRUE(fs::exists(folder_ / (std::to_string(pid) + ".json"))) << "it lives";
}

TEST_F(Processes, TheDeadAreIgnoredAndTheirFilesRemoved) {
  const int dead = dead_process();
  const int mine = ::getpid();
  const std::string gone = std::to_string(dead) + ".json";
  const auto half = write(std::to_string(dead) + ".json.new", "{\"pid\"", /*old=*/true);
  const auto fresh = write(gone, sample(dead, 1).dump());
  EXPECT_TRUE(found().empty());
  EXPECT_TRUE(fs::exists(fresh)) << "it may live in another container";
  EXPECT_FALSE(fs::exists(half));
  write(gone, sample(dead, 1).dump(), /*old=*/true);
  // Another process has this number now.
  const auto earlier = write(std::to_string(mine) + ".json",
                             sample(mine, started_of(mine) - 5).dump(), /*old=*/true);
  EXPECT_TRUE(found().empty());
  EXPECT_FALSE(fs::exists(fresh));
  EXPECT_FALSE(fs::exists(earlier));
}

TEST_F(Processes, WhatIsNoSampleIsLeftAlone) {
  const std::string mine = std::to_string(::getpid());
  const auto broken = write(mine + ".json", "[1, {", /*old=*/true);
  const auto other = write("notes.json", "{}", /*old=*/true);
  const auto longer = write(mine + ".json.txt", "{}", /*old=*/true);
  EXPECT_TRUE(found().empty());
  for (const auto& path : {broken, other, longer}) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_TRUE(watched_processes({folder_ / "none"}).empty());
  fs::create_directory_symlink(folder_, folder_ / "link");
  write(mine + ".json", sample(::getpid(), started_of(::getpid())).dump());
  EXPECT_TRUE(watched_processes({folder_ / "link"}).empty()) << "somebody else may have made it";
  EXPECT_NE(processes_text({}).find("LMS_MONITOR=1"), std::string::npos);
}

}  // namespace
}  // namespace lms::tool
