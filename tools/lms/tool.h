#pragma once

#include <cstdio>

namespace lms::tool {

/// Exit statuses of the tool.
inline constexpr int kFits = 0;        ///< and of everything else that went well
inline constexpr int kDoesNotFit = 1;  ///< `lms plan`: no plan keeps to the limit
inline constexpr int kFailed = 2;      ///< wrong arguments, unreadable files

/// The program `lms`: see `lms --help` and docs/planning.md. Writes answers to `out` and errors to
/// `err`; throws nothing. `train`, `eval` and `predict` replace the process by lms-train.
int run(int argc, const char* const* argv, std::FILE* out, std::FILE* err);

}  // namespace lms::tool
