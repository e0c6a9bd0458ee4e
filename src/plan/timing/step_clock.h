#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "plan/timing/timing.h"

namespace lms {

/// The compute stream and the two lanes of one device in virtual time: the rules of time_plan()
/// without its plan. A copy is a ticket, the number of its place in its lane's queue. After the
/// first steps nothing is allocated. Not thread-safe.
class StepClock {
 public:
  /// What the host may have queued and the device not begun. A queue of CUDA's holds 1024 kernels,
  /// copies and events; an operator is two to three of them.
  static constexpr std::size_t kMostAhead = 400;

  explicit StepClock(const LinkModel& link);

  /// Everything idle at time 0, all tickets void; the host is ahead by `lead_ms`.
  void reset(double lead_ms = 0);

  /// Queues a copy that starts now at the earliest; its ticket.
  std::uint32_t start_out(Bytes bytes) { return start(out_, bytes); }
  std::uint32_t start_in(Bytes bytes) { return start(in_, bytes); }

  /// The compute stream computes for `ms`, and for what copies take from it meanwhile.
  void compute(double ms);
  /// The compute stream stands still until the copy has ended.
  void wait_out(std::uint32_t ticket) { wait(out_, ticket); }
  void wait_in(std::uint32_t ticket) { wait(in_, ticket); }

  /// The host takes so long for what it queues next; what the compute stream does then comes after
  /// that. It cannot be further ahead than kMostAhead such calls.
  void issue(double ms);
  /// The host waits until the compute stream has done what it has so far.
  void host_waits() { host_ = std::max(host_, now_); }

  [[nodiscard]] bool out_done(std::uint32_t ticket) const { return out_.done > ticket; }
  [[nodiscard]] bool in_done(std::uint32_t ticket) const { return in_.done > ticket; }

  [[nodiscard]] double now() const { return now_; }
  [[nodiscard]] double tax() const { return tax_; }
  [[nodiscard]] double waited() const { return waited_; }
  /// For how long the compute stream has stood still because the host was not ready.
  [[nodiscard]] double late() const { return late_; }
  /// Sum over the calls of issue().
  [[nodiscard]] double issued() const { return issued_; }
  [[nodiscard]] double out_busy() const { return out_.busy; }
  [[nodiscard]] double in_busy() const { return in_.busy; }
  /// Time until all that is queued has ended, if the other lane stays as it is.
  [[nodiscard]] double out_backlog() const { return backlog(out_, in_); }
  [[nodiscard]] double in_backlog() const { return backlog(in_, out_); }

  /// Begin and end of a copy that has ended.
  [[nodiscard]] std::pair<double, double> out_times(std::uint32_t ticket) const {
    return {out_.jobs[ticket].begin, out_.jobs[ticket].end};
  }
  [[nodiscard]] std::pair<double, double> in_times(std::uint32_t ticket) const {
    return {in_.jobs[ticket].begin, in_.jobs[ticket].end};
  }

 private:
  struct Job {
    double bytes;
    double begin;
    double end;
  };
  struct Lane {
    std::vector<Job> jobs;
    std::uint32_t done = 0;
    double alone = 0;    ///< bytes per ms
    double both = 0;     ///< bytes per ms, while the other lane transfers
    double tax = 0;      ///< ms per byte
    double latency = 0;  ///< left of the current copy's
    double bytes = 0;    ///< left of the current copy's
    double busy = 0;     ///< ms
    double queued = 0;   ///< bytes of the copies after the current one
    double rate = 0;     ///< bytes per ms; 0 in a copy's latency, and while idle
    [[nodiscard]] bool active() const { return done < jobs.size(); }
    [[nodiscard]] bool transfers() const { return active() && latency <= 0; }
  };

  std::uint32_t start(Lane& lane, Bytes bytes);
  void wait(Lane& lane, std::uint32_t ticket);
  [[nodiscard]] double backlog(const Lane& lane, const Lane& other) const;
  void begin_next(Lane& lane) const;
  void set_rates();
  [[nodiscard]] static double to_phase_end(const Lane& lane);
  /// Time passes for the lane; true if its rate may have changed.
  bool pass(Lane& lane, double ms, double phase_end) const;
  void pass(double ms, double out_end, double in_end);

  Lane out_;
  Lane in_;
  double latency_ms_;
  double now_ = 0;
  double tax_ = 0;
  double waited_ = 0;
  double host_ = 0;  ///< how far the host has got
  double late_ = 0;
  double issued_ = 0;
  std::vector<double> begins_;  ///< a ring: when the compute stream came to the last issues
  std::size_t next_ = 0;
};

/// How far the host is ahead of a device that has more to do than it, once both have gone on for
/// long: what it takes for as many operators as can be queued.
double host_lead(double host_ms, std::size_t operators);

}  // namespace lms
