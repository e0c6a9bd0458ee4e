#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/report/figures.h"

namespace lms::report {

/// A chart as a picture of its own.
struct Picture {
  std::string name;  ///< of the file, without its ending
  std::string svg;
};

/// The report as one HTML document that needs nothing else: styles, charts and a little script are
/// in it, and all is there without the script.
std::string page(const Input& input, std::string_view title);

/// Every chart of it.
std::vector<Picture> pictures(const Input& input);

/// What the page is made of (style.cpp).
std::string page_style();
std::string page_script();

}  // namespace lms::report
