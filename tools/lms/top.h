#pragma once

#include <cstdio>

namespace lms::tool {

struct TopRequest {
  bool once = false;  ///< also where `out` is no terminal
  bool json = false;  ///< once, for programs
};

/// `lms top`: the processes of this user that are watched, each second anew until it is
/// interrupted.
int top(const TopRequest& request, std::FILE* out);

}  // namespace lms::tool
