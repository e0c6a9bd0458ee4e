#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace lms::tool {

bool is_command(std::string_view name);

/// Is the command one of another program: of one beside this one (train, eval and predict of
/// lms-train, bench of lms-bench), or of the Python package (run, doctor)?
bool is_other(std::string_view command);

/// Becomes the program of the command argv[1] that lies beside this one, with the same arguments.
/// Returns only where that cannot be, or the command is Python's: with an exit status, after saying
/// so on `err`.
int run_other(const char* const* argv, std::FILE* err);

/// Every command of `lms`, of this program and of others, each with a line about it.
std::string list_of_commands();

/// What is wrong with a command that there is not ("" where none was given), and which there are.
std::string no_such_command(std::string_view command);

}  // namespace lms::tool
