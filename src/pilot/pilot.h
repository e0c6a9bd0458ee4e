#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "foresight/outlook.h"
#include "pilot/detour.h"
#include "pilot/detour_gate.h"
#include "pilot/host_clock.h"
#include "pilot/overheard.h"
#include "pilot/plan_cache.h"
#include "pilot/plan_or_none.h"
#include "pilot/script.h"
#include "pilot/succession.h"
#include "plan/timing/measured.h"
#include "plan/updates.h"
#include "steps/occurrences.h"

namespace lms {

/// What planning must know of a device, and have it do. Called without locks of engine and pilot
/// unless said otherwise.
class PilotDevice {
 public:
  virtual ~PilotDevice() = default;

  /// Times operators: laps are counted from 0, each from the one before (the first from start) to
  /// what is queued now. These four are called with the pilot's lock held.
  virtual void start_laps() = 0;
  /// What there was to do before the lap's operator has been queued: what lies on the device from
  /// now on is the operator's.
  virtual void begin_lap() {}
  virtual void lap() = 0;
  /// The lap's operator begins only now (anew, if it has failed): until now the device has stood
  /// still, or computed something else.
  virtual void restart_lap() {}

  struct Laps {
    /// A lap each. Its computation, without the time for which the device stood still for copies,
    /// lies at its end.
    std::vector<MeasuredOperator> operators;
    std::vector<MeasuredCopy> copies;  ///< that were begun in one of the laps
  };
  /// All laps. Waits for the device; called by the planning thread. No laps are begun or dropped
  /// meanwhile.
  virtual Laps finish_laps() = 0;
  /// Nobody will ask for the laps that are being timed. Called with the pilot's lock held.
  virtual void drop_laps() {}

  struct Room {
    Bytes arena = 0;         ///< bytes that a plan may have on the device
    Bytes page = 0;          ///< pieces in which memory can be put behind addresses; 0: it cannot
    bool addresses = false;  ///< plans say where (from 0); false: the device places blocks itself
  };
  /// What a plan may use. Called between two steps; the device may put itself in order for it. What
  /// lies there without any operator using it is not part of it. `first`: there is no plan yet, and
  /// blocks lie anywhere.
  virtual Room room(bool first) = 0;
  /// What of the room of an earlier plan a better one of the same step may count on.
  virtual Bytes still_room(Bytes room) { return room; }
  /// There are no longer `bytes` for a plan, or something that cannot move lies among them: memory
  /// that was taken under the plan, and that no block is (a library's workspace). Called with the
  /// pilot's lock held.
  [[nodiscard]] virtual bool obstructed(Bytes /*bytes*/) { return false; }
  /// All that can leave does, and plans' addresses begin anew where nothing lies. Called before a
  /// step's first operator, without locks.
  virtual void clear_way() {}
  /// The clock by which steps are compared. Called with the pilot's lock held.
  [[nodiscard]] virtual double now_ms() const { return HostClock::now_ms(); }
  /// How many allocations and arrivals have not got the address that the plan wanted for them.
  [[nodiscard]] virtual std::int64_t misplaced() const { return 0; }
  /// False if a block on the device lies elsewhere than Pilot::home_of() wants it. Called with the
  /// engine's lock held.
  [[nodiscard]] virtual bool at_home(const Block& /*block*/) { return true; }
  /// As far as it is known from the laps so far; called by the planning thread.
  [[nodiscard]] virtual LinkModel link() = 0;

  /// True if copies run beside the computation, so that some may be begun ahead without a plan.
  [[nodiscard]] virtual bool copies_beside() const { return false; }
  /// Makes room for `bytes` in one piece, where that takes nothing for which `spare` is false.
  /// False if it cannot. With the engine's lock, which it lets go.
  virtual bool make_room_ahead(EngineLock& lock, Engine& engine, Bytes bytes,
                               const std::function<bool(const Block&)>& spare) {
    return Ahead::make_room(lock, engine, bytes, spare);
  }

