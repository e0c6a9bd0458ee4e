#pragma once

#include <optional>
#include <string>

namespace lms::report {

/// A Chromium that can run without a screen: LMS_CHROMIUM where that is set, else the first of its
/// usual names in PATH.
std::optional<std::string> find_chromium();

/// Draws the SVG file, `width` by `height` pixels, at twice that size as a PNG file. Returns what
/// went wrong, and then there is no such file, or nothing. Waits for the browser half a minute at
/// most.
std::string render(const std::string& chromium, const std::string& svg, const std::string& png,
                   int width, int height);

}  // namespace lms::report
