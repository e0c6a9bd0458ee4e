// Layout: whatever a chart shows, its labels neither overlap nor leave it.

#include "lab/report/chart.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "lab/report/palette.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kWidths[] = {312, 466, 660, 990};
constexpr const char* kMethods[] = {"plain", "lms", "lms-swap", "save_on_cpu", "checkpoint"};

std::string overlapping(const Drawing& drawing) {
  const auto& texts = drawing.texts();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const TextBox& a = texts[i];
      const TextBox& b = texts[j];
      if (a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 2 &&
          b.top < a.bottom - 2) {
        return "'" + a.text + "' and '" + b.text + "'";
      }
    }
  }
  return {};
}

std::string outside(const Drawing& drawing) {
  for (const TextBox& box : drawing.texts()) {
    if (box.left < -1 || box.right > drawing.width() + 1 || box.top < -1 ||
        box.bottom > drawing.height() + 1) {
      return box.text;
    }
  }
  return {};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(Bars, WordsStandBetweenABarAndAStrokeWhereThereIsRoom) {
  const auto left_of_words = [](double stroke, const std::string& words) {
    BarChart chart;
    chart.format = format_factor;
    Bar bar{"LMS", 2.0, words, "lms", false, {{stroke, "bound", "to reach"}}, {}};
    chart.groups = {{"", {bar, {"published", 10.0, "", "published", true, {}, {}}}}};
    const Drawing drawing = draw(chart, 466);
    for (const TextBox& box : drawing.texts()) {
      if (box.text == words) return box.left;
    }
    return -1.0;
  };
  EXPECT_LT(left_of_words(9, "2×"), left_of_words(3, "2×, host full"));
  EXPECT_GT(left_of_words(9, "2×, a text that is too long for it"), left_of_words(9, "2×"));
}

LineChart line_chart(int curves, int points, double high) {
  LineChart chart;
  chart.x_title = "side of a sample";
  chart.y_title = "MP/s";
  chart.x_format = [](double x) { return format_number(x) + "²"; };
  chart.y_format = format_number;
  for (int c = 0; c < curves; ++c) {
    const Look look = look_of(kMethods[c % 5]);
    Curve curve{look.name, look.token, look.shape, false, {}};
    for (int p = 0; p < points; ++p) {
      curve.points.push_back({1000.0 + 500 * p, high / (1 + 0.1 * c) - p, "tip"});
    }
    chart.curves.push_back(curve);
  }
  return chart;
}

TEST(Lines, NamesBordersTicksAndRemarksKeepApart) {
  rc::check("at every width", [] {
    LineChart chart = line_chart(*rc::gen::inRange(1, 6), *rc::gen::inRange(1, 20),
                                 *rc::gen::inRange(1, 100000) / 7.0);
    for (const Curve& curve : chart.curves) {
      const double x = 1000.0 + *rc::gen::inRange(0, 9000);
      chart.borders.push_back({x, curve.name + " ends at " + format_number(x) + "²", curve.token});
    }
    const double from = 1000.0 + *rc::gen::inRange(0, 5000);
    chart.remarks.push_back({from, from + *rc::gen::inRange(0, 3000), 3, "published −15 %"});
    for (const double factor : {1, 2, 4, 8, 16}) {
      chart.second.emplace_back(1000 * factor, format_factor(factor));
    }
    chart.second_title = "times the in-memory maximum";
    for (const double width : kWidths) {
      const Drawing drawing = draw(chart, width);
      RC_ASSERT(overlapping(drawing) == "");
      RC_ASSERT(outside(drawing) == "");
    }
  });
}

TEST(Lines, EveryPointIsDrawnAndCanBePointedAt) {
  const Drawing drawing = draw(line_chart(1, 7, 50), 990);
  EXPECT_EQ(count(drawing.body(), "class=\"ring f-plain\""), 7U);
  EXPECT_EQ(count(drawing.body(), "<title>tip</title>"), 7U);
}

TEST(Layout, TheChecksSeeWhatIsWrong) {
  Drawing drawing(100);
  drawing.set_height(50);
  drawing.text(10, 20, "one", "words", 12);
  EXPECT_EQ(overlapping(drawing) + outside(drawing), "");
  drawing.text(20, 24, "two", "words", 12);
  EXPECT_EQ(overlapping(drawing), "'two' and 'one'");
  drawing.text(90, 40, "three", "words", 12);
  EXPECT_EQ(outside(drawing), "three");
}

TEST(Lines, NoPointsAtAll) {
  const Drawing drawing = draw(line_chart(1, 0, 1), 312);
  EXPECT_GT(drawing.height(), 0);
  EXPECT_EQ(drawing.body().find("nan"), std::string::npos);
}

TEST(Lines, AxisEndsWhereItIsTold) {
  LineChart chart = line_chart(1, 3, 0.99);
  chart.curves[0].points = {{1, 0.99, ""}, {2, 0.95, ""}};
  chart.y_format = format_share;
  chart.y_top = 1;
  const Drawing drawing = draw(chart, 466);
  for (const TextBox& box : drawing.texts()) EXPECT_EQ(box.text.find("120"), std::string::npos);
}

TEST(Bars, TextsKeepApart) {
  rc::check("at every width", [] {
    BarChart chart;
    chart.title = "time per sample over that in memory";
    chart.format = format_change;
    const int groups = *rc::gen::inRange(1, 5);
    for (int g = 0; g < groups; ++g) {
      Group group{std::to_string(g) + "000² · 2×, under a rather long name", {}};
      const int bars = *rc::gen::inRange(0, 5);
      for (int b = 0; b < bars; ++b) {
        Bar bar;
        bar.name = look_of(kMethods[b]).name;
        bar.token = look_of(kMethods[b]).token;
        if (*rc::gen::inRange(0, 4) > 0) bar.value = *rc::gen::inRange(-50, 2000) / 100.0;
        bar.text = bar.value ? format_change(*bar.value) : "out of device memory";
        bar.strokes = {{0.5, "bound", "bound"}, {1.5, "predicted", "predicted"}};
        group.bars.push_back(bar);
      }
      chart.groups.push_back(group);
    }
    if (*rc::gen::inRange(0, 2) == 0) chart.most = 2;
    for (const double width : kWidths) {
      const Drawing drawing = draw(chart, width);
      RC_ASSERT(overlapping(drawing) == "");
      RC_ASSERT(outside(drawing) == "");
    }
  });
}

TEST(Bars, LengthsAreInProportion) {
  BarChart chart;
  chart.format = format_number;
  chart.groups = {
      {"", {{"a", 10, "10", "lms", false, {}, {}}, {"b", 5, "5", "lms", false, {}, {}}}}};
  const std::string body = draw(chart, 466).body();
  std::vector<double> widths;
  for (std::size_t at = body.find("f-lms"); at != body.npos; at = body.find("f-lms", at + 1)) {
    const std::size_t begin = body.rfind("width=\"", at) + 7;
    widths.push_back(std::stod(body.substr(begin)));
  }
  ASSERT_EQ(widths.size(), 2U);
  EXPECT_NEAR(widths[0], 2 * widths[1], 0.02);
}

TEST(Timelines, LanesAndGaps) {
  Timeline timeline;
  timeline.step = 0.1;
  timeline.kernels = {{0, 0.04}, {0.06, 0.1}};
  timeline.to_host = {{0, 0.05}};
  timeline.gaps = {{0.04, 0.02, "a<b"}};
  for (const double width : kWidths) {
    const Drawing drawing = draw(timeline, width);
    EXPECT_EQ(overlapping(drawing), "");
    EXPECT_EQ(outside(drawing), "");
    EXPECT_NE(drawing.body().find("gap 1: 20\u00a0ms idle at 40\u00a0ms, before a&lt;b"),
              std::string::npos);
    EXPECT_NE(drawing.body().find("kernels: 80\u00a0% of the step"), std::string::npos);
    EXPECT_NE(drawing.body().find("to the host: 50\u00a0% of the step"), std::string::npos);
  }
}

TEST(Timelines, OnlyWhatIsInTheStepCountsAndOnce) {
  Timeline timeline;
  timeline.step = 1;
  timeline.kernels = {{-0.5, 0.25}, {0.1, 0.2}, {0.2, 0.5}, {0.9, 3}, {4, 5}};
  const std::string body = draw(timeline, 990).body();
  EXPECT_NE(body.find("kernels: 60\u00a0% of the step"), std::string::npos);
}

TEST(Timelines, ManyIntervalsStaySmall) {
  Timeline timeline;
  timeline.step = 1;
  for (int i = 0; i < 2000; ++i) timeline.kernels.push_back({i / 2000.0, (i + 0.99) / 2000.0});
  EXPECT_LT(draw(timeline, 990).body().size(), 4000U);
}

TEST(Palette, TextsAndMarksStandOutOnBothGrounds) {
  const auto find = [](std::string_view token) {
    for (const Colour& colour : palette()) {
      if (colour.token == token) return colour;
    }
    throw std::invalid_argument(std::string(token));
  };
  for (const char* ground : {"page", "card"}) {
    for (const char* text : {"ink", "soft", "good", "bad", "link"}) {
      EXPECT_GE(contrast(find(text).light, find(ground).light), 4.5) << text << " on " << ground;
      EXPECT_GE(contrast(find(text).dark, find(ground).dark), 4.5) << text << " on " << ground;
    }
  }
  for (const char* mark : {"plain", "lms", "swap", "cpu", "checkpoint", "other", "published", "out",
                           "in", "kernel", "gap", "bound", "predicted"}) {
    EXPECT_GE(contrast(find(mark).light, find("card").light), 3) << mark;
    EXPECT_GE(contrast(find(mark).dark, find("card").dark), 3) << mark;
  }
  EXPECT_NEAR(contrast("#000000", "#ffffff"), 21, 0.01);
}

TEST(Palette, MethodsDifferInColourAndShapeOrName) {
  for (const char* one : kMethods) {
    for (const char* other : kMethods) {
      if (one == other) continue;
      EXPECT_NE(look_of(one).token, look_of(other).token);
      EXPECT_NE(look_of(one).name, look_of(other).name);
      EXPECT_NE(look_of(one).shape, look_of(other).shape);
    }
  }
}

}  // namespace
}  // namespace lms::report