  /// Computes the bytes of a block again whose storage is gone, because others are to be computed
  /// from it. `addresses`: as Pilot::addresses_for(). Throws whatever that throws.
  virtual void remake_ghost(BlockUid /*uid*/, const std::vector<Bytes>& /*addresses*/) {}
  virtual void drop_ghost(BlockUid /*uid*/) {}
  /// No plan counts on ghosts any more.
  virtual void drop_ghosts() {}

  enum class Stage : std::uint8_t {
    kStep,      ///< a step under a plan; may end in another thread
    kOrders,    ///< what the plan has before an operator
    kPlanning,  ///< a plan is made
  };
  /// For profilers. Cheap; may be called with the pilot's lock held.
  virtual void show(Stage /*stage*/, bool /*begins*/) noexcept {}
  /// Steps are faster if the updates that write these blocks, and no others, wait until their
  /// results are wanted. They are another step then. Called with the pilot's lock held.
  virtual void defer_updates(const std::vector<BlockUid>& /*written*/) {}

  /// Something that the user should know, once.
  virtual void say(const std::string& line) = 0;
};

/// A stage that is shown for the length of a scope.
class ShownStage {
 public:
  ShownStage(PilotDevice& device, PilotDevice::Stage stage) : device_(device), stage_(stage) {
    device_.show(stage_, true);
  }
  ~ShownStage() { device_.show(stage_, false); }
  ShownStage(const ShownStage&) = delete;
  ShownStage& operator=(const ShownStage&) = delete;

 private:
  PilotDevice& device_;
  PilotDevice::Stage stage_;
};

/// Learns the steps of one device's operator stream, has them planned, and carries the plans out on
/// the engine. It may only ever cost time: every directive is a hint, and the engine brings in what
/// is missing, whatever the pilot believes.
///
///   off ──first eviction──► learning ──a step repeats──► tracking ──planned──► following
///                              ▲                                                │
///                              └──────────────── the stream differs ◄───────────┘
///
/// Thread-safe; lock order: engine, then pilot. Operators of several threads are taken for one
/// stream, which never repeats where they interleave: StepThreads tells whose are to be told.
class Pilot {
 public:
  struct Options {
    bool enabled = true;
    Bytes min_block = 0;         ///< smaller ones nobody tells of
    Bytes limit = 0;             ///< loops that fit under it by far are no steps to plan
    bool in_foreground = false;  ///< plan while the step waits (tests)
    bool compares = true;        ///< where steps differ, plans and none by the clock
    MayWait may_wait = nullptr;  ///< what the device can put off; null: nothing
    /// A step may leave its plan and come back.
    DetourGate::Rule detours = DetourGate::Rule::kWhenNeeded;
    SearchOptions search;
    std::string plan_cache;  ///< folder of plans for the next start (PlanCache); empty: none

    bool operator==(const Options&) const = default;
  };

  Pilot(Engine& engine, PilotDevice& device) : engine_(engine), device_(device), outlook_(engine) {}
  ~Pilot();
  Pilot(const Pilot&) = delete;
  Pilot& operator=(const Pilot&) = delete;

  /// Forgets everything and starts anew; goes on as it was, if it has begun with the same options.
  /// Other threads may be inside any function meanwhile. Waits for the plan that is being made, and
  /// with it for the device; no lock of the engine may be held.
  void start(const Options& options);
  void stop();
  /// After stop(), whose cause has not come about: begins again, with the options of start().
  void go_on();

  /// Around fork(), with the engine's lock held (where there is one): in the child there is no
  /// planning thread, and nothing is planned before the next start().
  void before_fork();
  void after_fork();
  void in_child();

  /// A block leaves: from the first on there is something to plan.
  void wake() {
    departures_.fetch_add(1, std::memory_order_relaxed);
    State asleep = State::kAsleep;
    if (power_.load(std::memory_order_relaxed) == asleep) {
      power_.compare_exchange_strong(asleep, State::kAwake);
    }
  }
  [[nodiscard]] bool awake() const {
    return power_.load(std::memory_order_relaxed) == State::kAwake;
  }
  /// How full the tier below is. While it is filling up, all operators are recorded that can be run
  /// again: what finds no room below can then be dropped. Under a plan, which is to need less of
  /// it, only once it is nearly full.
  enum class TierBelow : std::uint8_t { kRoomy, kFillingUp, kNearlyFull };
  void set_below(TierBelow below) { below_.store(below, std::memory_order_relaxed); }

