#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/event.h"
#include "cuda/lane.h"
#include "pilot/pilot.h"

namespace lms::torch {

/// Times the operators of one stream: laps from mark to mark, in which the stream stood still for
/// copies and ran; and the copies that were begun meanwhile. Events are recorded only while it
/// runs. Thread-safe.
class LapTimer {
 public:
  ~LapTimer();

  /// Begins anew, on `stream`.
  void start(cudaStream_t stream);
  /// The lap's operator begins, with `device` bytes on the device. For how long the stream has had
  /// nothing to do before is none of its time.
  void begin_lap(Bytes device);
  void lap(Bytes device);
  /// The lap's operator begins anew: what the lap has taken so far was waiting.
  void restart_lap();
  [[nodiscard]] bool running() const { return running_.load(std::memory_order_relaxed); }
  /// As many bytes are on the device now; to be called before they become fewer.
  void note(Bytes device);
  /// As event.block(stream), timed.
  void wait(cudaStream_t stream, const cuda::Event& event);
  /// As lane.copy(to, from, bytes), timed.
  cuda::EventPtr copy(cuda::Lane& lane, bool out, BlockUid uid, void* to, const void* from,
                      Bytes bytes);
  /// Waits for the last lap and the copies; stops.
  PilotDevice::Laps finish();
  /// Stops, and forgets what was timed.
  void drop();

 private:
  cudaEvent_t mark(cudaStream_t stream);
  [[nodiscard]] int laps_behind();
  void begin_anew();
  void clear();

  std::mutex mutex_;
  std::atomic<bool> running_{false};
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> free_;
  std::vector<cudaEvent_t> laps_;  ///< the start, then the end of each
  std::vector<Bytes> most_;        ///< on the device, by lap
  Bytes most_now_ = 0;             ///< in the lap that runs
  std::size_t passed_ = 0;         ///< so many of laps_ the device has passed
  /// By lap: of the laps before, how many the device had not done when it began, and when it ended.
  std::vector<std::pair<int, int>> behind_;
  int behind_now_ = -1;
  struct Wait {
    std::size_t lap;    ///< from 1
    cudaEvent_t begin;  ///< null: when the lap began
    cudaEvent_t end;
  };
  void recycle(const Wait& wait);
  /// Two marks with nothing between them, on a busy stream.
  struct Pair {
    std::size_t lap;  ///< in which they are
    cudaEvent_t begin, end;
  };

  std::vector<Wait> waits_;
  struct Copy {
    std::size_t lap;
    MeasuredCopy copy;
    cudaEvent_t begin, end;
  };
  std::vector<Copy> copies_;
  std::vector<Pair> pairs_;
};

}  // namespace lms::torch
