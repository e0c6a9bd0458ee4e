#include <algorithm>
#include <cmath>

#include "lab/report/chart.h"
#include "lab/report/scale.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kSize = 12;
constexpr double kSmall = 11;
constexpr double kLane = 26;
constexpr double kLeast = 0.35;       ///< pixels that the shortest interval is drawn with
constexpr double kHair = 0.4;         ///< gaps in pixels below which intervals are drawn as one
constexpr std::size_t kNumbered = 9;  ///< gaps that get a number

/// Seconds of the step in which any of the intervals runs.
double busy(std::vector<Interval> intervals, double step) {
  std::ranges::sort(intervals, {}, &Interval::from);
  double sum = 0;
  double until = 0;
  for (const Interval& interval : intervals) {
    const double to = std::min(interval.to, step);
    sum += std::max(0.0, to - std::max(until, interval.from));
    until = std::max(until, to);
  }
  return sum;
}

/// Boxes of the lane in one path; what lies closer than can be seen is one box.
std::string boxes(std::vector<Interval> intervals, const Scale& x, double y) {
  std::ranges::sort(intervals, {}, &Interval::from);
  std::string data;
  double from = 0;
  double to = -1;
  const auto put = [&] {
    if (to < from) return;
    data += "M" + coordinate(from) + " " + coordinate(y) + "h" + coordinate(to - from) + "v" +
            coordinate(kLane) + "h" + coordinate(from - to) + "z";
  };
  for (const Interval& interval : intervals) {
    const double begin = std::clamp(x(interval.from), x.from, x.to);
    const double end = std::max(std::clamp(x(interval.to), x.from, x.to), begin + kLeast);
    if (to >= from && begin - to < kHair) {
      to = std::max(to, end);
      continue;
    }
    put();
    from = begin;
    to = end;
  }
  put();
  return data;
}

void draw_gaps(Drawing& drawing, const Timeline& timeline, const Scale& x, double y) {
  for (std::size_t i = 0; i < timeline.gaps.size(); ++i) {
    const Gap& gap = timeline.gaps[i];
    const double from = std::clamp(x(gap.at), x.from, x.to);
    const double to = std::clamp(x(gap.at + gap.length), x.from, x.to);
    std::string tip = "gap " + std::to_string(i + 1) + ": " + format_seconds(gap.length) +
                      " idle at " + format_seconds(gap.at);
    if (!gap.before.empty()) tip += ", before " + gap.before;
    drawing.rect(from, y, std::max(to - from, 0.5), kLane, "idle f-gap", tip);
  }
}

void draw_axis(Drawing& drawing, double step, const Scale& x, double y, double width) {
  drawing.line(x.from, y, x.to, y, "axis s-axis");
  // In one unit: that of the whole step.
  const bool ms = step < 1;
  for (const double tick : nice_ticks(0, step, width < kNarrow ? 4 : 9)) {
    const std::string text = format_number(ms ? tick * 1e3 : tick) + (tick > 0 ? ""
                                                                      : ms     ? " ms"
                                                                               : " s");
    const double half = text_width(text, kSmall) / 2;
    drawing.line(x(tick), y, x(tick), y + 4, "axis s-axis");
    drawing.text(std::clamp(x(tick), x.from + half, width - half), y + 16, text, "ticks", kSmall,
                 Anchor::kMiddle);
  }
}

}  // namespace

Drawing draw(const Timeline& timeline, double width) {
  Drawing drawing(width);
  const bool narrow = width < kNarrow;
  const double left = narrow ? 0 : 84;
  const Scale x{0, timeline.step, left, width - 2};
  struct Lane {
    const char* name;
    const char* token;
    const std::vector<Interval>* intervals;
  };
  const Lane lanes[] = {{"kernels", "kernel", &timeline.kernels},
                        {"to the host", "out", &timeline.to_host},
                        {"to the device", "in", &timeline.to_device}};

  // Numbers of gaps in a row of their own above the kernels, the longest first.
  std::vector<Span> spans;
  const std::size_t count = std::min(timeline.gaps.size(), kNumbered);
  for (std::size_t i = 0; i < count; ++i) {
    const Gap& gap = timeline.gaps[i];
    spans.push_back({std::clamp(x(gap.at + gap.length / 2), left + 5, width - 7), 9});
  }
  const std::vector<bool> shown = thinned(spans, 3);

  double y = 2;
  for (const Lane& lane : lanes) {
    const bool first = lane.intervals == &timeline.kernels;
    const double part =
        timeline.step > 0 ? busy(*lane.intervals, timeline.step) / timeline.step : 0;
    const std::string share = format_share(part);
    if (narrow) {
      drawing.text(0, y + 11, std::string(lane.name) + ", " + share, "words", kSize);
      y += 17;
    }
    if (first && count > 0) {
      for (std::size_t i = 0; i < count; ++i) {
        if (shown[i]) {
          drawing.text(spans[i].wanted, y + 9, std::to_string(i + 1), "words", 10, Anchor::kMiddle);
        }
      }
      y += 13;
    }
    if (!narrow) {
      drawing.text(0, y + 12, lane.name, "words", kSize);
      drawing.text(0, y + 25, share, "ticks", kSmall);
    }
    drawing.rect(x.from, y, x.to - x.from, kLane, "track",
                 std::string(lane.name) + ": " + share + " of the step");
    if (first) draw_gaps(drawing, timeline, x, y);
    const std::string data = boxes(*lane.intervals, x, y);
    if (!data.empty()) drawing.path(data, std::string("lane f-") + lane.token);
    y += kLane + (narrow ? 9 : 8);
  }
  draw_axis(drawing, timeline.step, x, y, width);
  drawing.set_height(y + 22);
  return drawing;
}

}  // namespace lms::report
