#include "adapters/torch/cuda/lap_timer.h"

#include <algorithm>

namespace lms::torch {

using Guard = std::lock_guard<std::mutex>;

LapTimer::~LapTimer() {
  for (auto* list : {&free_, &laps_}) {
    for (cudaEvent_t event : *list) (void)cudaEventDestroy(event);
  }
}

cudaEvent_t LapTimer::mark() {
  cudaEvent_t event = nullptr;
  if (free_.empty()) {
    cuda::check(cudaEventCreate(&event), "cudaEventCreate");
  } else {
    event = free_.back();
    free_.pop_back();
  }
  cuda::check(cudaEventRecord(event, stream_), "cudaEventRecord");
  return event;
}

void LapTimer::start(cudaStream_t stream) {
  const Guard guard(mutex_);
  free_.insert(free_.end(), laps_.begin(), laps_.end());
  for (const Wait& wait : waits_) free_.insert(free_.end(), {wait.begin, wait.end});
  laps_.clear();
  waits_.clear();
  stream_ = stream;
  laps_.push_back(mark());
  running_ = true;
}

void LapTimer::lap() {
  if (!running()) return;
  const Guard guard(mutex_);
  if (running()) laps_.push_back(mark());
}

void LapTimer::wait(cudaStream_t stream, const cuda::Event& event) {
  if (!running()) {
    event.block(stream);
    return;
  }
  const Guard guard(mutex_);
  if (!running() || stream != stream_) {
    event.block(stream);
    return;
  }
  const cudaEvent_t begin = mark();
  event.block(stream);
  waits_.push_back({laps_.size(), begin, mark()});
}

std::vector<double> LapTimer::finish() {
  const Guard guard(mutex_);
  running_ = false;
  std::vector<double> ms;
  if (laps_.empty()) return ms;
  cuda::check(cudaEventSynchronize(laps_.back()), "cudaEventSynchronize");
  const auto between = [](cudaEvent_t begin, cudaEvent_t end) {
    float elapsed = 0;
    cuda::check(cudaEventElapsedTime(&elapsed, begin, end), "cudaEventElapsedTime");
    return static_cast<double>(elapsed);
  };
  for (std::size_t i = 1; i < laps_.size(); ++i) ms.push_back(between(laps_[i - 1], laps_[i]));
  for (const Wait& wait : waits_) {
    if (wait.lap - 1 < ms.size()) ms[wait.lap - 1] -= between(wait.begin, wait.end);
  }
  for (double& lap : ms) lap = std::max(lap, 0.0);
  return ms;
}

}  // namespace lms::torch
