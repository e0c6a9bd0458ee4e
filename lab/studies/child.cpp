#include "lab/studies/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace lms::studies {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr double kGrace = 2;
constexpr int kNotStarted = 127;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int exit_status(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& arguments, const std::string& output,
                      double seconds, const std::function<bool()>& stop) {
  // All that allocates comes before the fork.
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const auto begin = Clock::now();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw Error(std::string("cannot start a process: ") + std::strerror(errno));
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kNotStarted);
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0) {
      ::dup2(file, STDOUT_FILENO);
      ::dup2(file, STDERR_FILENO);
    }
    ::execv(argv[0], argv.data());
    ::_exit(kNotStarted);
  }
  ::setpgid(child, child);
  ChildResult result;
  bool asked = false;
  bool killed = false;
  Clock::time_point when_asked;
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) {
      result.status = exit_status(status);
      break;
    }
    if (ended < 0 && errno != EINTR) break;
    if (!asked) {
      result.timed_out = since(begin) >= seconds;
      result.stopped = !result.timed_out && stop && stop();
      if (result.timed_out || result.stopped) {
        ::kill(-child, SIGTERM);
        asked = true;
        when_asked = Clock::now();
      }
    } else if (!killed && since(when_asked) >= kGrace) {
      ::kill(-child, SIGKILL);
      killed = true;
    }
    std::this_thread::sleep_for(kPoll);
  }
  ::kill(-child, SIGKILL);  // what it may have left
  result.seconds = since(begin);
  if (result.status == kNotStarted) throw Error(arguments.at(0) + " cannot be run");
  return result;
}

std::string tail_of(const std::string& path, std::size_t most) {
  std::ifstream file(path);
  if (!file) return "";
  std::ostringstream text;
  text << file.rdbuf();
  std::string all = text.str();
  while (!all.empty() && all.back() == '\n') all.pop_back();
  if (all.size() <= most) return all;
  all = all.substr(all.size() - most);
  const std::size_t line = all.find('\n');
  return line == std::string::npos ? all : all.substr(line + 1);
}

}  // namespace lms::studies
