#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace lms::report {

struct Request {
  std::vector<std::string> runs;  ///< files and folders of JSON
  std::string page = "report.html";
  std::string title = "Training past the memory of the device";
  std::string svg;  ///< folder for every chart as a picture; "": none
  std::string png;
};

/// Makes the report. Says on `out` what was written, and on `err` what could not be used. Throws
/// nothing. Returns whether all that was asked for was written; without a single record nothing is.
bool make_report(const Request& request, std::FILE* out, std::FILE* err);

}  // namespace lms::report