  /// What the engine's policy may go by without a plan.
  [[nodiscard]] std::shared_ptr<const Foresight> foresight() const { return outlook_.foresight(); }

  // The stream of outermost operators ------------------------------------------------------------

  /// Whether it is to be recorded how an operator can be run again.
  enum class Recording : std::uint8_t {
    kNo,
    kForPlan,      ///< the plan will want it
    kForFullTier,  ///< it may find no room below
  };

  /// Carries out what the plan has before this operator. The engine's lock must not be held.
  /// `replay_cost`: nothing, where wants_costs() has said that it is known already.
  Recording begin_operator(OperatorKey key, std::string_view name, bool repeatable,
                           std::optional<ReplayCost> replay_cost = ReplayCost());
  /// False along a step that is known, where nobody listens: so are the costs of its operators.
  [[nodiscard]] bool wants_costs() const {
    return wants_costs_.load(std::memory_order_relaxed) && awake();
  }
  /// The running operator, or one nested in it, has pinned these.
  void touch(EngineLock& lock, std::span<const Use> uses);
  /// The block stays on the device until it dies.
  void kept(EngineLock& lock, const Block& block);
  /// The running operator works on these in pieces, where they lie below: it does not need them on
  /// the device.
  void used_below(EngineLock& lock, std::span<const Use> uses);
  /// The running operator failed and is tried again.
  void restart_operator();
  void end_operator();
  /// A step ends here, says the user.
  void mark_step();

  // Allocations of at least the smallest block ---------------------------------------------------

  static BlockUid new_uid() noexcept;
  /// Returns where the plan wants it, or kNoAddress.
  Bytes allocating(BlockUid uid, Bytes bytes);
  void released(BlockUid uid);
  /// It has been found dead; when it died nobody knows, so the stream does not tell.
  void gone(BlockUid uid);
  /// Where the plan wants an absent block that comes back now, or one that moves, or kNoAddress.
  Bytes home_of(const Block& block);
  /// Where the plan wants the allocations of the rematerialisation that has been begun of this
  /// block; empty if it does not say.
  std::vector<Bytes> addresses_for(const Block& block);
  /// The pages that an address from kScattered on stands for; none if the plan has changed since.
  [[nodiscard]] std::vector<std::uint32_t> pages_of(Bytes address);

  struct Stats {
    std::int64_t shapes = 0;       ///< different steps known
    std::int64_t apart = 0;        ///< of those, learnt from runs that did not follow each other
    std::string why;               ///< planned, or why not
    std::string detour;            ///< where the last detour began, and why
    std::int64_t planned = 0;      ///< of those, planned
    std::int64_t kept = 0;         ///< of those, with a plan that was kept from another start
    std::int64_t refined = 0;      ///< of those, planned again with the times of planned steps
    std::int64_t taken_back = 0;   ///< of those, such as turned out slower, and were left again
    bool on_trial = false;         ///< two plans of the step that runs are being compared
    bool rests = false;            ///< plans are not followed: PlanOrNone
    std::int64_t steps = 0;        ///< steps carried out under a plan
    std::int64_t divergences = 0;  ///< steps that turned out to be others
    std::int64_t detours = 0;      ///< how often one has left its script and come back
    std::int64_t refused = 0;      ///< drops of blocks that nobody knows how to compute
    std::int64_t failed = 0;       ///< rematerialisations that failed
    double predicted_ms = 0;       ///< of the plan last followed
    double host_ms = 0;            ///< likewise: what the host takes; 0: not known
    double late_ms = 0;            ///< likewise: for how long the device waits for it
    Bytes planned_peak = 0;        ///< likewise
    Bytes placed = 0;              ///< likewise: bytes of arena that its placement takes
    Bytes lower_bound = 0;
  };
  [[nodiscard]] Stats stats();
  /// The script being followed, or else the last that was planned; null if there is none.
  [[nodiscard]] std::shared_ptr<const Script> current();

