#include <algorithm>
#include <cmath>

#include "lab/report/chart.h"
#include "lab/report/scale.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kSize = 12;
constexpr double kSmall = 11;
constexpr double kBar = 15;
constexpr double kPitch = 22;
constexpr double kHead = 21;  ///< a group's name
constexpr double kBetween = 8;

class BarPlot {
 public:
  BarPlot(const BarChart& chart, double width) : chart_(chart), drawing_(width) {}

  Drawing run() {
    lay_out();
    double y = draw_key();
    std::vector<double> tops;
    for (const Group& group : chart_.groups) {
      if (!group.name.empty()) y += kHead;
      tops.push_back(y);
      y += kPitch * static_cast<double>(group.bars.size()) + kBetween;
    }
    find_ticks();
    for (std::size_t i = 0; i < tops.size(); ++i) draw_group(chart_.groups[i], tops[i]);
    draw_axis(y);
    return std::move(drawing_);
  }

 private:
  void lay_out() {
    double names = 0;
    double texts = 0;
    double low = 0;
    double high = 0;
    for (const Group& group : chart_.groups) {
      for (const Bar& bar : group.bars) {
        names = std::max(names, text_width(bar.name, kSize));
        if (bar.value) texts = std::max(texts, text_width(bar.text, kSize));
        low = std::min(low, bar.value.value_or(0));
        high = std::max(high, bar.value.value_or(0));
        for (const Stroke& stroke : bar.strokes) {
          low = std::min(low, stroke.value);
          high = std::max(high, stroke.value);
        }
      }
    }
    if (chart_.most) high = std::min(high, *chart_.most);
    if (high <= low) high = low + 1;
    const double width = drawing_.width();
    left_ = std::min(names + 10, (width < kNarrow ? 0.4 : 0.36) * width);
    const double right = std::min(texts + 12, (width < kNarrow ? 0.5 : 0.42) * width);
    x_ = {low, high, left_, std::max(width - right, left_ + 40)};
  }

  /// What the strokes mean, once for all bars.
  double draw_key() {
    std::vector<const Stroke*> kinds;
    for (const Group& group : chart_.groups) {
      for (const Bar& bar : group.bars) {
        for (const Stroke& stroke : bar.strokes) {
          const auto same = [&](const Stroke* kind) { return kind->name == stroke.name; };
          if (std::ranges::none_of(kinds, same)) kinds.push_back(&stroke);
        }
      }
    }
    if (kinds.empty()) return 0;
    double x = 0;
    double y = 0;
    for (const Stroke* kind : kinds) {
      const double width = 10 + text_width(kind->name, kSize);
      if (x > 0 && x + width > drawing_.width()) {
        x = 0;
        y += 18;
      }
      drawing_.line(x + 2, y + 1, x + 2, y + 15, "mark s-" + kind->token);
      drawing_.text(x + 10, y + 12, kind->name, "words", kSize);
      x += width + 18;
    }
    return y + 24;
  }

  /// As many as have room for their labels, but 0 and one more in any case.
  void find_ticks() {
    for (int most = 7; most >= 2; --most) {
      ticks_ = nice_ticks(x_.low, x_.high, most);
      std::vector<Span> spans;
      for (const double tick : ticks_) {
        spans.push_back({x_(tick), text_width(chart_.format(tick), kSmall)});
      }
      if (std::ranges::all_of(thinned(spans, 12), [](bool shown) { return shown; })) break;
    }
    if (ticks_.size() < 2) ticks_ = {0, x_.high};
  }

  void draw_axis(double bottom) {
    for (const double tick : ticks_) {
      const std::string text = chart_.format(tick);
      const double half = text_width(text, kSmall) / 2;
      const double x = std::clamp(x_(tick), half, drawing_.width() - half);
      drawing_.text(x, bottom + 10, text, "ticks", kSmall, Anchor::kMiddle);
    }
    const std::string title = shorten(chart_.title, kSmall, drawing_.width());
    drawing_.text(0, bottom + 28, title, "ticks", kSmall);
    drawing_.set_height(bottom + 34);
  }

  void draw_group(const Group& group, double top) {
    if (!group.name.empty()) {
      drawing_.text(0, top - 6, shorten(group.name, kSize, drawing_.width()), "strong", kSize);
    }
    const double bottom = top + kPitch * static_cast<double>(group.bars.size()) - 3;
    for (const double tick : ticks_) {
      const double x = x_(tick);
      drawing_.line(x, top - 3, x, bottom, tick == 0 ? "axis s-axis" : "grid s-faint");
    }
    double y = top;
    for (const Bar& bar : group.bars) {
      draw_bar(bar, y);
      y += kPitch;
    }
  }

  void draw_bar(const Bar& bar, double y) {
    const double middle = y + kBar / 2;
    drawing_.text(0, middle + 4, shorten(bar.name, kSize, left_ - 8), "words", kSize);
    if (!bar.value) {
      const double from = std::max(left_, x_(0)) + 6;
      const std::string text = shorten(bar.text, kSmall, drawing_.width() - from);
      drawing_.text(from, middle + 4, text, "ticks", kSmall);
      return;
    }
    const bool cut = *bar.value > x_.high * (1 + 1e-9);
    const double end = x_(std::min(*bar.value, x_.high));
    const double zero = x_(0);
    const double from = std::min(zero, end);
    const double length = std::max(std::fabs(end - zero), 1.0);
    const std::string token = bar.hollow ? "hollow s-" + bar.token : "f-" + bar.token;
    drawing_.rect(from, y + (bar.hollow ? 1 : 0), length, bar.hollow ? kBar - 2 : kBar, token, {},
                  2);
    if (cut) {
      for (const double back : {12.0, 18.0}) {
        const std::string x = coordinate(end - back);
        drawing_.path("M" + x + " " + coordinate(y + kBar + 2) + "l5 " + coordinate(-kBar - 4),
                      "curve s-card");
      }
    }
    std::vector<double> edges = {std::max(end, zero)};
    for (const Stroke& stroke : bar.strokes) {
      if (stroke.value > x_.high * (1 + 1e-9)) continue;
      const double x = x_(stroke.value);
      drawing_.line(x, y - 2, x, y + kBar + 2, "halo s-card");
      drawing_.line(x, y - 2, x, y + kBar + 2, "mark s-" + stroke.token);
      if (x > edges.front()) edges.push_back(x);
    }
    // At the bar's end, or after a stroke: where it meets no other.
    std::ranges::sort(edges);
    std::size_t at = 0;
    while (at + 1 < edges.size() && edges[at] + 12 + text_width(bar.text, kSize) > edges[at + 1]) {
      ++at;
    }
    const double right = edges[at];
    const std::string text = shorten(bar.text, kSize, drawing_.width() - right - 6);
    drawing_.text(right + 6, middle + 4, text, "words", kSize);
    drawing_.rect(left_, y - 3, drawing_.width() - left_, kPitch, "hit",
                  bar.tip.empty() ? bar.name + ": " + bar.text : bar.tip);
  }

  const BarChart& chart_;
  Drawing drawing_;
  double left_ = 0;
  Scale x_;
  std::vector<double> ticks_;
};

}  // namespace

Drawing draw(const BarChart& chart, double width) { return BarPlot(chart, width).run(); }

}  // namespace lms::report
