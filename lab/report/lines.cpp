#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "lab/report/chart.h"
#include "lab/report/scale.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kSize = 12;   ///< of names
constexpr double kSmall = 11;  ///< of ticks and remarks
constexpr double kRow = 16;
constexpr double kDot = 4;

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  [[nodiscard]] bool empty() const { return low > high; }
};

Scale x_scale(const LineChart& chart, double from, double to) {
  Extent extent;
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) extent.add(point.x);
  }
  for (const Border& border : chart.borders) extent.add(border.x);
  for (const Remark& remark : chart.remarks) extent.add(remark.from), extent.add(remark.to);
  if (extent.empty()) return {0, 1, from, to};
  double margin = 0.03 * (extent.high - extent.low);
  if (margin <= 0) margin = extent.high != 0 ? 0.1 * std::fabs(extent.high) : 1;
  return {extent.low - margin, extent.high + margin, from, to};
}

double highest(const LineChart& chart) {
  double high = 0;
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) high = std::max(high, point.y);
  }
  for (const Remark& remark : chart.remarks) high = std::max(high, remark.y);
  return high > 0 ? high : 1;
}

/// What stands for the curve beside its name.
void draw_sign(Drawing& drawing, const Curve& curve, double x, double y) {
  if (curve.dashed) {
    drawing.line(x - 6, y, x + 5, y, "curve dashed s-" + curve.token);
  } else {
    drawing.marker(curve.shape, x, y, kDot, "f-" + curve.token);
  }
}

/// Names in rows above the chart, for where there is no room beside the lines; returns the height.
double draw_key(Drawing& drawing, const LineChart& chart, double top) {
  double x = 0;
  double y = top;
  for (const Curve& curve : chart.curves) {
    const std::string name = shorten(curve.name, kSize, drawing.width() - 30);
    const double width = 16 + text_width(name, kSize) + 14;
    if (x > 0 && x + width - 14 > drawing.width()) {
      x = 0;
      y += kRow;
    }
    draw_sign(drawing, curve, x + 6, y + 8);
    drawing.text(x + 16, y + 12, name, "words", kSize);
    x += width;
  }
  return y - top + kRow + 4;
}

class LinePlot {
 public:
  LinePlot(const LineChart& chart, double width) : chart_(chart), drawing_(width) {}

  Drawing run() {
    lay_out();
    draw_grid();
    draw_x();
    draw_borders();
    // The first is the one that others are compared with, and must be seen where they meet.
    for (const Curve& curve : std::views::reverse(chart_.curves)) draw_curve(curve);
    draw_names();
    draw_remarks();
    for (const Curve& curve : chart_.curves) {
      for (const Point& point : curve.points) {
        drawing_.target(x_(point.x), y_(point.y), 11, point.tip);
      }
    }
    return std::move(drawing_);
  }

 private:
  void lay_out() {
    const double width = drawing_.width();
    const bool narrow = width < kNarrow;
    named_ = !narrow && chart_.curves.size() > 1;
    double top = 0;
    if (!named_ && !chart_.curves.empty()) top += draw_key(drawing_, chart_, top);
    drawing_.text(0, top + 11, chart_.y_title, "ticks", kSmall);
    top += kRow + 8;

    const int count = narrow ? 5 : 6;
    y_.high = chart_.y_top ? std::max(*chart_.y_top, highest(chart_))
                           : nice_end(0, highest(chart_) * 1.04, count);
    ticks_ = nice_ticks(0, y_.high, count);
    left_ = 0;
    for (const double tick : ticks_) {
      left_ = std::max(left_, text_width(chart_.y_format(tick), kSmall));
    }
    left_ += 8;
    double right = 12;
    if (named_) {
      for (const Curve& curve : chart_.curves) {
        right = std::max(right, 26 + text_width(curve.name, kSize));
      }
      right = std::min(right, 0.3 * width);
    }
    x_ = x_scale(chart_, left_, width - right);

    // Labels of borders lie above the chart, in as many rows as they need.
    std::vector<Span> spans;
    for (const Border& border : chart_.borders) {
      const double size = text_width(shortened(border.label), kSmall);
      spans.push_back({std::clamp(x_(border.x), size / 2, width - size / 2), size});
    }
    rows_ = rows_of(spans, 10);
    labels_ = spans;
    const int rows = rows_.empty() ? 0 : *std::ranges::max_element(rows_) + 1;
    label_top_ = top;
    top += rows * 15 + (rows > 0 ? 4 : 0);

    y_.from = top + (narrow ? 190 : 230);
    y_.to = top;
  }

