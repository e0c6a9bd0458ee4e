#include "adapters/torch/errors.h"

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace lms::torch {
namespace {

constexpr std::size_t kRemembered = 8;

struct Needs {
  std::mutex mutex;
  std::deque<std::pair<std::string, Need>> last;  ///< the newest first
};

Needs& needs() {
  static Needs all;
  return all;
}

}  // namespace

bool is_shortage(const std::exception& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const Shortage*>(&error) != nullptr;
}

bool found_no_room(const std::exception& error) {
  return is_shortage(error) || dynamic_cast<const OutOfMemory*>(&error) != nullptr ||
         dynamic_cast<const TierFull*>(&error) != nullptr;
}

void remember_need(const std::string& error, Need need) {
  Needs& all = needs();
  const std::lock_guard lock(all.mutex);
  all.last.emplace_front(error, std::move(need));
  if (all.last.size() > kRemembered) all.last.pop_back();
}

std::optional<Need> need_of(const std::string& error) {
  Needs& all = needs();
  const std::lock_guard lock(all.mutex);
  for (const auto& [text, need] : all.last) {
    if (error.find(text) != std::string::npos) return need;
  }
  return std::nullopt;
}

}  // namespace lms::torch
