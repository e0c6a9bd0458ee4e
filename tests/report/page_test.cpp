// The page as a whole: complete, closed in itself, and safe whatever the records hold.

#include "lab/report/page.h"

#include <gtest/gtest.h>

#include <cctype>
#include <regex>
#include <set>

#include "lab/report/text.h"
#include "report/support.h"

namespace lms::report {
namespace {

using nlohmann::json;

/// What is wrong with the nesting of elements; "" if nothing is.
std::string unbalanced(const std::string& text) {
  const std::set<std::string> empty = {"meta", "link", "br", "!doctype"};
  std::vector<std::string> open;
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    const bool closing = text[at + 1] == '/';
    std::size_t end = at + (closing ? 2 : 1);
    std::string name;
    while (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '!') {
      name += text[end++];
    }
    const std::size_t close = text.find('>', end);
    if (name.empty() || close == std::string::npos) return "'<' at " + std::to_string(at);
    if (closing) {
      if (open.empty() || open.back() != name) return "</" + name + ">";
      open.pop_back();
    } else if (text[close - 1] != '/' && !empty.contains(name)) {
      open.push_back(name);
      // Their text is no markup.
      if (name == "style" || name == "script") at = text.find("</" + name, close) - 1;
    }
  }
  return open.empty() ? "" : "<" + open.back() + ">";
}

std::string repeated_id(const std::string& html) {
  std::set<std::string> ids;
  const std::regex id(" id=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), id), end; at != end; ++at) {
    if (!ids.insert((*at)[1]).second) return (*at)[1];
  }
  return {};
}

json full(const std::string& method, double side, double rate) {
  json run = made_up(method, side, rate);
  run["losses"] = {1.0, 0.5};
  run["bytes"] = {{"to_host", 5e9}, {"to_device", 6e9}};
  run["link"] = {{"to_host_rate", 55e9}, {"to_host_use", 0.5}, {"to_device_use", 0.6}};
  run["gpu_busy"] = 0.9;
  run["timeline"] = {{"step", 1.0},
                     {"kernels", {{0, 0.4}, {0.5, 1}}},
                     {"to_host", {{0, 0.3}}},
                     {"to_device", {{0.5, 0.9}}},
                     {"gaps", {{{"at", 0.4}, {"for", 0.1}, {"before", "gemm"}}}}};
  run["allocations"] = {{"arena", 100}, {"driver", 3}};
  run["peak"] = {{"allocated", 15e9}, {"reserved", 16e9}, {"host", 30e9}};
  run["bound"] = side * side / 1e6 / (rate * 1.05);
  run["predicted"] = side * side / 1e6 / (rate * 1.02);
  return run;
}

Input whole() {
  json slow = full("lms", 6000, 50);
  slow["link_emulated"] = "pcie3";
  json floor = made_up("lms", 9500, 0, "oom");
  floor["largest_operator"] = 18e9;
  return input_of({made_up("plain", 3000, 84), made_up("plain", 3050, 0, "oom"),
                   full("lms", 6000, 75), full("lms", 9000, 70), made_up("save_on_cpu", 6000, 5),
                   made_up("checkpoint", 6000, 0, "timeout"), slow, floor});
}

TEST(Page, HasEverythingOfAStudy) {
  const std::string html = page(whole(), "A title");
  for (const char* part : {"<h1>A title</h1>",
                           "B3",
                           "ResNet50, batch 1",
                           "9×",
                           "the pixels that fit in memory",
                           ">10× <span class=\"soft\">megapixels at batch 1</span>",
                           "✓ reached",
                           "Data rate over resolution",
                           "Largest resolution",
                           "What it costs",
                           "Copied each way",
                           "How busy link and GPU are",
                           "One step: LMS at 9000²",
                           "Where allocations come from",
                           "Memory held at most",
                           "The same over slower links, emulated",
                           "What did not run, and why",
                           "took too long",
                           "one operator alone works on",
                           "All 8 runs&#39; figures",
                           "it did not go"}) {
    const bool found = html.find(part) != std::string::npos ||
                       html.find(std::regex_replace(std::string(part), std::regex("&#39;"), "'")) !=
                           std::string::npos;
    EXPECT_TRUE(found) << part;
  }
}

TEST(Page, IsBalancedAndItsIdsAreUnique) {
  const std::string html = page(whole(), "A title");
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_EQ(repeated_id(html), "");
}

TEST(Page, NoLevelOfHeadingsIsSkipped) {
  const json step = {
      {"schema", 2}, {"step", "net"}, {"method", "lms"}, {"ratio", 2}, {"overhead", 0.1}};
  Input input = whole();
  add(input, step);
  const std::string html = page(input, "A title");
  const std::regex heading("<h([1-6])");
  int before = 0;
  std::set<int> levels;
  for (std::sregex_iterator at(html.begin(), html.end(), heading), end; at != end; ++at) {
    const int level = std::stoi((*at)[1]);
    EXPECT_LE(level, before + 1) << html.substr(static_cast<std::size_t>(at->position()), 80);
    before = level;
    levels.insert(level);
  }
  EXPECT_EQ(levels, (std::set<int>{1, 2, 3, 4}));
}

TEST(Page, WeightsAreComparedAfterAsManySteps) {
  json plain = full("plain", 3000, 84);
  json lms = full("lms", 3000, 80);
  plain["weights"] = "abc";
  lms["weights"] = "def";
  EXPECT_NE(page(input_of({plain, lms}), "").find("equal, weights differ"), std::string::npos);
  lms["losses"] = {1.0, 0.5, 0.3};
  EXPECT_EQ(page(input_of({plain, lms}), "").find("weights differ"), std::string::npos);
  EXPECT_NE(page(input_of({plain, lms}), "").find(">equal<"), std::string::npos);
  lms["losses"] = {1.0, 0.6, 0.3};
  EXPECT_NE(page(input_of({plain, lms}), "").find(">differ<"), std::string::npos);
}

TEST(Page, WhatIsNotJudgedSaysWhy) {
  const std::string html =
      page(input_of({made_up("plain", 3000, 84), made_up("lms", 9000, 80)}), "");
  EXPECT_EQ(html.find("✓ reached"), std::string::npos);
  EXPECT_NE(html.find("Not judged: the most that fits in memory was not searched to its end"),
            std::string::npos);
  EXPECT_NE(html.find("In memory, nothing above 3000² was tried; LMS runs at 9000²"),
            std::string::npos);
  EXPECT_NE(html.find("1× · 3000², or more"), std::string::npos);
}

TEST(Page, AnEndThatIsNotKnownWellIsARange) {
  const std::string html =
      page(input_of({made_up("plain", 3000, 84), made_up("plain", 3050, 0, "oom"),
                     made_up("checkpoint", 4000, 60), made_up("checkpoint", 6000, 0, "oom")}),
           "");
  EXPECT_NE(html.find("1.78× · 4000² to 6000²"), std::string::npos);
  EXPECT_NE(html.find(">1× · 3000²<"), std::string::npos);
}

TEST(Page, TheFloorFollowsFromTheLastStepThatRan) {
  json last = made_up("lms", 8000, 70);
  last["largest_operator"] = 16.0 * 1024 * 1024 * 1024 * 0.9;
  const auto floor = [&](double beyond, const char* outcome) {
    const std::string html =
        page(input_of({made_up("plain", 3000, 84), last, made_up("lms", beyond, 0, outcome)}), "");
    return html.find(
               "The floor: the largest operator</h3><p>At 8000², batch 1 the largest "
               "operator works on 14.4\u00a0GiB; at 8500², batch 1, where memory did not "
               "suffice, that grows to about 16.3\u00a0GiB, more than the cap of "
               "16\u00a0GiB.") != std::string::npos;
  };
  EXPECT_TRUE(floor(8500, "oom"));
  EXPECT_FALSE(floor(8500, "timeout"));
  EXPECT_FALSE(floor(8200, "oom"));  // 15.1 GiB: something else was in the way
}

TEST(Page, SettingsAndWhatEndedEarlyAreShown) {
  json plain = full("plain", 3000, 84);
  json lms = full("lms", 6000, 75);
  for (json* run : {&plain, &lms}) (*run)["settings"] = {{"slack", "2147483648"}};
  const std::string alike = page(input_of({plain, lms}), "");
  EXPECT_NE(alike.find(">Settings besides: slack 2\u00a0GiB<"), std::string::npos);
  EXPECT_EQ(alike.find("ended after the timed steps, which"), std::string::npos);
  EXPECT_EQ(alike.find("What to know of runs"), std::string::npos);
  lms["settings"]["training.lr"] = 0.5;
  lms["partial"] = true;
  const std::string html = page(input_of({plain, lms}), "");
  EXPECT_NE(html.find(">Settings besides: slack 2\u00a0GiB; others differ, see the table<"),
            std::string::npos);
  EXPECT_NE(html.find("<td class=\"l\">slack 2\u00a0GiB, training.lr 0.5</td>"), std::string::npos);
  EXPECT_NE(html.find("2 runs (1 ended after the timed steps)"), std::string::npos);
  EXPECT_NE(html.find("LMS at 6000², batch 1, cap 16\u00a0GiB: ended after the timed steps, which "
                      "are kept</li>"),
            std::string::npos);
}

TEST(Page, ALinkThatIsTooFastToEmulateIsNotPassedOffAsIt) {
  json own = full("lms", 6000, 75);
  json fast = own;
  fast["link_emulated"] = "nvlink2";
  fast["link"]["to_device_rate"] = 55e9;
  json slow = own;
  slow["link_emulated"] = "pcie3";
  slow["link"] = {{"to_host_rate", 12e9}, {"to_device_rate", 12e9}};
  const char* const said =
      "NVLink 2 (71.4\u00a0GB/s) cannot be emulated here: the machine's own link gives "
      "55\u00a0GB/s. These runs had that.";
  const std::string html = page(input_of({made_up("plain", 3000, 84), own, fast, slow}), "");
  EXPECT_NE(html.find(escape(said)), std::string::npos);
  EXPECT_NE(html.find(">not NVLink 2<"), std::string::npos);
  EXPECT_EQ(html.find("NVLink 2 gives"), std::string::npos);
  EXPECT_EQ(html.find("not PCIe 3"), std::string::npos);
  fast["link"] = {{"to_host_rate", 71.4e9}, {"to_device_rate", 71.4e9}};
  const std::string there = page(input_of({made_up("plain", 3000, 84), own, fast, slow}), "");
  EXPECT_EQ(there.find("not NVLink 2"), std::string::npos);
  EXPECT_NE(there.find("NVLink 2 gives 1× the rate of PCIe 3"), std::string::npos);
}

TEST(Page, TheOperatorThatFoundNoRoomIsTheFloor) {
  json beyond = made_up("lms", 9000, 0, "oom");
  beyond["message"] = "LMS: out of memory on cuda:0: of whatever. Nothing was lost: go on.";
  beyond["need"] = {{"operator", "aten::convolution_backward"},
                    {"bytes", 14566348947},
                    {"least_limit", 19455279104}};
  const std::string html =
      page(input_of({made_up("plain", 3000, 84), made_up("lms", 6000, 75), beyond}), "");
  EXPECT_NE(html.find("At 9000², batch 1 the operator convolution_backward needs 13.6\u00a0GiB at "
                      "once, and with what cannot leave meanwhile 18.1\u00a0GiB, more than the cap "
                      "of 16\u00a0GiB."),
            std::string::npos);
  EXPECT_EQ(html.find("Nothing was lost"), std::string::npos);
}

TEST(Page, CopiesAreGivenAsRateAndAsShareOfTheLink) {
  const std::string html = page(input_of({full("lms", 6000, 72)}), "");
  // 5 and 6 GB in half a second.
  EXPECT_NE(html.find("<td>10\u00a0GB/s / 12\u00a0GB/s</td><td>50\u00a0% / 60\u00a0%</td>"),
            std::string::npos);
}

TEST(Page, StepsBelowTheirBoundAreCounted) {
  const auto step = [](double overhead) {
    return json{{"schema", 2}, {"step", "net"},        {"method", "lms"},
                {"ratio", 2},  {"overhead", overhead}, {"bound_recompute_overhead", 0.1}};
  };
  const std::string html = page(input_of({step(0.3), step(0.12), step(0.08)}), "");
  EXPECT_NE(html.find("2 of 3 runs are within 5 points of what no plan could beat. 1 of them is "
                      "below that"),
            std::string::npos);
}

TEST(Page, DescriptionsHaveThePublishedFigures) {
  json run = full("lms", 6000, 75);
  json plain = made_up("plain", 3000, 84);
  for (json* each : {&run, &plain}) (*each)["study"] = "B5";
  const std::string html = page(input_of({plain, run}), "");
  EXPECT_NE(html.find("Published, 1300²: 165\u00a0GB."), std::string::npos);
  EXPECT_NE(html.find("Published at 1600² (10×): link 95\u00a0% (71.4\u00a0GB/s), GPU 64\u00a0%."),
            std::string::npos);
}

TEST(Page, NeedsNothingElse) {
  const std::string html = page(whole(), "A title");
  for (const char* part : {"http:", "https:", "src=", "@import", "url(", "@font-face"}) {
    EXPECT_EQ(html.find(part), std::string::npos) << part;
  }
}

TEST(Page, ChartsHaveTitlesAndDescriptions) {
  const std::string html = page(whole(), "A title");
  const std::regex svg(
      "<svg class=\"(half|whole-row) [^>]*>(<title id=\"[^\"]+\">[^<]+</title>"
      "<desc id=\"[^\"]+\">[^<]+</desc>)?");
  std::size_t count = 0;
  for (std::sregex_iterator at(html.begin(), html.end(), svg), end; at != end; ++at, ++count) {
    EXPECT_TRUE((*at)[2].matched) << at->str().substr(0, 120);
    EXPECT_NE(at->str().find("role=\"img\""), std::string::npos);
  }
  EXPECT_GE(count, 16U);
}

TEST(Page, HostileStringsStayText) {
  const std::string evil =
      "</script></style><script>alert(1)</script>\"'><img src=x onerror=e>\x01";
  json run = full("lms", 6000, 70);
  for (const char* field : {"series", "model", "precision", "message", "commit", "date"}) {
    run[field] = evil;
  }
  run["study"] = evil;
  run["machine"] = {{"gpu", evil}, {"pytorch", evil}};
  run["timeline"]["gaps"][0]["before"] = evil;
  run["allocations"] = {{evil, 5}};
  run["samples"]["unit"] = evil;
  json failed = run;
  failed["method"] = evil;
  failed["outcome"] = evil;
  json linked = run;
  linked["link_emulated"] = evil;
  const json step = {{"schema", 2}, {"step", evil},    {"method", "lms"},
                     {"ratio", 2},  {"overhead", 0.1}, {"machine", {{"gpu", evil}}}};
  Input input = input_of({run, failed, linked, step});
  input.problems.push_back({evil, evil});
  const std::string html = page(input, evil);
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_EQ(repeated_id(html), "");
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_EQ(html.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  for (const Picture& picture : pictures(input)) {
    EXPECT_EQ(unbalanced(picture.svg), "") << picture.name;
    EXPECT_TRUE(std::regex_match(picture.name, std::regex("[a-z0-9-]+"))) << picture.name;
  }
}

TEST(Page, OneRecordAloneAndAlmostEmptyOnes) {
  for (const std::string outcome : {"ok", "oom"}) {
    const Input input = input_of({made_up("lms", 6000, 70, outcome)});
    const std::string html = page(input, "One");
    EXPECT_EQ(unbalanced(html), "");
    EXPECT_NE(html.find("not measured"), std::string::npos);
  }
  const Input bare = input_of(
      {{{"schema", "lms-bench/1"}, {"study", "own"}, {"method", "mine"}, {"outcome", "ok"}}});
  const std::string html = page(bare, "Bare");
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_NE(html.find("Not shown"), std::string::npos);
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(Page, PicturesStandAlone) {
  const std::vector<Picture> all = pictures(whole());
  EXPECT_GE(all.size(), 8U);
  std::set<std::string> names;
  for (const Picture& picture : all) {
    EXPECT_TRUE(names.insert(picture.name).second) << picture.name;
    EXPECT_EQ(unbalanced(picture.svg), "") << picture.name;
    EXPECT_EQ(picture.svg.find("var("), std::string::npos) << picture.name;
    EXPECT_NE(picture.svg.find("prefers-color-scheme:dark"), std::string::npos);
    EXPECT_NE(picture.svg.find("xmlns=\"http://www.w3.org/2000/svg\""), std::string::npos);
  }
}

}  // namespace
}  // namespace lms::report
