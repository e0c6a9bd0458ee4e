#pragma once

#include <optional>
#include <string>

namespace lms {

/// The contents of a small text file (the kernel's, under /proc and /sys), or nothing if it cannot
/// be read.
std::optional<std::string> read_text_file(const std::string& path);

}  // namespace lms
