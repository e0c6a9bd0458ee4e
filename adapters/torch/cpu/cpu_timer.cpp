#include "adapters/torch/cpu/cpu_timer.h"

#include <algorithm>
#include <utility>

namespace lms::torch {
namespace {

double ms_of(CpuTimer::Clock::time_point time) {
  return std::chrono::duration<double, std::milli>(time.time_since_epoch()).count();
}

}  // namespace

void CpuTimer::Moved::add(Bytes more, Clock::time_point since) {
  const auto took =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - since).count();
  bytes += more;
  ns += took;
  if (more > 0) copying_ns += took;
}

void CpuTimer::copied(const Block& block, Bytes bytes, bool is_out, Clock::time_point began) {
  (is_out ? out_ : in_).add(bytes, began);
  if (!noting_ || bytes == 0) return;
  const std::lock_guard guard(mutex_);
  copies_.push_back({block.uid, bytes, is_out, ms_of(began), ms_of(Clock::now())});
}

LinkModel CpuTimer::link() const {
  LinkModel link;
  if (out_.bytes > 0) link.out_bytes_per_ms = out_.bytes_per_ms();
  if (in_.bytes > 0) link.in_bytes_per_ms = in_.bytes_per_ms();
  link.both_bytes_per_ms = std::min(link.out_bytes_per_ms, link.in_bytes_per_ms) / 2;
  return link;
}

CpuTimer::Lap CpuTimer::now() const {
  return {ms_of(Clock::now()), static_cast<double>(out_.ns + in_.ns) / 1e6};
}

void CpuTimer::start() {
  {
    const std::lock_guard guard(mutex_);
    copies_.clear();
    noting_ = true;
  }
  laps_ = {now()};
  begins_ = {laps_.front()};
}

void CpuTimer::lap() {
  laps_.push_back(now());
  begins_.push_back(laps_.back());
}

std::vector<MeasuredCopy> CpuTimer::stop_copies() {
  const std::lock_guard guard(mutex_);
  noting_ = false;
  return std::exchange(copies_, {});
}

PilotDevice::Laps CpuTimer::finish() {
  PilotDevice::Laps result;
  for (std::size_t i = 1; i < laps_.size(); ++i) {
    const double end = laps_[i].ms - laps_.front().ms;
    const double whole = laps_[i].ms - laps_[i - 1].ms;
    const Lap& begin = begins_[i - 1];
    const double before = begin.ms - laps_[i - 1].ms;
    const double stood = std::clamp(before + laps_[i].stalled - begin.stalled, 0.0, whole);
    result.operators.push_back(
        {.begin_ms = end - (whole - stood), .end_ms = end, .waited_ms = stood});
  }
  for (MeasuredCopy copy : stop_copies()) {
    if (copy.begin_ms > laps_.back().ms) continue;  // the next step's
    copy.begin_ms -= laps_.front().ms;
    copy.end_ms -= laps_.front().ms;
    result.copies.push_back(copy);
  }
  return result;
}

}  // namespace lms::torch
