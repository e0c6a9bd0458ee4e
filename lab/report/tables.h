#pragma once

#include <string>
#include <vector>

#include "lab/report/study.h"

namespace lms::report {

/// HTML of all figures of every run of a study; a table in a box that scrolls by itself.
std::string record_table(const Study& study);

/// HTML of what there is to know of runs that went through; empty where there is nothing.
std::string remarks(const Study& study);

/// HTML of what failed, and why, in words; empty where nothing did.
std::string failures(const Study& study);

/// HTML of notes where one operator needs more than the cap allows, ours and published; or empty.
std::string operator_notes(const Study& study);

/// HTML of all figures of the Python benchmark's runs.
std::string step_table(const std::vector<StepRecord>& steps);

}  // namespace lms::report
