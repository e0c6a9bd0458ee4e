#include "plan/timing/step_clock.h"

#include <algorithm>

namespace lms {
namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();

}  // namespace

StepClock::StepClock(const LinkModel& link) : latency_ms_(link.latency_ms) {
  out_.alone = link.out_bytes_per_ms;
  in_.alone = link.in_bytes_per_ms;
  out_.both = std::min(link.both_bytes_per_ms, link.out_bytes_per_ms);
  in_.both = std::min(link.both_bytes_per_ms, link.in_bytes_per_ms);
  out_.tax = link.out_tax_ms_per_byte;
  in_.tax = link.in_tax_ms_per_byte;
}

void StepClock::reset(double lead_ms) {
  for (Lane* lane : {&out_, &in_}) {
    lane->jobs.clear();
    lane->done = 0;
    lane->latency = lane->bytes = lane->busy = lane->queued = lane->rate = 0;
  }
  now_ = tax_ = waited_ = late_ = issued_ = 0;
  host_ = -lead_ms;
  begins_.clear();
  next_ = 0;
}

void StepClock::begin_next(Lane& lane) const {
  if (!lane.active()) return;
  Job& job = lane.jobs[lane.done];
  job.begin = now_;
  lane.latency = latency_ms_;
  lane.bytes = job.bytes;
  lane.queued -= job.bytes;
}

void StepClock::set_rates() {
  const bool out = out_.transfers();
  const bool in = in_.transfers();
  out_.rate = out ? (in ? out_.both : out_.alone) : 0;
  in_.rate = in ? (out ? in_.both : in_.alone) : 0;
}

std::uint32_t StepClock::start(Lane& lane, Bytes bytes) {
  const bool idle = !lane.active();
  lane.jobs.push_back({static_cast<double>(bytes), 0, 0});
  lane.queued += static_cast<double>(bytes);
  if (idle) {
    begin_next(lane);
    set_rates();
  }
  return static_cast<std::uint32_t>(lane.jobs.size() - 1);
}

double StepClock::to_phase_end(const Lane& lane) {
  if (!lane.active()) return kEndless;
  return lane.latency > 0 ? lane.latency : lane.bytes / lane.rate;
}

bool StepClock::pass(Lane& lane, double ms, double phase_end) const {
  if (phase_end == kEndless) return false;
  lane.busy += ms;
  if (ms < phase_end) {
    if (lane.latency > 0) {
      lane.latency -= ms;
    } else {
      lane.bytes -= ms * lane.rate;
    }
    return false;
  }
  if (lane.latency > 0) {
    lane.latency = 0;
  } else {
    lane.jobs[lane.done++].end = now_;
    begin_next(lane);
  }
  return true;
}

void StepClock::pass(double ms, double out_end, double in_end) {
  now_ += ms;
  const bool out_changed = pass(out_, ms, out_end);
  const bool in_changed = pass(in_, ms, in_end);
  if (out_changed || in_changed) set_rates();
}

void StepClock::compute(double ms) {
  double work = ms;
  while (work > 0) {
    const double lost = out_.rate * out_.tax + in_.rate * in_.tax;
    const double speed = std::max(0.0, 1 - lost);
    const double work_end = speed > 0 ? work / speed : kEndless;
    const double out_end = to_phase_end(out_);
    const double in_end = to_phase_end(in_);
    const double step = std::min({work_end, out_end, in_end});
    pass(step, out_end, in_end);
    const double progress = step == work_end ? work : step * speed;
    tax_ += step - progress;
    work = step == work_end ? 0 : work - progress;
  }
}

void StepClock::issue(double ms) {
  if (begins_.size() < kMostAhead) {
    begins_.push_back(0);
  } else {
    host_ = std::max(host_, begins_[next_]);
  }
  host_ += ms;
  issued_ += ms;
  while (now_ < host_) {
    const double out_end = to_phase_end(out_);
    const double in_end = to_phase_end(in_);
    const double left = host_ - now_;
    const double step = std::min({left, out_end, in_end});
    pass(step, out_end, in_end);
    late_ += step;
    if (step == left) now_ = host_;  // whatever rounding says
  }
  begins_[next_] = now_;
  next_ = (next_ + 1) % kMostAhead;
}

void StepClock::wait(Lane& lane, std::uint32_t ticket) {
  while (lane.done <= ticket) {
    const double out_end = to_phase_end(out_);
    const double in_end = to_phase_end(in_);
    const double step = std::min(out_end, in_end);
    pass(step, out_end, in_end);
    waited_ += step;
  }
}

double host_lead(double host_ms, std::size_t operators) {
  const double each = host_ms / std::max<double>(1, static_cast<double>(operators));
  return each * static_cast<double>(std::min(operators, StepClock::kMostAhead));
}

double StepClock::backlog(const Lane& lane, const Lane& other) const {
  if (!lane.active()) return 0;
  const double rate = other.active() ? lane.both : lane.alone;
  const auto waiting = static_cast<double>(lane.jobs.size() - lane.done - 1);
  return lane.latency + waiting * latency_ms_ + (lane.bytes + lane.queued) / rate;
}

}  // namespace lms
