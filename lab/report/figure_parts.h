#pragma once

// What the sources that make figures of panels share.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/figures.h"

namespace lms::report {

/// Of ticks of the size. Knows no runs, as it outlives them.
Format size_format(const Panel& panel);
std::string size_title(const Panel& panel);

/// "MP/s".
std::string per_second(const Panel& panel);
/// The rate of a run in that unit; none where it failed, or counted other samples.
std::optional<double> rate_in(const Panel& panel, const Record& run);

/// " (4×)": a size as multiple of the in-memory maximum, or nothing where that is not known.
std::string times(const Panel& panel, double x);

/// 1×, 2×, 4×… up to the largest size, for an axis.
std::vector<std::pair<double, std::string>> multiples(const Panel& panel);

/// Six of the sizes at most, the first and the last among them.
std::vector<double> selected(const std::set<double>& sizes);

template <class Chart>
Figure figure(std::string id, std::string title, std::string says, std::string description,
              Chart chart) {
  Figure made;
  made.id = std::move(id);
  made.title = std::move(title);
  made.says = std::move(says);
  made.description = std::move(description);
  // Shared: a std::function is copied, and charts are large.
  auto shared = std::make_shared<const Chart>(std::move(chart));
  made.draw = [shared](double width) { return draw(*shared, width); };
  return made;
}

/// Lines need two sizes; of one, bars say the same.
Figure lines_or_bars(std::string id, std::string title, std::string says, std::string description,
                     LineChart chart);

/// What runs of a panel took: copies, link and GPU, emulated links, memory, allocations, timelines.
void add_resources(std::vector<Figure>& figures, const Study& study, const Panel& panel,
                   const std::string& id);

}  // namespace lms::report
