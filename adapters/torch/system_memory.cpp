#include "adapters/torch/system_memory.h"

#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text_file.h"

namespace lms::torch {
namespace {

/// The number that a cgroup file holds; nothing for "max" or where there is no such file.
std::optional<Bytes> read_number(const std::string& path) {
  const auto text = read_text_file(path);
  if (!text || text->empty() || (*text)[0] < '0' || (*text)[0] > '9') return std::nullopt;
  return std::strtoll(text->c_str(), nullptr, 10);
}

/// What the process's cgroup (version 2, and its ancestors) still allows.
std::optional<Bytes> cgroup_headroom() {
  const std::string text = read_text_file("/proc/self/cgroup").value_or("");
  const std::size_t line = text.starts_with("0::") ? 0 : text.find("\n0::");
  if (line == std::string::npos) return std::nullopt;
  const std::size_t begin = text.find("::", line) + 2;
  std::string path = text.substr(begin, text.find('\n', begin) - begin);
  std::optional<Bytes> least;
  for (;;) {
    const std::string folder = "/sys/fs/cgroup" + path;
    const auto limit = read_number(folder + "/memory.max");
    const auto used = read_number(folder + "/memory.current");
    if (limit && used) least = std::min(least.value_or(*limit - *used), *limit - *used);
    if (path.empty() || path == "/") return least;
    path.resize(path.find_last_of('/'));
  }
}

}  // namespace

Bytes available_memory() {
  const std::string facts = read_text_file("/proc/meminfo").value_or("");
  static constexpr std::string_view kKey = "MemAvailable:";
  Bytes available = 0;
  if (const std::size_t at = facts.find(kKey); at != std::string::npos) {
    available = std::strtoll(facts.c_str() + at + kKey.size(), nullptr, 10) * kKiB;
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

namespace {

/// Processes of one job on this machine, as their launcher says; 1 where none does.
Bytes processes_here() {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const char* const text = std::getenv(name);
    const Bytes count = text != nullptr ? std::strtoll(text, nullptr, 10) : 0;
    if (count > 0) return count;
  }
  return 1;
}

}  // namespace

Bytes default_host_limit() { return available_memory() / 5 * 4 / processes_here(); }

Bytes default_file_limit(const std::string& directory) {
  return free_disk(directory) / 10 * 9 / processes_here();
}

std::string default_directory() {
  // As torch_lms._settings.default_directory().
  const char* temporary = std::getenv("TMPDIR");
  const std::string given = temporary != nullptr ? temporary : "";
  for (const std::string& candidate : {given, std::string("/var/tmp"), std::string(".")}) {
    struct statfs facts {};
    if (candidate.empty() || statfs(candidate.c_str(), &facts) != 0) continue;
    if (::access(candidate.c_str(), W_OK | X_OK) != 0) continue;
    if (facts.f_type != TMPFS_MAGIC && facts.f_type != RAMFS_MAGIC) return candidate;
  }
  return given.empty() ? "/tmp" : given;
}

}  // namespace lms::torch
