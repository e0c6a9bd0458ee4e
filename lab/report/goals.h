#pragma once

#include <map>
#include <string>
#include <vector>

#include "lab/report/study.h"

namespace lms::report {

/// Ids in the page: of the sections of studies, and of a panel's figures by what they show ("rate",
/// "maximum", "overhead").
struct Anchors {
  std::vector<std::string> studies;  ///< in their order
  std::map<const Panel*, std::map<std::string, std::string>> figures;
};

/// HTML of a table of all goals: what was published, what is to be reached, what was reached, and
/// the chart that shows it. Empty where there are no goals.
std::string goal_table(const std::vector<Study>& studies, const Anchors& anchors);

/// HTML of a card for each study that nobody has published; or empty.
std::string own_cards(const std::vector<Study>& studies, const Anchors& anchors);

}  // namespace lms::report
