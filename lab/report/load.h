#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/report/published.h"
#include "lab/report/runs.h"

namespace lms::report {

/// All that a report is made from.
struct Input {
  std::vector<Record> records;
  std::vector<Boundary> boundaries;
  std::vector<StepRecord> steps;
  std::vector<Published> published;
  std::vector<Problem> problems;
  std::vector<std::string> passed_over;  ///< JSON of other kinds, found in folders
};

/// Reads files, and all *.json below folders, in the order of their paths; a file that is reached
/// twice is read once. A list of records in one file is taken as well. What is no record, of an
/// unknown schema, or lacks a field, becomes a problem, and nothing is thrown for it; JSON of other
/// kinds that merely lies in a folder is passed over. Published figures are those built in, unless
/// a file of them is among the runs.
Input load(const std::vector<std::string>& runs);

/// The same for one text, for `load` and for tests.
void load_text(std::string_view text, const std::string& file, bool named, Input& input);

}  // namespace lms::report
