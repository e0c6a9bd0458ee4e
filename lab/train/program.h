#pragma once

#include <cstdio>

namespace lms::train {

/// Exit statuses of the program; a signal that ends a run gives 128 + its number.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;    ///< out of memory, a full disk, a loss that is not finite
inline constexpr int kBadInput = 2;  ///< wrong settings, or files that are not what they should be

/// The program lms-train: see docs/training.md. Throws nothing.
int run(int argc, const char* const* argv, std::FILE* out, std::FILE* err);

}  // namespace lms::train
