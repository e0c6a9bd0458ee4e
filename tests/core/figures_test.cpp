// Figures of a step small enough to be drawn by hand.
//
//   compute aa....bbbbbcccccd        w (4 bytes) leaves before b and is back before d, which
//   out       wwww                   writes it; lanes of 1 byte/ms
//   in                 wwww

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "core/plan_words.h"
#include "figures/timeline.h"

namespace lms {
namespace {

using Json = nlohmann::json;
using testing::kUnit;

constexpr Bytes kBudget = 6;

class Figures : public ::testing::Test {
 protected:
  Figures() {
    TraceBuilder builder;
    const auto w = builder.existing(4);
    builder.run("a", {w}, {}, 2);
    builder.run("odd <&\"> name", {}, {}, 5);
    builder.run("c", {}, {}, 5, 3);
    builder.run("d", {}, {w}, 1);
    trace_ = builder.build();
    plan_.directives = {
        {1, Action::kStartOut, w}, {1, Action::kFinishOut, w}, {2, Action::kStartIn, w}};
    timing_ = time_plan(trace_, plan_, kUnit, true);
    for (const OperatorTiming& op : timing_.operators) {
      measured_.operators.push_back({op.begin_ms + 0.5, op.end_ms + 0.5, op.device});
    }
    measured_.copies = {{0, true, 3, 7}};
  }

  Trace trace_;
  Plan plan_;
  PlanTiming timing_;
  MeasuredTimeline measured_;
};

/// Events of one process and phase, in order.
std::vector<Json> events(const Json& document, int pid, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("pid") == pid && event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

std::vector<Json> on_thread(const std::vector<Json>& events, int thread) {
  std::vector<Json> found;
  for (const Json& event : events) {
    if (event.at("tid") == thread) found.push_back(event);
  }
  return found;
}

TEST_F(Figures, ChromeTraceHasOperatorsAndWaits) {
  const Json document = Json::parse(chrome_trace(trace_, plan_, timing_, kBudget));
  const auto compute = on_thread(events(document, 1, "X"), 1);
  ASSERT_EQ(compute.size(), 5U);
  EXPECT_EQ(compute[0].at("name"), "a");
  EXPECT_EQ(compute[0].at("ts"), 0);
  EXPECT_EQ(compute[0].at("dur"), 2000);
  EXPECT_EQ(compute[1].at("name"), "waiting for copies");
  EXPECT_EQ(compute[1].at("ts"), 2000);
  EXPECT_EQ(compute[1].at("dur"), 4000);
  EXPECT_EQ(compute[2].at("name"), "odd <&\"> name");
  EXPECT_EQ(compute[2].at("ts"), 6000);
  EXPECT_EQ(compute[3].at("args").at("device bytes"), 7);
  EXPECT_EQ(compute[4].at("args").at("writes"), Json::array({0}));
}

TEST_F(Figures, ChromeTraceHasCopiesAndMemory) {
  const Json document = Json::parse(chrome_trace(trace_, plan_, timing_, kBudget));
  const auto spans = events(document, 1, "X");
  const auto out = on_thread(spans, 2);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].at("ts"), 2000);
  EXPECT_EQ(out[0].at("dur"), 4000);
  EXPECT_EQ(out[0].at("args").at("bytes"), 4);
  EXPECT_DOUBLE_EQ(out[0].at("args").at("GB/s"), 1e-6);
  const auto in = on_thread(spans, 3);
  ASSERT_EQ(in.size(), 1U);
  EXPECT_EQ(in[0].at("ts"), 11000);

