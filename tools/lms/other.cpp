#include "tools/lms/other.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>

#include "tools/lms/tool.h"

namespace lms::tool {
namespace {

struct Other {
  std::string_view command;
  const char* program;
};

constexpr Other kOthers[] = {
    {"train", "lms-train"},
    {"eval", "lms-train"},
    {"predict", "lms-train"},
    {"bench", "lms-bench"},
};

const Other* find(std::string_view command) {
  const auto* found = std::ranges::find(kOthers, command, &Other::command);
  return found == std::end(kOthers) ? nullptr : found;
}

}  // namespace

bool is_other(std::string_view command) { return find(command) != nullptr; }

int run_other(const char* const* argv, std::FILE* err) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    // A bare name would be that of a program in the current folder.
    std::fprintf(err, "lms: /proc/self/exe cannot be read: %s\n", error.message().c_str());
    return kFailed;
  }
  const char* name = find(argv[1])->program;
  const std::string program = (self.parent_path() / name).string();
  ::execv(program.c_str(), const_cast<char* const*>(argv));
  if (errno == ENOENT) {
    std::fprintf(err,
                 "lms: '%s' is a command of the program %s, which is not beside this one "
                 "(%s).\nIt is built with PyTorch, libjpeg-turbo, libspng, nifti_clib and toml++: "
                 "configure with -DLMS_STUDIES=ON to see what is missing.\n",
                 argv[1], name, program.c_str());
  } else {
    std::fprintf(err, "lms: %s cannot be run: %s\n", program.c_str(), std::strerror(errno));
  }
  return kFailed;
}

}  // namespace lms::tool
