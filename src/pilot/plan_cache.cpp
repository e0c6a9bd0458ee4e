#include "pilot/plan_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lms {
namespace {

constexpr std::string_view kEnding = ".json.gz";
/// Of files that a writer has not finished, and never will if they are as old as this.
constexpr std::string_view kUnfinished = ".tmp.gz";
constexpr std::time_t kGivenUpSeconds = 3600;
/// A plan for less room than this part of what there is would waste the rest.
constexpr double kLeastRoom = 0.98;

/// Two independent 64-bit hashes of a stream of numbers.
class Digest {
 public:
  void add(std::uint64_t value) {
    a_ = mixed(a_ ^ value);
    b_ = mixed(b_ + std::rotl(value, 32) + kStep);
  }
  void add(std::string_view text) {
    add(text.size());
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  template <typename Range>
  void add_all(const Range& values) {
    add(std::ranges::size(values));
    for (const auto value : values) add(static_cast<std::uint64_t>(value));
  }
  [[nodiscard]] std::string text() const {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string digits;
    for (const std::uint64_t half : {a_, b_}) {
      for (unsigned shift = 64; shift > 0; shift -= 4) {
        digits += kDigits[(half >> (shift - 4)) & 0xF];
      }
    }
    return digits;
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;

  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
    x = (x ^ (x >> 29)) * kStep;
    return x ^ (x >> 32);
  }

  std::uint64_t a_ = 1;
  std::uint64_t b_ = 2;
};

void add_operator(const StepShape::Operator& seen, const TraceOperator& op, Digest& digest) {
  digest.add(seen.key);
  digest.add(seen.touches.size());
  for (const auto& touch : seen.touches) digest.add(touch.block * 2 + (touch.writes ? 1 : 0));
  digest.add(seen.allocations.size());
  for (const auto& allocation : seen.allocations) {
    digest.add(static_cast<std::uint64_t>(allocation.block));
    digest.add(static_cast<std::uint64_t>(allocation.bytes) * 2 + (allocation.inside ? 1 : 0));
  }
  digest.add_all(op.reads);
  digest.add_all(op.writes);
  digest.add_all(op.allocs);
  digest.add_all(op.frees);
  digest.add_all(op.spared);
  digest.add(static_cast<std::uint64_t>(op.workspace));
  digest.add(op.repeatable ? 1 : 0);
  digest.add(op.temporaries.size());
  for (const TraceTemporary& temporary : op.temporaries) {
    digest.add(static_cast<std::uint64_t>(temporary.bytes));
    digest.add(std::uint64_t{temporary.begin} << 32U | temporary.end);
  }
}

struct File {
  std::string path;
  Bytes bytes = 0;
  std::pair<std::time_t, long> used;  ///< seconds and nanoseconds
};

/// All files of the folder whose names end in `ending`.
std::vector<File> files_in(const std::string& folder, std::string_view ending) {
  std::vector<File> files;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(folder.c_str()), &closedir);
  if (!listing) return files;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the listing is this function's own
  while (const dirent* entry = readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (!name.ends_with(ending)) continue;
    std::string path = folder + '/' + std::string(name);
    struct stat facts = {};
    if (stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) continue;
    files.push_back(
        {std::move(path), facts.st_size, {facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec}});
  }
  return files;
}

/// The room in the name of a plan's file; nothing if it is another's.
std::optional<Bytes> room_in(std::string_view path, std::string_view key) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  if (!name.starts_with(key) || !name.ends_with(kEnding)) return std::nullopt;
  name.remove_prefix(key.size());
  name.remove_suffix(kEnding.size());
  Bytes room = 0;
  if (!name.starts_with('-')) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), room);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return room;
}

/// Makes a folder, and those above it. False, with errno, if it is not there then.
bool make_folder(const std::string& folder) {
  constexpr mode_t kOwnerOnly = 0700;
  if (mkdir(folder.c_str(), kOwnerOnly) == 0 || errno == EEXIST) return true;
  const std::size_t above = folder.rfind('/');
  if (errno != ENOENT || above == std::string::npos || above == 0) return false;
  if (!make_folder(folder.substr(0, above))) return false;
  return mkdir(folder.c_str(), kOwnerOnly) == 0 || errno == EEXIST;
}

