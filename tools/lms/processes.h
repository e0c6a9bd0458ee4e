#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace lms::tool {

/// What a process has said of a device that it manages.
struct WatchedDevice {
  std::string name;
  std::string state;  ///< "planned", or why not
  Bytes limit = 0;
  Bytes on_device = 0;
  Bytes below = 0;                  ///< in host memory, or in the file
  std::optional<double> out_per_s;  ///< bytes a second; none after one sample alone
  std::optional<double> in_per_s;
  std::optional<double> step_ms;  ///< of steps under the present plan; none if too few have ended
  double predicted_ms = 0;        ///< 0: no plan has been followed
  std::int64_t planned_steps = 0;
};

struct WatchedProcess {
  int pid = 0;
  std::string command;
  double age_s = 0;  ///< of what it has said
  std::vector<WatchedDevice> devices;
};

/// Where processes of this user that are watched (enable(monitor=True)) write:
/// python/torch_lms/_monitor.py.
std::vector<std::filesystem::path> monitor_folders();

/// Those that run, by number. Files of others, and what is no sample, are passed over; those of
/// processes that have ended without removing them are removed.
std::vector<WatchedProcess> watched_processes(const std::vector<std::filesystem::path>& folders);

/// A table; of "nothing" it says how to be seen.
std::string processes_text(const std::vector<WatchedProcess>& processes);

/// "format": "lms-processes", "version": 1. What is not known is null.
std::string processes_json(const std::vector<WatchedProcess>& processes);

}  // namespace lms::tool
