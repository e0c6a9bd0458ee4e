#pragma once

#include <cstdint>
#include <vector>

#include "plan/swap/eviction_set.h"
#include "plan/timing/step_clock.h"

namespace lms {

/// What is to be decided about a plan beyond which gaps may be swapped.
struct Tactics {
  /// By gap, if not empty: its place in the queue of copies out, so many operators before
  /// (negative) or after the one that its beginning gives it.
  std::vector<int> delays = {};
  double lead_ms = 2;     ///< copies in start this much before they must, if memory allows
  double store_ms = 0.5;  ///< copies that lanes hold in store, beyond the next operator
};

/// Turns a choice of gaps into a schedule: goes through the step in virtual time and carries every
/// move out as soon as lanes and memory allow. Copies out start as early as the lane can take them,
/// in the order in which their gaps begin; memory is given back when it is wanted; copies in start
/// in the order of need, once there is room for everything else that must be there meanwhile. A
/// block whose memory nobody has wanted stays. Allocates nothing after the first runs.
class Scheduler {
 public:
  /// Begins and ends before operator `cut`: best where memory is fullest, for there the lanes have
  /// nothing under way. The model must outlive it.
  Scheduler(const StepModel& model, const LinkModel& link, Bytes budget, int cut);

  /// Time of the step if exactly the chosen gaps may be swapped. They must leave room for every
  /// operator.
  double run(const EvictionSet& evictions, const Tactics& tactics);

  /// The plan of the last run.
  [[nodiscard]] Plan plan() const;

 private:
  enum class State : std::uint8_t { kHere, kAway, kArriving };
  static constexpr std::int32_t kNoEvent = -1;
  struct Event {
    int before = 0;
    Action action = Action::kKeep;
    TraceBlockId block = 0;
    bool cancelled = false;
  };
  /// The copy below of a version.
  struct Copy {
    bool valid = false;
    std::int32_t event = kNoEvent;  ///< that started it, and that no finish has answered
    std::uint32_t ticket = 0;
  };
  /// A gap in rotated time: operators counted from the cut.
  struct Place {
    int begin = 0;
    int need = 0;         ///< for one that covers the cut: when what is away at the beginning is
    int ready = 0;        ///< when the copy out may start
    int copy = 0;         ///< index into copies_
    bool covers = false;  ///< is away at the cut
    int rank = 0;         ///< in the order of need
    double copy_in_ms = 0;
  };

  [[nodiscard]] int operator_at(int rotated) const {
    return rotated + cut_ < operators_ ? rotated + cut_ : rotated + cut_ - operators_;
  }
  [[nodiscard]] const Gap& gap(int g) const { return model_.gaps[static_cast<std::size_t>(g)]; }
  [[nodiscard]] Place& place(int g) { return places_[static_cast<std::size_t>(g)]; }
  [[nodiscard]] Copy& copy_of(int g) { return copies_[static_cast<std::size_t>(place(g).copy)]; }
  [[nodiscard]] State& state(int g) { return states_[static_cast<std::size_t>(g)]; }
  [[nodiscard]] int until(int g) { return place(g).begin + gap(g).end - gap(g).begin; }

  /// The host takes so long before what comes next.
  void issue(double ms) {
    if (!model_.host_ms.empty()) clock_.issue(ms);
  }
  void prepare(const EvictionSet& evictions);
  void plan_arrivals();
  void run_operator();
  void begin_gaps();
  void end_gaps();
  void cross_boundary();
  void finish();
  void bring_due();
  void reopen_copiers();
  [[nodiscard]] std::size_t open_copier(std::size_t i);
  void feed_out(double horizon);
  void feed_in(double horizon);
  [[nodiscard]] bool room_until(int need, Bytes bytes);
  void start_out(int g);
  void start_in(int g);
  void leave(int g);
  void make_room(Bytes bytes);
  bool make_free_room(Bytes bytes, int need);
  [[nodiscard]] int victim();
  [[nodiscard]] int free_victim(int need);
  void forget(int copy);
  void tell(Action action, int g);

  const StepModel& model_;
  const Bytes budget_;
  const int operators_;
  const int cut_;
  const int boundary_;  ///< rotated: where one step ends and the next begins
  double in_rate_;
  double latency_;
  double out_rate_;
  HostCosts host_;
  double lead_ms_ = 0;  ///< by which the host is ahead at the cut
  StepClock clock_;
  std::vector<Place> places_;
  std::vector<int> by_begin_;   ///< all gaps
  std::vector<int> by_need_;    ///< likewise
  std::vector<double> begins_;  ///< computation before each rotated operator

  Tactics tactics_;
  std::vector<int> leavers_;       ///< chosen gaps in the order of their beginning
  std::vector<int> copiers_;       ///< in the order of their copies out
  std::vector<std::size_t> skip_;  ///< beside copiers_: itself, or one further on that is open
  std::vector<int> needers_;       ///< chosen gaps in the order of need
  std::vector<State> states_;
  std::vector<Copy> copies_;
  std::vector<int> started_;            ///< copies with an event
  std::vector<double> latest_;          ///< by gap: when its copy in must start, in begins_'s time
  std::vector<Bytes> room_;             ///< by rotated operator, if all chosen gaps are away
  std::vector<int> idle_;               ///< gaps that have begun and whose blocks are still here
  std::vector<int> away_;               ///< heap of gaps by need
  std::vector<int> due_;                ///< gaps that end now
  std::vector<std::uint32_t> tickets_;  ///< by gap: of its copy in
  std::vector<Event> events_;
  std::size_t turn_ = 0;         ///< first event after the boundary
  std::size_t next_leaver_ = 0;  ///< first that has not begun
  std::size_t next_needer_ = 0;
  int blocked_gap_ = -1;  ///< cannot come in before blocked_until_
  int blocked_until_ = -1;
  int at_ = 0;   ///< rotated
  int now_ = 0;  ///< the operator there
  Bytes device_ = 0;
};

}  // namespace lms