  /// A step that was timed while it followed a plan.
  struct Measured {
    std::shared_ptr<const Script> script;  ///< with that plan
    MeasuredTimeline timeline;
  };
  /// The last; null if there is none.
  [[nodiscard]] std::shared_ptr<const Measured> measured();
  /// Until no plan is being made. Not to be called within an operator, nor with locks.
  void wait_for_plan();

 private:
  enum class Mode : std::uint8_t { kLearning, kTracking, kFollowing };
  enum class Task : std::uint8_t { kClean, kEvict, kFetch, kRelocate, kDrop, kRemake, kSettle };
  struct Order {
    Task task;
    Block* block;  ///< null: a ghost
    BlockUid uid;
    const std::vector<Bytes>* addresses = nullptr;  ///< of the script, for kRemake
  };
  /// A plan that is being made, from the end of the timed step on. Until `done`, which the pilot's
  /// lock guards, it is the planner's alone.
  struct Job {
    std::shared_ptr<Script> original;  ///< what was timed
    std::shared_ptr<Script> made;      ///< a copy, to be planned; null: it is only to be looked at
    Walk::Names names;                 ///< of the step that was timed
    std::vector<double> longer;        ///< likewise: how much longer they take with its sizes
    bool timed = true;                 ///< false: the times are in the shape
    bool first = false;                ///< no script has a plan
    HostTimes host;                    ///< likewise
    std::vector<std::size_t> places;   ///< the script's operator of each lap; empty: all in order
    bool keeps = false;                ///< its plan is to be kept for the next start
    bool better = false;               ///< there is a plan that had not been there
    Options options;
    std::string failure;
    std::shared_ptr<const Measured> measured;
    bool done = false;
    std::atomic<bool> stop = false;  ///< nobody wants its plan any more: see hurry()
  };
  using Guard = std::lock_guard<std::mutex>;
  using Lock = std::unique_lock<std::mutex>;
  static constexpr int kMostLines = 3;  ///< more words about the same thing would only annoy
  static constexpr std::int64_t kClearPatience = 8;  ///< planned steps, and then twice as many
  static constexpr Bytes kMarginal = 8;            ///< of the smallest block: see Script::marginal
  static constexpr std::size_t kMostScripts = 32;  ///< what comes after them stays reactive
  /// A step comes so often before it is known, where no two whole ones may be alike.
  static constexpr std::uint64_t kSeen = 8;

