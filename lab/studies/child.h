#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lms::studies {

struct ChildResult {
  bool timed_out = false;
  bool stopped = false;  ///< because `stop` said so
  int status = -1;       ///< exit status; 128 + signal where that ended it
  double seconds = 0;
};

/// Runs a program with its output in a file, and waits. After `seconds`, or when `stop` says so, it
/// is ended (asked first, killed two seconds later), with all processes of its group. It does not
/// outlive this process. Throws lms::Error where it cannot be started.
ChildResult run_child(const std::vector<std::string>& arguments, const std::string& output,
                      double seconds, const std::function<bool()>& stop = {});

/// The last lines of a text file, at most that many characters; "" where there is none.
std::string tail_of(const std::string& path, std::size_t most = 600);

}  // namespace lms::studies
