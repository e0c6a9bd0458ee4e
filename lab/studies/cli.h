#pragma once

#include <cstdio>
#include <functional>

#include "lab/studies/try_spec.h"

namespace lms::studies {

/// Exit statuses of the program.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;    ///< a try has failed, or cannot be made
inline constexpr int kBadInput = 2;  ///< settings or recipes that cannot be
inline constexpr int kLeft = 3;      ///< the time has run out: run it again

/// One try, in this process: writes its record, and returns an exit status.
using RunTry = std::function<int(const TrySpec& spec, std::FILE* log)>;

/// The program lms-bench: see docs/studies.md. Throws nothing.
int run(int argc, const char* const* argv, std::FILE* out, std::FILE* err, const RunTry& run_try);

}  // namespace lms::studies
