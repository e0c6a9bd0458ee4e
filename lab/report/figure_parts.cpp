#include "lab/report/figure_parts.h"

#include <algorithm>

#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr std::size_t kMostGroups = 6;

/// The unit that most of the panel's figures are in: that of the run in memory, else of the first.
std::string unit_of(const Panel& panel) {
  if (panel.reference != nullptr) return panel.reference->unit;
  for (const auto* runs : {&panel.runs, &panel.linked}) {
    for (const Record* run : *runs) {
      if (run->ok() && run->rate()) return run->unit;
    }
  }
  return {};
}

}  // namespace

Format size_format(const Panel& panel) {
  Panel bare;
  bare.over_side = panel.over_side;
  bare.dimensions = panel.dimensions;
  return [bare](double x) { return bare.over_side ? bare.name(x) : format_number(x); };
}

std::string size_title(const Panel& panel) {
  return panel.over_side ? "side of a sample" : "batch";
}

std::string per_second(const Panel& panel) {
  const std::string unit = unit_of(panel);
  return (unit.empty() ? "samples" : unit) + "/s";
}

std::optional<double> rate_in(const Panel& panel, const Record& run) {
  return run.ok() && run.unit == unit_of(panel) ? run.rate() : std::nullopt;
}

std::string times(const Panel& panel, double x) {
  const auto factor = panel.factor(x);
  return factor ? " (" + format_factor(*factor) + ")" : "";
}

std::vector<std::pair<double, std::string>> multiples(const Panel& panel) {
  std::vector<std::pair<double, std::string>> ticks;
  double most = 0;
  for (const Record* run : panel.runs) most = std::max(most, panel.x(*run).value_or(0));
  for (const double factor : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0}) {
    const auto x = panel.x_of_factor(factor);
    if (x && *x <= most * 1.02) ticks.emplace_back(*x, coordinate(factor) + "×");
  }
  return ticks;
}

std::vector<double> selected(const std::set<double>& sizes) {
  std::vector<double> all(sizes.begin(), sizes.end());
  if (all.size() <= kMostGroups) return all;
  std::vector<double> some;
  for (std::size_t i = 0; i < kMostGroups; ++i) {
    some.push_back(all[i * (all.size() - 1) / (kMostGroups - 1)]);
  }
  return some;
}

Figure lines_or_bars(std::string id, std::string title, std::string says, std::string description,
                     LineChart chart) {
  std::set<double> sizes;
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) sizes.insert(point.x);
  }
  if (sizes.size() != 1) {
    return figure(std::move(id), std::move(title), std::move(says), std::move(description),
                  std::move(chart));
  }
  BarChart bars;
  bars.title = chart.y_title;
  bars.format = chart.y_format;
  bars.most = chart.y_top;
  const double size = *sizes.begin();
  Group group{(chart.whole ? "batch " : "") + chart.x_format(size), {}};
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) {
      group.bars.push_back(
          {curve.name, point.y, chart.y_format(point.y), curve.token, false, {}, point.tip});
    }
  }
  bars.groups.push_back(std::move(group));
  return figure(std::move(id), std::move(title), std::move(says), std::move(description),
                std::move(bars));
}

}  // namespace lms::report
