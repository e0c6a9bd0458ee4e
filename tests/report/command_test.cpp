// From arguments to files.

#include "lab/report/command.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "report/support.h"

namespace lms::report {
namespace {

namespace fs = std::filesystem;

class Command : public ::testing::Test {
 protected:
  Command() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("lms-report-" + std::string(test->name()) + "-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    err_ = std::tmpfile();
    out_ = std::tmpfile();
  }
  ~Command() override {
    std::fclose(err_);
    std::fclose(out_);
    fs::remove_all(folder_);
  }

  [[nodiscard]] fs::path path(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  [[nodiscard]] Request request() const {
    Request request;
    request.runs = {path("runs.json").string()};
    request.page = path("new/report.html").string();
    return request;
  }
  [[nodiscard]] std::string errors() const {
    std::string text(4096, '\0');
    std::rewind(err_);
    text.resize(std::fread(text.data(), 1, text.size(), err_));
    return text;
  }

  fs::path folder_;
  std::FILE* err_;
  std::FILE* out_;
};

std::string two_records() {
  return nlohmann::json::array({made_up("plain", 3000, 84), made_up("lms", 6000, 70)}).dump();
}

TEST_F(Command, WritesThePageAndPictures) {
  write("runs.json", two_records());
  Request wanted = request();
  wanted.svg = path("svg").string();
  EXPECT_TRUE(make_report(wanted, out_, err_)) << errors();
  std::ostringstream html;
  html << std::ifstream(wanted.page).rdbuf();
  EXPECT_TRUE(html.str().starts_with("<!doctype html>"));
  EXPECT_TRUE(html.str().ends_with("</html>\n"));
  EXPECT_GE(std::distance(fs::directory_iterator(wanted.svg), fs::directory_iterator()), 3);
  EXPECT_FALSE(fs::exists(wanted.page + ".partial"));
}

TEST_F(Command, WithoutARecordNothingIsWritten) {
  write("runs.json", "[]");
  EXPECT_FALSE(make_report(request(), out_, err_));
  EXPECT_NE(errors().find("runs.json: this is no record: it is a JSON array"), std::string::npos);
  EXPECT_NE(errors().find("there is no record to report on"), std::string::npos);
  EXPECT_FALSE(fs::exists(request().page));
}

TEST_F(Command, APageThatCannotBeWrittenIsAnError) {
  write("runs.json", two_records());
  write("file", "");
  Request wanted = request();
  wanted.page = path("file/report.html").string();
  EXPECT_FALSE(make_report(wanted, out_, err_));
  EXPECT_NE(errors(), "");
}

TEST_F(Command, WhatFailsLeavesNothingBehind) {
  write("runs.json", two_records());
  Request wanted = request();
  wanted.page = path("report.html").string();
  fs::create_directories(path("report.html") / "not empty");
  EXPECT_FALSE(make_report(wanted, out_, err_));
  EXPECT_NE(errors().find("report.html cannot be written: "), std::string::npos) << errors();
  EXPECT_FALSE(fs::exists(wanted.page + ".partial"));
}

TEST_F(Command, WithoutABrowserThereAreNoPngs) {
  write("runs.json", two_records());
  Request wanted = request();
  wanted.png = path("png").string();
  ::setenv("LMS_CHROMIUM", path("no-browser").c_str(), 1);
  EXPECT_FALSE(make_report(wanted, out_, err_));
  ::unsetenv("LMS_CHROMIUM");
  EXPECT_NE(errors().find("no PNG was written: there is no Chromium"), std::string::npos);
  EXPECT_TRUE(fs::exists(wanted.page));
}

TEST_F(Command, ABrowserThatFailsIsNamed) {
  write("runs.json", two_records());
  Request wanted = request();
  wanted.png = path("png").string();
  ::setenv("LMS_CHROMIUM", "/bin/false", 1);
  EXPECT_FALSE(make_report(wanted, out_, err_));
  ::unsetenv("LMS_CHROMIUM");
  EXPECT_TRUE(fs::is_empty(wanted.png));
  EXPECT_NE(errors().find("/bin/false failed, with status 1"), std::string::npos);
}

}  // namespace
}  // namespace lms::report
