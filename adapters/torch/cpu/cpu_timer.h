#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

#include "pilot/pilot.h"

namespace lms::torch {

/// Times the operators of a step (laps), the copies within them, and the rates of all copies.
/// Thread-safe for copies; laps are the pilot's, who writes them while timing and reads them after.
class CpuTimer {
 public:
  using Clock = std::chrono::steady_clock;

  /// A copy of `bytes` (0: there was nothing to move), for which the caller has stood still.
  void copied(const Block& block, Bytes bytes, bool is_out, Clock::time_point began);
  /// At the rates of all copies so far.
  [[nodiscard]] LinkModel link() const;

  // As PilotDevice has them.
  void start();
  void lap();
  void restart_lap() { begins_.back() = now(); }
  void drop() { (void)stop_copies(); }
  PilotDevice::Laps finish();

  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  /// Bytes moved, and the time for which the caller stood still for them.
  struct Moved {
    std::atomic<Bytes> bytes{0};
    std::atomic<std::int64_t> ns{0};
    std::atomic<std::int64_t> copying_ns{0};  ///< of these, what moved bytes

    void add(Bytes more, Clock::time_point since);
    [[nodiscard]] double bytes_per_ms() const {
      return static_cast<double>(bytes) * 1e6 / static_cast<double>(copying_ns);
    }
  };
  struct Lap {
    double ms;       ///< the time
    double stalled;  ///< of all time, what was spent with copies
  };
  [[nodiscard]] Lap now() const;
  std::vector<MeasuredCopy> stop_copies();

  Moved out_;
  Moved in_;
  std::vector<Lap> laps_;
  std::vector<Lap> begins_;  ///< of the operators after each of laps_
  std::atomic<bool> noting_{false};
  std::mutex mutex_;  ///< guards copies_
  std::vector<MeasuredCopy> copies_;
};

}  // namespace lms::torch
