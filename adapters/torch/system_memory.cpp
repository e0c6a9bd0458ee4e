#include "adapters/torch/system_memory.h"

#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/error.h"

namespace lms::torch {
namespace {

/// A cgroup file that holds one number; nothing for "max" or where there is no such file.
std::optional<Bytes> read_number(const std::string& path) {
  std::ifstream file(path);
  Bytes value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

/// What the process's cgroup (version 2, and its ancestors) still allows.
std::optional<Bytes> cgroup_headroom() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::optional<Bytes> least;
  while (std::getline(file, line)) {
    if (!line.starts_with("0::")) continue;
    std::string path = line.substr(3);
    for (;;) {
      const std::string folder = "/sys/fs/cgroup" + path;
      const auto limit = read_number(folder + "/memory.max");
      const auto used = read_number(folder + "/memory.current");
      if (limit && used) least = std::min(least.value_or(*limit - *used), *limit - *used);
      if (path.empty() || path == "/") break;
      path.resize(path.find_last_of('/'));
    }
  }
  return least;
}

}  // namespace

Bytes available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  Bytes available = 0;
  for (Bytes kilobytes = 0; file >> key >> kilobytes; file.ignore(64, '\n')) {
    if (key == "MemAvailable:") available = kilobytes * kKiB;
  }
  if (const auto headroom = cgroup_headroom()) available = std::min(available, *headroom);
  return std::max<Bytes>(available, 0);
}

Bytes free_disk(const std::string& directory) {
  struct statvfs facts {};
  if (statvfs(directory.c_str(), &facts) != 0) {
    throw BadSetting("LMS: directory \"" + directory +
                     "\" for the file tier does not exist or cannot be read; set LMS_DIR to a "
                     "folder on a local disk");
  }
  return static_cast<Bytes>(facts.f_bavail) * static_cast<Bytes>(facts.f_frsize);
}

std::string default_directory() {
  const char* temporary = std::getenv("TMPDIR");
  for (const std::string& candidate :
       {std::string(temporary != nullptr ? temporary : ""), std::string("/var/tmp"),
        std::string("/tmp"), std::string(".")}) {
    struct statfs facts {};
    if (candidate.empty() || statfs(candidate.c_str(), &facts) != 0) continue;
    if (facts.f_type != TMPFS_MAGIC) return candidate;
  }
  throw BadSetting(
      "LMS: no folder on a disk was found for the file tier ($TMPDIR, /var/tmp, /tmp and the "
      "working directory are kept in memory); set LMS_DIR to one");
}

}  // namespace lms::torch
