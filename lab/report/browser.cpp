#include "lab/report/browser.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

namespace lms::report {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{30};
constexpr const char* kNames[] = {"chromium", "chromium-browser", "google-chrome-stable",
                                  "google-chrome", "chrome-headless-shell"};

/// A folder for the browser's own files, removed in the end.
class Profile {
 public:
  Profile() {
    std::string name = (fs::temp_directory_path() / "lms-report-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~Profile() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;
  Profile(Profile&&) = delete;
  Profile& operator=(Profile&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// "file:" with all escaped that a URL gives a meaning to.
std::string url_of(const std::string& path) {
  constexpr const char* kHex = "0123456789ABCDEF";
  std::string url = "file://";
  for (const char letter : fs::absolute(path).string()) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0 || std::strchr("/-_.~", letter) != nullptr) {
      url += letter;
    } else {
      url += {'%', kHex[byte >> 4U], kHex[byte & 15U]};
    }
  }
  return url;
}

/// What went wrong with the process, or nothing.
std::string wait_for(pid_t child) {
  const auto deadline = Clock::now() + kPatience;
  int status = 0;
  pid_t done = 0;
  while (done == 0 && Clock::now() < deadline) {
    done = ::waitpid(child, &status, WNOHANG);
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (done == 0) {
    ::kill(-child, SIGKILL);
    ::waitpid(child, &status, 0);
    return "did not end in time";
  }
  if (done < 0) return std::string("was lost: ") + std::strerror(errno);
  if (WIFSIGNALED(status)) return "ended with signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "failed, with status " + std::to_string(WEXITSTATUS(status));
  return {};
}

}  // namespace

std::optional<std::string> find_chromium() {
  if (const char* given = std::getenv("LMS_CHROMIUM"); given != nullptr && *given != '\0') {
    return ::access(given, X_OK) == 0 ? std::optional<std::string>(given) : std::nullopt;
  }
  const char* path = std::getenv("PATH");
  for (const char* name : kNames) {
    std::istringstream folders(path != nullptr ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::string file = folder + "/" + name;
      if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return std::nullopt;
}

std::string render(const std::string& chromium, const std::string& svg, const std::string& png,
                   int width, int height) {
  const Profile profile;
  if (profile.path().empty()) return "no folder for temporary files could be made";
  std::error_code ignored;
  fs::remove(png, ignored);
  std::vector<std::string> words = {
      chromium,
      "--headless",
      "--disable-gpu",
      "--no-first-run",
      "--disable-background-networking",
      "--hide-scrollbars",
      "--force-device-scale-factor=2",
      "--default-background-color=00000000",
      "--user-data-dir=" + profile.path(),
      "--window-size=" + std::to_string(width) + "," + std::to_string(height),
      "--screenshot=" + fs::absolute(png).string(),
  };
  // Chromium refuses to run as root inside its own sandbox; the picture is ours.
  if (::geteuid() == 0) words.emplace_back("--no-sandbox");
  words.push_back(url_of(svg));
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_RDWR, 0);
  }
  // A group of its own: the browser's helpers end with it.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  const int error =
      ::posix_spawn(&child, chromium.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return chromium + " cannot be run: " + std::strerror(error);
  std::string problem = wait_for(child);
  if (problem.empty() && !fs::exists(png, ignored)) problem = "wrote no picture";
  if (problem.empty()) return {};
  fs::remove(png, ignored);
  return chromium + " " + problem;
}

}  // namespace lms::report
