#include "tools/lms/processes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

namespace lms::tool {
namespace {

namespace fs = std::filesystem;
using Input = nlohmann::json;

/// A process that lives, in another container perhaps, writes each second.
constexpr std::chrono::seconds kDeadAfter{10};
constexpr std::size_t kMostBytes = 1U << 20;

/// A folder, no link, of this user.
bool is_own_folder(const fs::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid();
}

/// PID of "PID.json", and of "PID.json.new" that was left half-written; 0 of anything else.
int pid_of(const std::string& name) {
  int pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  const std::string rest(end, name.data() + name.size());
  return error == std::errc() && (rest == ".json" || rest == ".json.new") ? pid : 0;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

/// When the process began, as /proc/PID/stat has it in its 22nd field; -1 if there is none.
std::int64_t started(int pid) {
  const std::string text = text_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return -1;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int at = 3; at < 22; ++at) fields >> field;
  std::int64_t ticks = -1;
  fields >> ticks;
  return fields ? ticks : -1;
}

/// For a terminal: nothing that it would obey.
std::string printable(std::string text) {
  for (char& letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code < 0x20 || code == 0x7f) letter = '?';
  }
  return text;
}

std::string command_of(const Input& words) {
  std::string command;
  for (const Input& word : words) {
    const auto text = word.get<std::string>();
    command += command.empty() ? fs::path(text).filename().string() : " " + text;
  }
  return printable(command);
}

std::optional<double> number(const Input& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

WatchedDevice device_of(const Input& json) {
  const Input& stats = json.at("stats");
  const auto count = [&](const char* key) { return stats.value(key, std::int64_t{0}); };
  return {.name = printable(json.at("device").get<std::string>()),
          .state = printable(json.at("state").get<std::string>()),
          .limit = count("limit"),
          .on_device = count("device.bytes.current"),
          .below = count("host.bytes.current") + count("file.bytes.current"),
          .out_per_s = number(json, "out_per_s"),
          .in_per_s = number(json, "in_per_s"),
          .step_ms = number(json, "step_ms"),
          .predicted_ms = static_cast<double>(count("plan.predicted_us")) / 1e3,
          .planned_steps = count("plan.steps")};
}

std::optional<WatchedProcess> read(const fs::path& path, int pid) {
  try {
    const Input json = Input::parse(text_of(path));
    if (json.at("format") != "lms-monitor" || json.at("version") != 1) return std::nullopt;
    if (json.at("pid") != pid || json.at("started") != started(pid)) return std::nullopt;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    WatchedProcess process{.pid = pid,
                           .command = command_of(json.at("command")),
                           .age_s = std::max(0.0, std::chrono::duration<double>(now).count() -
                                                      json.at("time").get<double>()),
                           .devices = {}};
    for (const Input& device : json.at("devices")) process.devices.push_back(device_of(device));
    return process;
  } catch (const Input::exception&) {
    return std::nullopt;
  }
}

/// Without an error: another lms top may have been quicker.
void remove_if_dead(const fs::path& path, int pid) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  if (error || fs::file_time_type::clock::now() - written < kDeadAfter) return;
  std::int64_t said = -1;
  try {
    said = Input::parse(text_of(path)).at("started").get<std::int64_t>();
  } catch (const Input::exception&) {
    said = -1;  // half a sample: it counts as the present process's, if there is one
  }
  const std::int64_t now = started(pid);
  if (now < 0 || (said >= 0 && said != now)) fs::remove(path, error);
}

}  // namespace

std::vector<fs::path> monitor_folders() {
  const std::string user = std::to_string(::geteuid());
  std::vector<fs::path> folders = {"/run/user/" + user + "/lms", "/tmp/lms-" + user};
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') {
    const fs::path own = fs::path(runtime) / "lms";
    if (own != folders.front()) folders.insert(folders.begin(), own);
  }
  return folders;
}

std::vector<WatchedProcess> watched_processes(const std::vector<fs::path>& folders) {
  std::vector<WatchedProcess> processes;
  for (const fs::path& folder : folders) {
    if (!is_own_folder(folder)) continue;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      const int pid = pid_of(name);
      if (pid <= 0) continue;
      std::optional<WatchedProcess> process;
      if (name.ends_with(".json")) process = read(entry.path(), pid);
      if (process) {
        processes.push_back(std::move(*process));
      } else {
        remove_if_dead(entry.path(), pid);
      }
    }
  }
  std::ranges::sort(processes, {}, &WatchedProcess::pid);
  return processes;
}

std::string processes_json(const std::vector<WatchedProcess>& processes) {
  using Ordered = nlohmann::ordered_json;
  const auto known = [](const std::optional<double>& value) {
    return value ? Ordered(*value) : Ordered(nullptr);
  };
  Ordered list = Ordered::array();
  for (const WatchedProcess& process : processes) {
    Ordered devices = Ordered::array();
    for (const WatchedDevice& device : process.devices) {
      devices.push_back({{"device", device.name},
                         {"state", device.state},
                         {"limit", device.limit},
                         {"on_device", device.on_device},
                         {"below", device.below},
                         {"out_per_s", known(device.out_per_s)},
                         {"in_per_s", known(device.in_per_s)},
                         {"step_ms", known(device.step_ms)},
                         {"predicted_ms", device.predicted_ms > 0 ? Ordered(device.predicted_ms)
                                                                  : Ordered(nullptr)},
                         {"planned_steps", device.planned_steps}});
    }
    list.push_back({{"pid", process.pid},
                    {"command", process.command},
                    {"age_s", process.age_s},
                    {"devices", devices}});
  }
  const Ordered json = {{"format", "lms-processes"}, {"version", 1}, {"processes", list}};
  return json.dump(2, ' ', false, Ordered::error_handler_t::replace) + '\n';
}

}  // namespace lms::tool