  [[nodiscard]] static bool idle(const std::shared_ptr<Job>& job) { return !job || job->done; }
  void stop_locked(Lock& lock);
  void begin_locked();
  void find_wanted(std::vector<Ahead::Wanted>& wanted);
  void look_ahead(bool look, bool foresees, const std::vector<Ahead::Wanted>& wanted);
  void touch_locked(const Use& use);
  [[nodiscard]] ReplayCost known_cost(OperatorKey key) const;
  void collect_orders(std::size_t moment, std::vector<Order>& orders);
  void collect_turns(std::size_t moment, std::vector<Order>& orders);
  void collect_left_out(std::vector<Order>& orders);
  void collect_moves(std::vector<Order>& orders);
  void collect_strays(std::vector<Order>& orders);
  void see_to_the_way();
  /// `host`: what it takes is added there, if it is to be known.
  void carry_out(const std::vector<Order>& orders, HostTimes* host);
  void carry_out(EngineLock& lock, const Order& order);
  [[nodiscard]] static std::vector<double>& times_of(Task task, HostTimes& host);
  void remake(EngineLock& lock, const Order& order);
  void carry_out_on_ghost(const Order& order);
  void drop_or_evict(EngineLock& lock, const Order& order);
  void note_failure(const std::exception& error);
  bool walking() const { return mode_ != Mode::kLearning; }
  [[nodiscard]] Mode mode_along(const Script& script) const;
  void see_to_mode();
  void weigh_plans();
  /// The stream is not what walk_ expected: another script that fits, or learning anew.
  void go_along(auto go);
  void tell(auto tell);
  void differs();
  void settle_parting();
  void leave();
  void give_up(const Detour::Left& left);
  void give_up_detour();
  void look_for_way_back();
  void learn_now();
  bool rejoin(const std::shared_ptr<Script>& script, std::uint64_t from,
              Walk::Sizes sizes = Walk::Sizes::kEqual);
  void get_to_know(Script& script);
  void change_size(bool any = false);
  void learn_size();
  bool widen_to(const StepSizes& seen);
  [[nodiscard]] static Bytes needed_with(const Script& script, const StepSizes& sizes);
  [[nodiscard]] static std::shared_ptr<Script> of_size(const Script& script,
                                                       const StepSizes& sizes);
  void take_times(const std::shared_ptr<Script>& sized, const StepSizes& seen);
  static void scale_times(Script& sized, const Script& planned);
  void stays_as_it_is(Script& small, const Script& planned);
  void forget_smaller(const Script& planned);
  bool tell_again(const Walk& walk);
  void step_begins(std::uint64_t at);
  [[nodiscard]] std::string why_locked() const;
  void complain();
  void look_for_known();
  void look_for_new();
  void look_for_whole();
  void note_length(const std::shared_ptr<Script>& script, bool right);
  void listen_for_longer(std::shared_ptr<const Script> like, std::size_t size, std::uint64_t most);
  void look_for_longer();
  void forget_outgrown(const Script& longer);
  void prefer_another();
  [[nodiscard]] bool estimate_times(Script& whole) const;
  void leave_parts_alone(const Script& whole, bool still = false);
  void see_to_whole();
  void look_roughly();
  [[nodiscard]] bool knows_whole() const;
  void note_departures();
  [[nodiscard]] Bytes least_needed(StepLog::Span span) const;
  void learn_apart(StepShape shape);
  [[nodiscard]] bool outlived(const Script& script) const;
  void walk_along(std::shared_ptr<Script> script, Walk walk, bool goes_on_timing = false);
  /// The walk is at the start of a step. The job that is to be launched, or null.
  /// `whole`: the step that has ended was as planned, in its sizes and from its beginning on.
  std::shared_ptr<Job> step_started(bool whole);
  void hurry(Script& waits);
  [[nodiscard]] bool may_begin(const Script& other) const;
  void note_hoped();
  [[nodiscard]] bool timing_due() const;
  [[nodiscard]] bool own_timing_due() const;
  [[nodiscard]] bool wants_times(const Script& script) const;
  [[nodiscard]] bool wants_better(const Script& script) const;
  void stop_timing();
  void show_step(bool runs);
  void show_plan();
  void note_lap(std::size_t place);
  void take_over();
  void put_to_trial(const Job& job);
  [[nodiscard]] std::shared_ptr<Job> try_plans(double took_ms);
  [[nodiscard]] bool change_plan(PlanTrial& trial);
  void launch(const std::shared_ptr<Job>& job);
  void find_room(Job& job);
  void plan(Job& job);
  void finish(Job& job);
  void make_plan_of(Job& job, const PilotDevice::Laps& laps);
  static void keep_plan(const Script& script, const std::string& folder, const std::string& key);
  [[nodiscard]] static bool take_kept(Script& script, PlanCache& cache, const std::string& key);
  static void choose_deferred_of(Script& script, const Options& options);
  static bool search_plan_of(Script& script, const Options& options);
  static void put_in_order(Job& job, PilotDevice::Laps& laps);
  static void keep_measured(Job& job, const PilotDevice::Laps& laps);

  Engine& engine_;
  PilotDevice& device_;
  enum class State : std::uint8_t { kOff, kAsleep, kAwake };
  std::atomic<State> power_{State::kOff};
  std::atomic<std::int64_t> departures_{0};
  std::atomic<TierBelow> below_{TierBelow::kRoomy};
  std::atomic<bool> wants_costs_{true};  ///< see wants_costs(); written under the lock

