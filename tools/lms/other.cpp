#include "tools/lms/other.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "tools/lms/tool.h"

namespace lms::tool {
namespace {

constexpr std::array<std::string_view, 3> kCommands = {"train", "eval", "predict"};

}  // namespace

bool is_other(std::string_view command) {
  return std::find(kCommands.begin(), kCommands.end(), command) != kCommands.end();
}

int run_other(const char* const* argv, std::FILE* err) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "lms-train").string();
  ::execv(program.c_str(), const_cast<char* const*>(argv));
  if (errno == ENOENT) {
    std::fprintf(err,
                 "lms: '%s' is a command of the program lms-train, which is not beside this one "
                 "(%s).\nIt is built with PyTorch, libjpeg-turbo, libspng, nifti_clib and toml++: "
                 "configure with -DLMS_STUDIES=ON to see what is missing.\n",
                 argv[1], program.c_str());
  } else {
    std::fprintf(err, "lms: %s cannot be run: %s\n", program.c_str(), std::strerror(errno));
  }
  return kFailed;
}

}  // namespace lms::tool
