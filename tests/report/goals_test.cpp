// The table of goals, and the ends of methods beside what they reached.

#include "lab/report/goals.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "lab/report/page.h"
#include "lab/report/text.h"
#include "report/support.h"

namespace lms::report {
namespace {

using nlohmann::json;

/// The row of a goal: from its words to the end of the row, without markup.
std::string row_of(const std::string& html, const std::string& what) {
  const std::size_t table = html.find("<table class=\"goals");
  const std::size_t at = html.find(">" + what, table);
  if (table == std::string::npos || at == std::string::npos) return {};
  const std::string row = html.substr(at + 1, html.find("</tr>", at) - at - 1);
  return std::regex_replace(row, std::regex("<[^>]*>"), "|");
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(escape(part)) != std::string::npos;
}

const json kPlain = made_up("plain", 3100, 102);
const json kEnd = made_up("plain", 3150, 0, "oom");

json refused(double side, double needs, double least) {
  json run = made_up("lms", side, 0, "oom");
  run["limit"] = 17179869184;
  run["need"] = {{"operator", "aten::conv"}, {"bytes", needs}, {"least_limit", least}};
  return run;
}

TEST(Goals, EachHasARowWithPublishedTargetAndWhatWasReached) {
  const std::string html = page(input_of({kPlain, kEnd, made_up("lms", 6200, 88)}), "");
  const std::string factor = row_of(html, "the pixels that fit in memory");
  for (const char* part : {"10×", "megapixels at batch 1", "≥\u00a08.5×", "|4×|",
                           "6200², 3100² in memory, cap\u00a016\u00a0GiB",
                           "Nothing larger was tried.", "✗ not reached"}) {
    EXPECT_TRUE(holds(factor, part)) << part << " in " << factor;
  }
  const std::string rate = row_of(html, "data rate at 4×");
  for (const char* part :
       {"−5\u00a0%", "at 6000²", "≥\u00a0−15\u00a0%", "−13.7\u00a0%", "✓ reached"}) {
    EXPECT_TRUE(holds(rate, part)) << part << " in " << rate;
  }
}

TEST(Goals, LinksGoToTheChartsThatShowThem) {
  json own = made_up("lms", 6200, 88);
  own["study"] = "mine";
  const std::string html = page(input_of({kPlain, kEnd, made_up("lms", 6200, 88), own}), "");
  std::set<std::string> ids;
  const std::regex id(" id=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), id), end; at != end; ++at) {
    ids.insert((*at)[1]);
  }
  std::set<std::string> linked;
  const std::regex link("href=\"#([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), link), end; at != end; ++at) {
    EXPECT_TRUE(ids.contains((*at)[1])) << (*at)[1];
    linked.insert((*at)[1]);
  }
  EXPECT_TRUE(linked.contains("b3-resolution-resnet50-tf32-16-gib-maximum"));
  EXPECT_TRUE(linked.contains("b3-resolution-resnet50-tf32-16-gib-rate"));
  EXPECT_TRUE(linked.contains("goals"));
  EXPECT_TRUE(linked.contains("mine"));
}

TEST(Goals, AFullHostIsSaidBesideTheFactor) {
  json beyond = made_up("lms", 9050, 0, "host");
  beyond["stats"] = {{"host_limit", 107374182400}};
  const std::string html = page(input_of({kPlain, kEnd, made_up("lms", 6200, 88), beyond}), "");
  const std::string said =
      "9050² (8.52×): more than the host's memory, of which 100\u00a0GiB were allowed.";
  const std::string row = row_of(html, "the pixels that fit in memory");
  EXPECT_TRUE(holds(row, "Did not run at " + said + " What lies between is open.")) << row;
  EXPECT_TRUE(holds(html, "LMS did not run at " + said));
  EXPECT_NE(html.find(">4× · 6200², host full<"), std::string::npos);
}

TEST(Goals, AnOperatorThatIsTooLargeIsThePhysicalEnd) {
  const auto row = [](const json& beyond) {
    return row_of(page(input_of({kPlain, kEnd, made_up("lms", 6200, 88), beyond}), ""),
                  "the pixels that fit in memory");
  };
  EXPECT_TRUE(holds(row(refused(9050, 18e9, 19e9)),
                    "Did not run at 9050² (8.52×): the physical end of swapping. The operator conv "
                    "needs 16.8\u00a0GiB on the device at once, and there are 16\u00a0GiB."));
  EXPECT_TRUE(holds(row(refused(9050, 14e9, 19e9)),
                    "needs 13\u00a0GiB on the device at once, with what cannot leave meanwhile "
                    "17.7\u00a0GiB, and there are 16\u00a0GiB."));
  // It would have had room: something else was in the way.
  EXPECT_TRUE(holds(row(refused(9050, 14e9, 15e9)), "9050² (8.52×): out of device memory."));
  // Where the host is full, nothing can leave.
  json host = refused(9050, 18e9, 19e9);
  host["outcome"] = "host";
  EXPECT_FALSE(holds(row(host), "physical end"));
}

TEST(Goals, WhatDidNotRunAtAllIsNotPassedOver) {
  json plain = made_up("plain", 1160, 22);
  json more = made_up("plain", 1160, 0, "oom");
  json search = {{"schema", "lms-bench-boundary/1"},
                 {"study", "B2"},
                 {"series", "batch"},
                 {"model", "resnet50"},
                 {"method", "lms"},
                 {"cap", 17179869184},
                 {"over", "batch"},
                 {"smallest_failed", 24},
                 {"why", "host"}};
  for (json* run : {&plain, &more}) {
    (*run)["study"] = "B2";
    (*run)["series"] = "batch";
  }
  plain["batch"] = 2;
  more["batch"] = 3;
  const std::string html = page(input_of({plain, more, search}), "");
  const std::string row = row_of(html, "the batch that fits in memory");
  EXPECT_TRUE(holds(row, "Did not run at batch\u00a024 (12×): more than the host's memory."))
      << row;
  EXPECT_TRUE(holds(row, "✗ not reached")) << row;
  EXPECT_NE(html.find(">none ran; batch\u00a024: host full<"), std::string::npos);
  // A failure far beyond what is to be reached says nothing of it.
  search["smallest_failed"] = 48;
  const std::string far =
      row_of(page(input_of({plain, more, search}), ""), "the batch that fits in memory");
  EXPECT_TRUE(holds(far, "not measured")) << far;
}

}  // namespace
}  // namespace lms::report
