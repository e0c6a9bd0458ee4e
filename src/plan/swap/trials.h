#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "plan/planned_step.h"
#include "plan/swap/gaps.h"
#include "trace/trace.h"

namespace lms {

/// The trials of a search: how many there are time for, and what they do at random. Begins when it
/// is made; `options` must live as long.
class Trials {
 public:
  explicit Trials(const SearchOptions& options) : options_(options), random_(options.seed) {}

  /// Seconds so far.
  [[nodiscard]] double spent() const {
    return std::chrono::duration<double>(Clock::now() - began_).count();
  }
  [[nodiscard]] bool goes_on(std::int64_t round) const {
    if (options_.rounds >= 0 && round >= options_.rounds) return false;
    if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) return false;
    return spent() < options_.seconds;
  }
  /// From 0 to 1.
  [[nodiscard]] double progress(std::int64_t round) const {
    double part = spent() / std::max(1e-9, options_.seconds);
    if (options_.rounds > 0) {
      part = static_cast<double>(round) / static_cast<double>(options_.rounds);
    }
    return std::min(1.0, part);
  }
  /// Simulated annealing: whether to go on from a trial of cost `now` instead of from `cost`.
  [[nodiscard]] bool accepts(double now, double cost, double temperature) {
    return now <= cost || uniform(0, 1) < std::exp((cost - now) / (temperature + 1e-12));
  }

  int any(std::size_t size) {
    return static_cast<int>(std::uniform_int_distribution<std::size_t>(0, size - 1)(random_));
  }
  double uniform(double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random_);
  }
  /// A stretch of a group: often one of its members, sometimes all.
  std::span<const int> stretch(const std::vector<std::vector<int>>& groups) {
    const std::vector<int>& group = groups[static_cast<std::size_t>(any(groups.size()))];
    const auto size = static_cast<double>(group.size());
    const auto count = static_cast<std::size_t>(std::lround(std::exp(uniform(0, std::log(size)))));
    const auto first = static_cast<std::size_t>(any(group.size() - count + 1));
    return std::span(group).subspan(first, count);
  }
  std::mt19937_64& random() { return random_; }

 private:
  using Clock = std::chrono::steady_clock;

  const SearchOptions& options_;
  std::mt19937_64 random_;
  const Clock::time_point began_ = Clock::now();
};

/// The name of the operator at a place of the step's model, which runs through the step twice;
/// empty: of what is before the first.
inline std::string name_at(const Trace& trace, const StepModel& model, int place) {
  const int at = place % model.operators - 1;
  return at < 0 || at >= static_cast<int>(trace.operators.size())
             ? std::string()
             : trace.operators[static_cast<std::size_t>(at)].name;
}

}  // namespace lms
