#pragma once

#include <cstdio>
#include <string_view>

namespace lms::tool {

/// Is the command one of a program beside this one: train, eval, predict (lms-train), bench
/// (lms-bench)?
bool is_other(std::string_view command);

/// Becomes the program of the command argv[1] that lies beside this one, with the same arguments.
/// Returns only where that cannot be, with an exit status, and says why on `err`.
int run_other(const char* const* argv, std::FILE* err);

}  // namespace lms::tool