  [[nodiscard]] std::string shortened(const std::string& label) const {
    return shorten(label, kSmall, drawing_.width());
  }

  void draw_grid() {
    for (const double tick : ticks_) {
      drawing_.line(x_.from, y_(tick), x_.to, y_(tick), tick == 0 ? "axis s-axis" : "grid s-faint");
      drawing_.text(left_ - 8, y_(tick) + 4, chart_.y_format(tick), "ticks", kSmall, Anchor::kEnd);
    }
  }

  void draw_x() {
    double y = y_.from + kRow;
    int most = 9;
    std::vector<double> ticks;
    // As many as have room.
    for (; most >= 2; --most) {
      ticks = nice_ticks(x_.low, x_.high, most);
      if (chart_.whole) std::erase_if(ticks, [](double tick) { return tick != std::round(tick); });
      std::vector<Span> spans;
      spans.reserve(ticks.size());
      for (const double tick : ticks) {
        spans.push_back({x_(tick), text_width(chart_.x_format(tick), kSmall)});
      }
      const std::vector<bool> shown = thinned(spans, 10);
      if (std::ranges::all_of(shown, [](bool each) { return each; })) break;
    }
    for (const double tick : ticks) {
      drawing_.line(x_(tick), y_.from, x_(tick), y_.from + 4, "axis s-axis");
      put_centred(x_(tick), y, chart_.x_format(tick), "ticks");
    }
    y += kRow + 1;
    drawing_.text(x_.to, y, chart_.x_title, "ticks", kSmall, Anchor::kEnd);
    if (!chart_.second.empty()) {
      y += kRow + 4;
      std::vector<Span> spans;
      for (const auto& [x, label] : chart_.second) spans.push_back({x_(x), width_of(label)});
      const std::vector<bool> shown = thinned(spans, 8);
      drawing_.line(x_.from, y - 13, x_.to, y - 13, "grid s-faint");
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const double x = x_(chart_.second[i].first);
        if (!shown[i] || x < x_.from - 1 || x > x_.to + 1) continue;
        drawing_.line(x, y - 16, x, y - 10, "axis s-axis");
        put_centred(x, y, chart_.second[i].second, "strong");
      }
      y += kRow;
      drawing_.text(x_.to, y, chart_.second_title, "ticks", kSmall, Anchor::kEnd);
    }
    drawing_.set_height(y + 6);
  }

  [[nodiscard]] static double width_of(const std::string& text) { return text_width(text, kSmall); }

  void put_centred(double x, double y, const std::string& text, std::string_view classes) {
    const double half = width_of(text) / 2;
    drawing_.text(std::clamp(x, half, drawing_.width() - half), y, text, classes, kSmall,
                  Anchor::kMiddle);
  }

  /// All lines first: labels lie over those that pass below them.
  void draw_borders() {
    for (std::size_t i = 0; i < chart_.borders.size(); ++i) {
      const double x = x_(chart_.borders[i].x);
      drawing_.line(x, label_y(i) + 4, x, y_.from, "border s-" + chart_.borders[i].token);
    }
    for (std::size_t i = 0; i < chart_.borders.size(); ++i) {
      drawing_.text(labels_[i].wanted, label_y(i), shortened(chart_.borders[i].label), "words over",
                    kSmall, Anchor::kMiddle);
    }
  }
  [[nodiscard]] double label_y(std::size_t border) const {
    return label_top_ + 15 * rows_[border] + 11;
  }

  void draw_curve(const Curve& curve) {
    std::string data;
    for (const Point& point : curve.points) {
      data += (data.empty() ? "M" : "L") + coordinate(x_(point.x)) + " " + coordinate(y_(point.y));
    }
    const std::string classes = (curve.dashed ? "curve dashed s-" : "curve s-") + curve.token;
    if (curve.points.size() > 1) drawing_.path(data, classes);
    if (curve.dashed) return;
    for (const Point& point : curve.points) {
      drawing_.marker(curve.shape, x_(point.x), y_(point.y), kDot, "ring f-" + curve.token);
    }
  }

  /// Right of the last points, moved apart where they would meet.
  void draw_names() {
    if (!named_) return;
    std::vector<Span> spans;
    std::vector<const Curve*> curves;
    for (const Curve& curve : chart_.curves) {
      if (curve.points.empty()) continue;
      spans.push_back({y_(curve.points.back().y), 15});
      curves.push_back(&curve);
    }
    const auto centres = spread(spans, y_.to - 8, y_.from + 8);
    if (!centres) return;
    const double x = x_.to + 10;
    for (std::size_t i = 0; i < curves.size(); ++i) {
      const double y = (*centres)[i];
      draw_sign(drawing_, *curves[i], x + 4, y);
      drawing_.text(x + 13, y + 4, shorten(curves[i]->name, kSize, drawing_.width() - x - 13),
                    "words", kSize);
    }
  }

  void draw_remarks() {
    std::vector<TextBox> taken = drawing_.texts();
    for (const Remark& remark : chart_.remarks) {
      const double from = x_(remark.from);
      const double to = x_(remark.to);
      const double y = y_(remark.y);
      if (to - from > 8) {
        drawing_.line(from, y, to, y, "mark s-published");
        drawing_.line(from, y - 4, from, y + 4, "mark s-published");
        drawing_.line(to, y - 4, to, y + 4, "mark s-published");
      } else {
        drawing_.marker(Shape::kDiamond, from, y, 4.5, "hollow s-published");
      }
      const std::string text = shorten(remark.label, kSmall, x_.to - x_.from);
      const double half = width_of(text) / 2;
      const double x = std::clamp((from + to) / 2, x_.from + half, x_.to - half);
      if (const auto place = free_place(x, y, half)) {
        drawing_.text(x, *place, text, "words over", kSmall, Anchor::kMiddle);
      }
      drawing_.target((from + to) / 2, y, 11, remark.label);
    }
  }

  /// A line for a text around x, near y, that meets no curve, no point, and no other text.
  [[nodiscard]] std::optional<double> free_place(double x, double y, double half) const {
    for (const double by : {-12.0, 20.0, -28.0, 36.0, -44.0, 52.0, -60.0, 68.0, -76.0, 84.0}) {
      const double line = y + by;
      if (line - 10 < y_.to || line + 4 > y_.from) continue;
      if (clear(x - half - 3, x + half + 3, line - 11, line + 4)) return line;
    }
    return std::nullopt;
  }

  [[nodiscard]] bool clear(double left, double right, double top, double bottom) const {
    for (const TextBox& box : drawing_.texts()) {
      const bool beside = box.right <= left || box.left >= right;
      if (!beside && box.bottom > top && box.top < bottom) return false;
    }
    for (const Curve& curve : chart_.curves) {
      for (std::size_t i = 0; i < curve.points.size(); ++i) {
        const Point& a = curve.points[i > 0 ? i - 1 : 0];
        const Point& b = curve.points[i];
        for (int step = 0; step <= 40; ++step) {
          const double t = step / 40.0;
          const double px = x_(a.x) + t * (x_(b.x) - x_(a.x));
          const double py = y_(a.y) + t * (y_(b.y) - y_(a.y));
          if (px > left - 4 && px < right + 4 && py > top - 4 && py < bottom + 4) return false;
        }
      }
    }
    return true;
  }

  const LineChart& chart_;
  Drawing drawing_;
  bool named_ = false;
  Scale x_;
  Scale y_;
  std::vector<double> ticks_;
  std::vector<Span> labels_;
  std::vector<int> rows_;
  double left_ = 0;
  double label_top_ = 0;
};

}  // namespace

Drawing draw(const LineChart& chart, double width) {
  LineChart sorted = chart;
  for (Curve& curve : sorted.curves) std::ranges::stable_sort(curve.points, {}, &Point::x);
  return LinePlot(sorted, width).run();
}

}  // namespace lms::report
