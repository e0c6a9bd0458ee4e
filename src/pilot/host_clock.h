#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "plan/timing/host_times.h"

namespace lms {

/// Watches the host through a step that is timed. Not thread-safe; what it says of time is cheap.
class HostClock {
 public:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] static double now_ms() { return since({}); }
  [[nodiscard]] static double since(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }

  /// The operator before the first has been queued.
  void start() {
    times_ = {};
    go_on();
  }
  /// So much of what has passed is not the operator's.
  void exclude(double ms) { excluded_ms_ += ms; }
  /// The operator has been queued. What `note` takes is nobody's.
  template <typename Note>
  void lap(Note note) {
    times_.operators_ms.push_back(since(last_) - excluded_ms_);
    note();
    go_on();
  }
  void add(const HostTimes& done) {
    const auto add = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    add(times_.copies_ms, done.copies_ms);
    add(times_.leaves_ms, done.leaves_ms);
    add(times_.remakes_ms, done.remakes_ms);
  }

  [[nodiscard]] HostTimes take() { return std::exchange(times_, {}); }

 private:
  void go_on() {
    last_ = Clock::now();
    excluded_ms_ = 0;
  }

  HostTimes times_;
  Clock::time_point last_;
  double excluded_ms_ = 0;
};

}  // namespace lms
