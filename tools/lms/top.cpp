#include "tools/lms/top.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "tools/lms/processes.h"
#include "tools/lms/text.h"
#include "tools/lms/tool.h"

namespace lms::tool {
namespace {

constexpr std::chrono::seconds kEvery{1};
constexpr double kSilent = 5;                    ///< seconds
constexpr const char* kClear = "\x1b[H\x1b[2J";  ///< of the terminal
constexpr std::size_t kAmount = 12;              ///< widths of columns
constexpr std::size_t kPid = 8;
constexpr std::size_t kDevice = 8;

std::string line(const std::string& pid, const std::string& device, const std::string& limit,
                 const std::string& on_device, const std::string& below, const std::string& out,
                 const std::string& in, const std::string& step, const std::string& predicted,
                 const std::string& state) {
  std::string text = right(pid, kPid) + "  " + padded(device, kDevice);
  for (const std::string& column : {limit, on_device, below, out, in, step, predicted}) {
    text += right(column, kAmount);
  }
  return text + "  " + state + '\n';
}

std::string rate(const std::optional<double>& per_s) {
  return per_s ? format_bytes(static_cast<Bytes>(*per_s)) + "/s" : "";
}

std::string line(const std::string& pid, const WatchedDevice& device) {
  return line(pid, device.name, format_bytes(device.limit), format_bytes(device.on_device),
              format_bytes(device.below), rate(device.out_per_s), rate(device.in_per_s),
              device.step_ms ? format_ms(*device.step_ms) : "",
              device.predicted_ms > 0 ? format_ms(device.predicted_ms) : "", device.state);
}

/// Lines cut to the terminal's width.
std::string fitted(const std::string& text, std::size_t width) {
  std::string cut;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    cut += text.substr(begin, std::min(end - begin, width)) + '\n';
    begin = end + 1;
  }
  return cut;
}

std::size_t width_of(std::FILE* terminal) {
  winsize size{};
  const bool known = ::ioctl(::fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

std::string processes_text(const std::vector<WatchedProcess>& processes) {
  if (processes.empty()) {
    return "No process of this user is watched. To be seen, start it with LMS_MONITOR=1, lms run "
           "--monitor on, or enable(monitor=True).\n";
  }
  std::string text = line("pid", "device", "limit", "on device", "below", "out", "in", "step",
                          "predicted", "plan");
  for (const WatchedProcess& process : processes) {
    const std::string pid = std::to_string(process.pid);
    for (std::size_t at = 0; at < process.devices.size(); ++at) {
      text += line(at == 0 ? pid : "", process.devices[at]);
    }
    if (process.devices.empty()) text += right(pid, kPid) + "  manages nothing\n";
    text += std::string(kPid + 2, ' ') + process.command;
    if (process.age_s > kSilent) text += format("  (silent for %.0f s)", process.age_s);
    text += '\n';
  }
  return text;
}

int top(const TopRequest& request, std::FILE* out) {
  if (request.json) {
    std::fputs(processes_json(watched_processes(monitor_folders())).c_str(), out);
    return kFits;
  }
  const bool live = !request.once && ::isatty(::fileno(out)) == 1;
  do {
    const std::string text = processes_text(watched_processes(monitor_folders()));
    std::fputs(live ? (kClear + fitted(text, width_of(out))).c_str() : text.c_str(), out);
    std::fflush(out);
    if (live) std::this_thread::sleep_for(kEvery);
  } while (live && std::ferror(out) == 0);
  return kFits;
}

}  // namespace lms::tool
