#include "lab/train/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

#include "lab/train/journal.h"

namespace lms::train {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

}  // namespace

RunFolder::RunFolder(std::string path, std::int64_t keep) : path_(std::move(path)), keep_(keep) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) throw StateError(path_ + ": cannot be made: " + error.message());
  if (::access(path_.c_str(), W_OK) != 0) {
    throw StateError(path_ + ": cannot be written to: " + std::strerror(errno));
  }
}

std::string RunFolder::checkpoint(std::int64_t step) const {
  std::array<char, 32> name = {};
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(step));
  return file(name.data()) + std::string(kSuffix);
}

std::vector<std::int64_t> RunFolder::steps() const {
  std::vector<std::int64_t> found;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    std::int64_t step = 0;
    const char* begin = name.data() + kPrefix.size();
    const char* end = name.data() + name.size() - kSuffix.size();
    if (std::from_chars(begin, end, step).ptr == end) found.push_back(step);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

bool RunFolder::has_run() const {
  return !steps().empty() || std::filesystem::exists(journal() + "-0.safetensors") ||
         std::filesystem::exists(journal() + "-1.safetensors");
}

void RunFolder::save(const State& state, bool best) const {
  const std::int64_t step = std::stoll(state.fact("step"));
  const std::string path = checkpoint(step);
  if (best) {
    // The best is first: a checkpoint that remembers having been the best is never without it.
    const std::string name = file("best.safetensors");
    const std::string link = path + ".part";
    save_state(name, state);
    ::unlink(link.c_str());
    if (::link(name.c_str(), link.c_str()) != 0) {
      save_state(path, state);  // a file system without hard links
    } else if (::rename(link.c_str(), path.c_str()) != 0) {
      throw StateError(path + ": cannot be replaced: " + std::strerror(errno));
    }
  } else {
    save_state(path, state);
  }
  const auto all = steps();
  for (std::size_t i = static_cast<std::size_t>(keep_); i < all.size(); ++i) {
    if (all[i] != step) ::unlink(checkpoint(all[i]).c_str());
  }
}

std::optional<State> RunFolder::newest(std::vector<std::string>* notes) const {
  std::optional<State> best = Journal::latest(journal());
  const auto all = steps();
  for (const std::int64_t step : all) {
    if (best && std::stoll(best->fact("step")) >= step) break;
    try {
      best = load_state(checkpoint(step));
      break;
    } catch (const StateError& error) {
      notes->push_back(error.what());
    }
  }
  if (!best && !all.empty()) {
    throw StateError(path_ + ": no checkpoint is whole: " + notes->front());
  }
  return best;
}

void RunFolder::clear() const {
  for (const std::int64_t step : steps()) ::unlink(checkpoint(step).c_str());
  ::unlink(file("best.safetensors").c_str());
  Journal::remove(journal());
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      ::unlink(entry.path().c_str());
    }
  }
}

}  // namespace lms::train