  std::vector<std::pair<double, int>> device;
  for (const Json& event : events(document, 1, "C")) {
    if (event.at("name") == "budget") {
      EXPECT_EQ(event.at("args").at("bytes"), kBudget);
    } else {
      device.emplace_back(event.at("ts"), event.at("args").at("bytes"));
    }
  }
  const std::vector<std::pair<double, int>> expected = {{0, 4},     {0, 4},     {6000, 0},
                                                        {11000, 7}, {16000, 4}, {17000, 4}};
  EXPECT_EQ(device, expected);
  EXPECT_TRUE(events(document, 2, "X").empty());
}

TEST_F(Figures, ChromeTraceShowsTheMeasuredBesideThePredicted) {
  const Json document = Json::parse(chrome_trace(trace_, plan_, timing_, kBudget, &measured_));
  const auto spans = events(document, 2, "X");
  EXPECT_EQ(on_thread(spans, 1).size(), 4U);
  EXPECT_EQ(on_thread(spans, 1)[0].at("ts"), 500);
  ASSERT_EQ(on_thread(spans, 2).size(), 1U);
  EXPECT_EQ(on_thread(spans, 2)[0].at("ts"), 3000);
  EXPECT_TRUE(on_thread(spans, 3).empty());
}

TEST_F(Figures, WaitsThatWereMeasuredAreShownBeforeTheirOperator) {
  measured_.operators[1].waited_ms = 0.25;
  const double begin_ms = measured_.operators[1].begin_ms;
  const Json document = Json::parse(chrome_trace(trace_, plan_, timing_, kBudget, &measured_));
  const auto compute = on_thread(events(document, 2, "X"), 1);
  ASSERT_EQ(compute.size(), 5U);
  EXPECT_EQ(compute[1].at("cat"), "wait");
  EXPECT_EQ(compute[1].at("ts"), (begin_ms - 0.25) * 1e3);
  EXPECT_EQ(compute[1].at("dur"), 250);
}

TEST_F(Figures, ChromeTraceMarksDropsAndRecomputations) {
  plan_.directives = {{1, Action::kDrop, 0}, {4, Action::kRematerialise, 0}};
  const Json document = Json::parse(chrome_trace(trace_, plan_, timing_, kBudget));
  const auto marks = events(document, 1, "i");
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_EQ(marks[0].at("name"), "drop block 0");
  EXPECT_EQ(marks[0].at("ts"), 6000) << "when the operator after it begins";
  EXPECT_EQ(marks[1].at("name"), "recompute block 0");
  EXPECT_EQ(marks[1].at("ts"), 17000) << "the end of the step";
}

TEST_F(Figures, TimelinesOfAnotherTraceAreErrors) {
  const PlanTiming without = time_plan(trace_, plan_, kUnit);
  EXPECT_THROW(chrome_trace(trace_, plan_, without, kBudget), Error);
  EXPECT_THROW(timeline_svg(trace_, plan_, without, kBudget), Error);
  measured_.copies = {{1, true, 3, 7}};
  EXPECT_THROW(timeline_svg(trace_, plan_, timing_, kBudget, "", &measured_), Error);
  measured_.copies.clear();
  measured_.operators.pop_back();
  EXPECT_THROW(chrome_trace(trace_, plan_, timing_, kBudget, &measured_), Error);
}

/// An element of an SVG document: its name and attributes.
struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;
};

/// Reads what SvgWriter may write; adds a failure where it is not well-formed.
std::vector<Element> parse_xml(const std::string& text) {
  std::vector<Element> elements;
  std::vector<std::size_t> open;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t begin = text.find('<', at);
    const std::string between = text.substr(at, begin - at);
    for (std::size_t i = between.find('&'); i != std::string::npos; i = between.find('&', i + 1)) {
      const std::string name = between.substr(i + 1, between.find(';', i) - i - 1);
      EXPECT_TRUE(name == "amp" || name == "lt" || name == "gt" || name == "quot") << between;
    }
    if (begin == std::string::npos) break;
    if (!open.empty()) elements[open.back()].text += between;
    const std::size_t end = text.find('>', begin);
    if (end == std::string::npos) {
      ADD_FAILURE() << "an open tag: " << text.substr(begin);
      return elements;
    }
    std::string tag = text.substr(begin + 1, end - begin - 1);
    at = end + 1;
    if (tag.starts_with('/')) {
      if (open.empty() || elements[open.back()].name != tag.substr(1)) {
        ADD_FAILURE() << "closes nothing: " << tag;
        return elements;
      }
      open.pop_back();
      continue;
    }
    const bool closed = tag.ends_with('/');
    if (closed) tag.pop_back();
    Element element{.name = tag.substr(0, tag.find_first_of(" \n"))};
    for (std::size_t i = tag.find_first_of(" \n"); i < tag.size();) {
      i = tag.find_first_not_of(" \n", i);
      if (i == std::string::npos) break;
      const std::size_t equals = tag.find("=\"", i);
      const std::size_t quote = tag.find('"', equals + 2);
      if (equals == std::string::npos || quote == std::string::npos) {
        ADD_FAILURE() << "an attribute without value: " << tag;
        return elements;
      }
      const std::string name = tag.substr(i, equals - i);
      EXPECT_TRUE(
          element.attributes.emplace(name, tag.substr(equals + 2, quote - equals - 2)).second)
          << name << " twice in " << tag;
      i = quote + 1;
    }
    elements.push_back(std::move(element));
    if (!closed) open.push_back(elements.size() - 1);
  }
  EXPECT_TRUE(open.empty()) << "not closed: " << elements[open.back()].name;
  return elements;
}