std::string variable(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody changes the environment in the library
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string plan_key(const StepShape& shape, Bytes page, bool recompute) {
  Digest digest;
  digest.add(LMS_VERSION);
  digest.add(kPlanFileVersion);
  digest.add(kPlanVersion);
  digest.add(kTraceVersion);
  digest.add(static_cast<std::uint64_t>(page));
  digest.add(recompute ? 1 : 0);
  digest.add(shape.trace.blocks.size());
  for (const TraceBlock& block : shape.trace.blocks) {
    digest.add(static_cast<std::uint64_t>(block.bytes));
    digest.add((block.born_in_step ? 1U : 0U) + (block.movable ? 2U : 0U));
    digest.add(static_cast<std::uint64_t>(block.carried_from));
  }
  digest.add(shape.operators.size());
  for (std::size_t i = 0; i < shape.operators.size(); ++i) {
    add_operator(shape.operators[i], shape.trace.operators[i], digest);
  }
  return digest.text();
}

PlanCache::PlanCache(std::string folder, Bytes most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes) {}

std::string PlanCache::default_folder() {
  // A relative path is to be ignored, says the XDG Base Directory Specification.
  std::string base = variable("XDG_CACHE_HOME");
  if (!base.starts_with('/')) {
    base = variable("HOME");
    if (!base.starts_with('/')) return {};
    base += "/.cache";
  }
  return base + "/lms/plans";
}

std::optional<SavedPlan> PlanCache::find(const std::string& key, const Trace& trace, Bytes room) {
  why_.clear();
  if (folder_.empty()) return std::nullopt;
  std::vector<std::pair<Bytes, std::string>> found;
  for (const File& file : files_in(folder_, kEnding)) {
    const auto its_room = room_in(file.path, key);
    if (!its_room || *its_room > room) continue;
    if (static_cast<double>(*its_room) < kLeastRoom * static_cast<double>(room)) continue;
    found.emplace_back(*its_room, file.path);
  }
  std::ranges::sort(found, std::greater());
  for (const auto& [its_room, path] : found) {
    try {
      SavedPlan plan = load_plan(path);
      if (plan.key != key || plan.room != its_room) {
        why_ = path + " is another step's plan";
      } else if (const auto wrong = misfit(plan, trace, room)) {
        why_ = path + " does not fit: " + *wrong;
      } else {
        utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
        why_.clear();
        return plan;
      }
    } catch (const Error& error) {
      why_ = error.what();
    }
    unlink(path.c_str());
  }
  return std::nullopt;
}

bool PlanCache::keep(const SavedPlan& plan) {
  why_.clear();
  if (folder_.empty()) return false;
  if (plan.key.empty() || plan.key.find('/') != std::string::npos) {
    why_ = "\"" + plan.key + "\" is no name of a plan";
    return false;
  }
  if (!make_folder(folder_)) {
    why_ = "cannot make " + folder_ + ": " + std::strerror(errno);
    return false;
  }
  const std::string path =
      folder_ + '/' + plan.key + '-' + std::to_string(plan.room) + std::string(kEnding);
  try {
    save_plan(plan, path);
  } catch (const Error& error) {
    why_ = error.what();
    return false;
  }
  prune(path);
  return true;
}

void PlanCache::prune(const std::string& newest) {
  const std::time_t now = std::time(nullptr);
  for (const File& file : files_in(folder_, kUnfinished)) {
    if (file.used.first + kGivenUpSeconds < now) unlink(file.path.c_str());
  }
  std::vector<File> files = files_in(folder_, kEnding);
  std::ranges::sort(files, {}, &File::used);
  Bytes bytes = 0;
  for (const File& file : files) bytes += file.bytes;
  for (const File& file : files) {
    if (bytes <= most_bytes_) return;
    // Nothing is gained by making room for what is then gone itself.
    if (file.path == newest) continue;
    unlink(file.path.c_str());
    bytes -= file.bytes;
  }
}

}  // namespace lms
