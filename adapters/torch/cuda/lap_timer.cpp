#include "adapters/torch/cuda/lap_timer.h"

#include <algorithm>

namespace lms::torch {
namespace {

using Guard = std::lock_guard<std::mutex>;

/// More than this no mark takes of its stream's time. Over thousands of operators it adds up to
/// percents of a step.
constexpr double kMostMs = 0.002;
/// How often it is measured in a step.
constexpr std::size_t kPairs = 16;

double between(cudaEvent_t begin, cudaEvent_t end) {
  float elapsed = 0;
  cuda::check(cudaEventElapsedTime(&elapsed, begin, end), "cudaEventElapsedTime");
  return static_cast<double>(elapsed);
}

}  // namespace

LapTimer::~LapTimer() {
  clear();
  for (cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

cudaEvent_t LapTimer::mark(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  if (free_.empty()) {
    cuda::check(cudaEventCreate(&event), "cudaEventCreate");
  } else {
    event = free_.back();
    free_.pop_back();
  }
  cuda::check(cudaEventRecord(event, stream), "cudaEventRecord");
  return event;
}

void LapTimer::clear() {
  free_.insert(free_.end(), laps_.begin(), laps_.end());
  for (const Wait& wait : waits_) recycle(wait);
  for (const Copy& copy : copies_) free_.insert(free_.end(), {copy.begin, copy.end});
  for (const Pair& pair : pairs_) free_.insert(free_.end(), {pair.begin, pair.end});
  laps_.clear();
  pairs_.clear();
  behind_.clear();
  passed_ = 0;
  behind_now_ = -1;
  most_.clear();
  waits_.clear();
  copies_.clear();
}

void LapTimer::recycle(const Wait& wait) {
  if (wait.begin != nullptr) free_.push_back(wait.begin);
  free_.push_back(wait.end);
}

void LapTimer::start(cudaStream_t stream) {
  const Guard guard(mutex_);
  clear();
  stream_ = stream;
  most_now_ = 0;
  laps_.push_back(mark(stream_));
  running_ = true;
}

/// How many laps the device has not done, or kMany. Asks about each mark until it has been passed,
/// and once more each time.
int LapTimer::laps_behind() {
  while (passed_ < laps_.size() && cudaEventQuery(laps_[passed_]) == cudaSuccess) ++passed_;
  (void)cudaGetLastError();  // "not ready" is an answer, and must not be found by others
  return passed_ == 0 ? MeasuredOperator::kMany : static_cast<int>(laps_.size() - passed_);
}

void LapTimer::begin_lap(Bytes device) {
  if (!running()) return;
  const Guard guard(mutex_);
  most_now_ = device;
  // If the stream has come to its end, it stands still until the host has queued the operator: the
  // host has waited for it, or is slow.
  if (!running() || laps_.empty()) return;
  behind_now_ = laps_behind();
  if (behind_now_ == 0) {
    begin_anew();
    return;
  }
  if (pairs_.size() < kPairs) {
    const cudaEvent_t begin = mark(stream_);
    pairs_.push_back({laps_.size(), begin, mark(stream_)});
  }
}

void LapTimer::lap(Bytes device) {
  if (!running()) return;
  const Guard guard(mutex_);
  if (!running()) return;
  behind_.emplace_back(behind_now_, laps_behind());
  behind_now_ = -1;
  laps_.push_back(mark(stream_));
  most_.push_back(std::max(most_now_, device));
  most_now_ = device;
}

void LapTimer::restart_lap() {
  if (!running()) return;
  const Guard guard(mutex_);
  if (running()) begin_anew();
}

void LapTimer::begin_anew() {
  const std::size_t now = laps_.size();
  while (!waits_.empty() && waits_.back().lap == now) {
    recycle(waits_.back());
    waits_.pop_back();
  }
  waits_.push_back({now, nullptr, mark(stream_)});
}

void LapTimer::note(Bytes device) {
  if (!running()) return;
  const Guard guard(mutex_);
  most_now_ = std::max(most_now_, device);
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
  const cudaEvent_t begin = mark(stream_);
  event.block(stream);
  waits_.push_back({laps_.size(), begin, mark(stream_)});
}

cuda::EventPtr LapTimer::copy(cuda::Lane& lane, bool out, BlockUid uid, void* to, const void* from,
                              Bytes bytes) {
  if (!running()) return lane.copy(to, from, bytes);
  const Guard guard(mutex_);
  if (!running()) return lane.copy(to, from, bytes);
  const cudaEvent_t begin = mark(lane.stream());
  auto done = lane.copy(to, from, bytes);
  copies_.push_back(
      {laps_.size(), {.uid = uid, .bytes = bytes, .out = out}, begin, mark(lane.stream())});
  return done;
}

PilotDevice::Laps LapTimer::finish() {
  const Guard guard(mutex_);
  running_ = false;
  PilotDevice::Laps result;
  if (laps_.empty()) return result;
  cuda::check(cudaEventSynchronize(laps_.back()), "cudaEventSynchronize");
  std::vector<double> waited(laps_.size(), 0.0);
  for (const Wait& wait : waits_) {
    if (wait.lap >= laps_.size()) continue;
    const cudaEvent_t begin = wait.begin == nullptr ? laps_[wait.lap - 1] : wait.begin;
    waited[wait.lap] += between(begin, wait.end);
  }
  std::vector<double> ran(laps_.size(), 0.0);
  double least = kMostMs;  // that a mark takes
  for (std::size_t i = 1; i < laps_.size(); ++i) {
    const double whole = between(laps_[i - 1], laps_[i]);
    waited[i] = std::clamp(waited[i], 0.0, whole);
    ran[i] = whole - waited[i];
    // One that has waited ends with marks of its own.
    if (waited[i] == 0) least = std::min(least, ran[i]);
  }
  for (const Pair& pair : pairs_) {
    cuda::check(cudaEventSynchronize(pair.end), "cudaEventSynchronize");
    least = std::min(least, between(pair.begin, pair.end));
  }
  for (const Pair& pair : pairs_) {
    if (pair.lap < laps_.size()) ran[pair.lap] -= 2 * least;
  }
  for (std::size_t i = 1; i < laps_.size(); ++i) {
    const double end = between(laps_.front(), laps_[i]);
    const double stood = waited[i];
    result.operators.push_back({.begin_ms = end - std::max(ran[i] - least, 0.0),
                                .end_ms = end,
                                .device = most_[i - 1],
                                .waited_ms = stood,
                                .behind = behind_[i - 1].first,
                                .behind_after = behind_[i - 1].second});
  }
  for (Copy& copy : copies_) {
    if (copy.lap >= laps_.size()) continue;  // the next step's
    cuda::check(cudaEventSynchronize(copy.end), "cudaEventSynchronize");
    copy.copy.begin_ms = between(laps_.front(), copy.begin);
    copy.copy.end_ms = copy.copy.begin_ms + between(copy.begin, copy.end);
    result.copies.push_back(copy.copy);
  }
  return result;
}

void LapTimer::drop() {
  const Guard guard(mutex_);
  running_ = false;
  clear();
}

}  // namespace lms::torch
