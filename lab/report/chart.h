#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/drawing.h"
#include "lab/report/runs.h"

namespace lms::report {

using Format = std::function<std::string(double)>;

/// Below this width there is no room beside the lines for names.
inline constexpr double kNarrow = 400;

struct Point {
  double x = 0;
  double y = 0;
  std::string tip;
};

/// One method's points, joined in the order of x.
struct Curve {
  std::string name;
  std::string token;
  Shape shape = Shape::kCircle;
  bool dashed = false;  ///< a limit rather than a measurement: without points
  std::vector<Point> points;
};

/// Where a method ends: an upright line.
struct Border {
  double x = 0;
  std::string label;
  std::string token;
};

/// What somebody else published, at one x or from one to another.
struct Remark {
  double from = 0;
  double to = 0;
  double y = 0;
  std::string label;
};

struct LineChart {
  std::string x_title;
  std::string y_title;
  Format x_format;
  Format y_format;
  std::optional<double> y_top;  ///< where the axis from 0 ends; else as the points ask for
  bool whole = false;           ///< x has no fractions
  std::vector<Curve> curves;
  std::vector<Border> borders;
  std::vector<Remark> remarks;
  /// A second row below the axis: places and what is written there.
  std::vector<std::pair<double, std::string>> second;
  std::string second_title;
};

/// Lines over a common x; y begins at 0. Labels do not overlap: what has no room is left out, and
/// is to be read from the points' tips.
Drawing draw(const LineChart& chart, double width);

/// An upright stroke across a bar: a bound, a prediction, a target.
struct Stroke {
  double value = 0;
  std::string token;
  std::string name;
};

struct Bar {
  std::string name;
  std::optional<double> value;  ///< none: only the text is shown
  std::string text;             ///< at the bar's end
  std::string token;
  bool hollow = false;  ///< somebody else's
  std::vector<Stroke> strokes;
  std::string tip;
};

struct Group {
  std::string name;
  std::vector<Bar> bars;
};

struct BarChart {
  std::string title;  ///< of the axis, with its unit
  Format format;
  std::optional<double> most;  ///< longer bars are cut off here, and look it
  std::vector<Group> groups;
};

/// Bars that lie, from 0.
Drawing draw(const BarChart& chart, double width);

/// One step: kernels and the copies each way over time; the longest gaps between kernels are
/// numbered in the order of their length.
Drawing draw(const Timeline& timeline, double width);

}  // namespace lms::report