  std::mutex mutex_;  ///< guards all below
  Options options_;
  Options given_;  ///< to start(); what has been settled since is in options_ alone
  Mode mode_ = Mode::kLearning;
  StepLog log_;
  Overheard overheard_;
  std::shared_ptr<Script> whole_;  ///< found there, and to be planned
  Growth growth_;
  Succession succession_;
  Outlook outlook_;
  std::vector<std::shared_ptr<Script>> scripts_;
  std::uint64_t forms_ = 0;         ///< the last Script::form
  std::shared_ptr<Script> script_;  ///< walk_ walks along it
  std::optional<Walk> walk_;
  std::optional<std::uint64_t> segment_;  ///< where in the log a step begins, perhaps
  Occurrences occurrences_;
  std::string difference_;        ///< of the last step from the one that was expected
  std::uint64_t planned_at_ = 0;  ///< operators_ at the end of the last planned step
  bool complained_ = false;
  std::uint64_t look_again_ = 0;           ///< operators_ from which a new step may be looked for
  std::uint64_t look_again_for_form_ = 0;  ///< likewise, one of several sizes
  std::uint64_t look_roughly_ = 0;         ///< likewise, one of which none is like another
  std::uint64_t operators_ = 0;            ///< all ever seen
  std::int64_t departures_seen_ = 0;       ///< departures_, when it was last looked at
  std::deque<std::uint64_t> left_at_;  ///< operators, in learning, around which blocks have left
  std::vector<double> longer_;         ///< Job::longer of the step that ends
  std::shared_ptr<Script> sized_;      ///< to be planned with the times of that step
  std::uint64_t joined_ = 0;           ///< at which of them this loop began, whatever its plans
  std::uint64_t diverged_ = 0;         ///< at which of them a walk last ended
  std::optional<Parting> parting_;
  bool timing_ = false;  ///< the device counts laps
  HostClock host_;       ///< watches the host meanwhile
  bool shown_ = false;   ///< the device has been told that a step runs under a plan
  int followed_ = 0;     ///< steps in a row under the plan of script_
  double step_begun_ms_ = 0;
  std::uint64_t step_begun_at_ = 0;  ///< operators_, likewise
  double least_step_ms_ = 0;         ///< of these, of those that were not timed; 0: of none
  std::int64_t misplaced_ = 0;   ///< what the device has said of them, when strays were last due
  int settle_after_ = 0;         ///< steps for which strays are left alone
  bool way_due_ = false;         ///< the device is to clear the way for the plan
  std::int64_t clear_from_ = 0;  ///< the planned step from which on it may be asked to again
  std::int64_t clear_patience_ = kClearPatience;
  bool end_due_ = false;      ///< the step has ended; the plan's last directives are still to do
  std::shared_ptr<Job> due_;  ///< to be launched: a step has ended on a detour
  PlanOrNone plan_or_none_;
  DetourGate detours_;
  std::optional<Detour> detour_;              ///< while learning: walk_ may go on
  std::optional<std::size_t> left_out_from_;  ///< operators of the script whose orders are due
  std::uint64_t straight_until_ = 0;          ///< operators_ until which no detour is tried
  std::vector<std::size_t> lap_places_;       ///< Job::places of the step that is timed
  bool laps_due_ = false;                     ///< of which no operator has begun yet
  struct {
    OperatorKey key = 0;
    std::string_view name;
    bool repeatable = false;
    ReplayCost replay_cost;
    bool running = false;
  } now_;
  /// What is being computed again, and where its allocations are wanted.
  std::unordered_map<BlockUid, const std::vector<Bytes>*> remaking_;
  PooledMap<BlockUid, Block*> blocks_;  ///< every block that was ever touched and lives
  Stats stats_;
  int said_ = 0;
  bool ghosts_due_ = false;  ///< the device is to be told that nobody counts on ghosts

  std::shared_ptr<Job> job_;  ///< the last, until it has been taken over
  std::shared_ptr<const Measured> measured_;
  std::unique_ptr<std::condition_variable> planned_ =
      std::make_unique<std::condition_variable>();  ///< a job is done
  std::mutex planner_mutex_;  ///< guards the thread; whoever holds it waits for no other lock
  std::unique_ptr<std::thread> planner_;
};

}  // namespace lms
