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

struct Command {
  std::string_view name;
  const char* program;  ///< that has it; nullptr: this one
  std::string_view about;
};

constexpr const char* kPython = "python -m torch_lms";

constexpr Command kCommands[] = {
    {"plan", nullptr, "does a recorded step fit under a limit, and how fast?"},
    {"trace", nullptr, "what is in a recorded step"},
    {"report", nullptr, "one HTML page of measured runs"},
    {"top", nullptr, "running programs under LMS: memory, copies, planned or not"},
    {"run", kPython, "a Python program under LMS: lms run --limit 12GiB train.py"},
    {"doctor", kPython, "versions, rates and limits of this machine, and a self-test"},
    {"train", "lms-train", "train a model from a recipe"},
    {"eval", "lms-train", "evaluate a trained model"},
    {"predict", "lms-train", "predictions of a trained model"},
    {"bench", "lms-bench", "measure studies: the largest sizes and what they cost"},
};

const Command* find(std::string_view name) {
  const auto* found = std::ranges::find(kCommands, name, &Command::name);
  return found == std::end(kCommands) ? nullptr : found;
}

}  // namespace

bool is_command(std::string_view name) { return find(name) != nullptr; }

bool is_other(std::string_view command) {
  const Command* found = find(command);
  return found != nullptr && found->program != nullptr;
}

std::string list_of_commands() {
  std::string text;
  for (const Command& command : kCommands) {
    text.append("  ").append(command.name);
    text.append(10 - command.name.size(), ' ').append(command.about).append("\n");
  }
  return text;
}

std::string no_such_command(std::string_view command) {
  std::string text = "lms: ";
  if (command.empty()) {
    text += "a command is missing";
  } else {
    text.append("there is no command '").append(command).append("'");
  }
  return text + ". There are:\n" + list_of_commands() + "lms COMMAND --help says more of each.\n";
}

int run_other(const char* const* argv, std::FILE* err) {
  const char* name = find(argv[1])->program;
  if (name == kPython) {
    std::fprintf(err, "lms: '%s' is a command of the Python package: %s%s%s\n", argv[1], name,
                 argv[1] == std::string_view("run") ? " run --limit 12GiB train.py" : "",
                 " (pip installs it, and a program lms that has this command)");
    return kFailed;
  }
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    // A bare name would be that of a program in the current folder.
    std::fprintf(err, "lms: /proc/self/exe cannot be read: %s\n", error.message().c_str());
    return kFailed;
  }
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