/// Left edge and width of the boxes of one colour, in pixels.
std::vector<std::pair<double, double>> boxes(const std::vector<Element>& elements,
                                             const std::string& colour, double least_y = 80) {
  std::vector<std::pair<double, double>> found;
  for (const Element& element : elements) {
    if (element.name != "rect" || !element.attributes.contains("y")) continue;
    if (element.attributes.at("fill") != colour) continue;
    if (std::stod(element.attributes.at("y")) < least_y) continue;  // the legend
    found.emplace_back(std::stod(element.attributes.at("x")),
                       std::stod(element.attributes.at("width")));
  }
  return found;
}

bool has_text(const std::vector<Element>& elements, const std::string& part) {
  for (const Element& element : elements) {
    if (element.text.find(part) != std::string::npos) return true;
  }
  return false;
}

constexpr const char* kOut = "#e0803a";
constexpr const char* kIn = "#7a5fb5";
constexpr const char* kWait = "url(#wait)";

TEST_F(Figures, SvgDrawsToScale) {
  const auto elements = parse_xml(timeline_svg(trace_, plan_, timing_, kBudget, "A < B & C"));
  ASSERT_FALSE(elements.empty());
  EXPECT_EQ(elements[0].name, "svg");
  const auto waits = boxes(elements, kWait);
  const auto out = boxes(elements, kOut);
  const auto in = boxes(elements, kIn);
  ASSERT_EQ(waits.size(), 1U);
  ASSERT_EQ(out.size(), 1U);
  ASSERT_EQ(in.size(), 1U);
  const double ms = out[0].second / 4;
  EXPECT_GT(ms, 10);
  EXPECT_NEAR(waits[0].first, out[0].first, 0.02);
  EXPECT_NEAR(waits[0].second, 4 * ms, 0.02);
  EXPECT_NEAR(in[0].first - out[0].first, 9 * ms, 0.02);
  EXPECT_NEAR(in[0].second, 4 * ms, 0.02);
  EXPECT_TRUE(has_text(elements, "A &lt; B &amp; C"));
  EXPECT_TRUE(has_text(elements, "odd &lt;&amp;&quot;&gt; name"));
  EXPECT_TRUE(has_text(elements, "limit 6 B"));
  EXPECT_TRUE(has_text(elements, "predicted"));
  EXPECT_FALSE(has_text(elements, "measured"));
}

TEST_F(Figures, SvgShowsTheMeasuredBesideThePredicted) {
  const auto elements =
      parse_xml(timeline_svg(trace_, plan_, timing_, kBudget, "both", &measured_));
  EXPECT_TRUE(has_text(elements, "measured"));
  EXPECT_EQ(boxes(elements, kOut).size(), 2U);
  EXPECT_EQ(boxes(elements, kIn).size(), 1U);
  EXPECT_TRUE(has_text(elements, "step 17.5 ms"));
}

TEST_F(Figures, SvgContinuesCopiesAtTheBeginningOfTheStep) {
  timing_.copies = {{0, true, 15, 19}};
  const auto elements = parse_xml(timeline_svg(trace_, plan_, timing_, kBudget));
  const auto out = boxes(elements, kOut);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_NEAR(out[0].second, out[1].second, 0.02) << "2 ms each";
  EXPECT_LT(out[0].first, out[1].first);
  EXPECT_NEAR(out[1].first - out[0].first, 7.5 * out[0].second, 0.05);
}

TEST_F(Figures, SvgOfManyShortOperatorsStaysSmall) {
  TraceBuilder builder;
  for (int i = 0; i < 20000; ++i) builder.run("tiny", {}, {}, 0.001);
  const Trace many = builder.build();
  const std::string svg = timeline_svg(many, {}, time_plan(many, {}, kUnit, true), kBudget);
  EXPECT_LT(svg.size(), 400'000U);
  (void)parse_xml(svg);
}

TEST(FiguresOfNothing, AreStillFigures) {
  const Trace trace;
  const PlanTiming timing = time_plan(trace, {}, kUnit, true);
  EXPECT_TRUE(Json::parse(chrome_trace(trace, {}, timing, 0)).contains("traceEvents"));
  EXPECT_TRUE(has_text(parse_xml(timeline_svg(trace, {}, timing, 0)), "predicted"));
}

}  // namespace
}  // namespace lms
