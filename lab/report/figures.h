#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/report/chart.h"
#include "lab/report/study.h"

namespace lms::report {

/// A chart with all that belongs to it, to be drawn at any width. What it draws is its own: the
/// input may be gone by then.
struct Figure {
  std::string id;           ///< for the page and for file names: "b3-resolution-16gib-rate"
  std::string title;        ///< what it shows
  std::string says;         ///< what is to be seen in it, in a sentence; may be empty
  std::string description;  ///< for who cannot see it
  std::function<Drawing(double width)> draw;
  bool whole_row = false;  ///< else two stand side by side where there is room
  std::string below;       ///< HTML beneath it
  bool folded = false;     ///< shown on demand
};

/// The figures of a study's panel, without those that there is no data for.
std::vector<Figure> figures_of(const Study& study, const Panel& panel);

/// How far each study got, beside what was published; nothing where nothing was measured.
std::vector<Figure> summary_figures(const std::vector<Study>& studies);

/// Runs of the Python benchmark: overhead measured, predicted, and bound.
std::vector<Figure> bound_figures(const std::vector<StepRecord>& steps);

/// "pixels", "voxels", "batch": what grows.
std::string grown(const Panel& panel);

/// With what all ids of a panel's figures begin: "b3-resolution-resnet50-tf32-16-gib".
std::string panel_id(const Study& study, const Panel& panel);

/// For ids and file names: lower case, digits, and single dashes.
std::string slug(std::string_view text);

}  // namespace lms::report
