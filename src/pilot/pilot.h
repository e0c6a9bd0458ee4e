#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "pilot/plan_cache.h"
#include "pilot/script.h"
#include "plan/measured.h"

namespace lms {

/// What planning must know of a device, and have it do. Called without locks of engine and pilot
/// unless said otherwise.
class PilotDevice {
 public:
  virtual ~PilotDevice() = default;

  /// Times operators: laps are counted from 0, each from the one before (the first from start) to
  /// what is queued now. start_laps() and lap() are called with the pilot's lock held.
  virtual void start_laps() = 0;
  /// What there was to do before the lap's operator has been queued: what lies on the device from
  /// now on is the operator's.
  virtual void begin_lap() {}
  virtual void lap() = 0;
  /// The lap's operator begins only now (anew, if it has failed): until now the device has stood
  /// still, or computed something else. With the pilot's lock held.
  virtual void restart_lap() {}

  struct Laps {
    /// A lap each. Its computation, without the time for which the device stood still for copies,
    /// lies at its end.
    std::vector<MeasuredOperator> operators;
    std::vector<MeasuredCopy> copies;  ///< that were begun in one of the laps
  };
  /// All laps. Waits for the device; called by the planning thread.
  virtual Laps finish_laps() = 0;
  /// Nobody will ask for the laps that are being timed. Called with the pilot's lock held.
  virtual void drop_laps() {}

  struct Room {
    Bytes arena = 0;         ///< bytes that a plan may have on the device
    Bytes page = 0;          ///< pieces in which memory can be put behind addresses; 0: it cannot
    bool addresses = false;  ///< plans say where (from 0); false: the device places blocks itself
  };
  /// What a plan may use. Called between two steps; the device may put itself in order for it. What
  /// lies there without any operator using it is not part of it.
  virtual Room room() = 0;
  /// What of the room of an earlier plan a better one of the same step may count on.
  virtual Bytes still_room(Bytes room) { return room; }
  /// How many allocations and arrivals have not got the address that the plan wanted for them.
  [[nodiscard]] virtual std::int64_t misplaced() const { return 0; }
  /// False if a block on the device lies elsewhere than Pilot::home_of() wants it. Called with the
  /// engine's lock held.
  [[nodiscard]] virtual bool at_home(const Block& /*block*/) { return true; }
  /// As far as it is known from the laps so far; called by the planning thread.
  [[nodiscard]] virtual LinkModel link() = 0;

  /// Computes the bytes of a block again whose storage is gone, because others are to be computed
  /// from it. `addresses`: as Pilot::addresses_for(). Throws whatever that throws.
  virtual void remake_ghost(BlockUid /*uid*/, const std::vector<Bytes>& /*addresses*/) {}
  virtual void drop_ghost(BlockUid /*uid*/) {}
  /// No plan counts on ghosts any more. Called with the pilot's lock held.
  virtual void drop_ghosts() {}

  enum class Stage : std::uint8_t {
    kStep,      ///< a step under a plan; may end in another thread
    kOrders,    ///< what the plan has before an operator
    kPlanning,  ///< a plan is made
  };
  /// For profilers. Cheap; may be called with the pilot's lock held.
  virtual void show(Stage /*stage*/, bool /*begins*/) noexcept {}
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
/// Thread-safe; lock order: engine, then pilot. Operators of several threads that interleave are
/// taken for one stream, which then never repeats: the engine stays reactive.
class Pilot {
 public:
  struct Options {
    bool enabled = true;
    Bytes limit = 0;             ///< loops that fit under it by far are no steps to plan
    bool in_foreground = false;  ///< plan while the step waits (tests)
    SearchOptions search;
    std::string plan_cache;  ///< folder of plans for the next start (PlanCache); empty: none
  };

  Pilot(Engine& engine, PilotDevice& device) : engine_(engine), device_(device) {}
  ~Pilot();
  Pilot(const Pilot&) = delete;
  Pilot& operator=(const Pilot&) = delete;

  /// Forgets everything and starts anew.
  void start(const Options& options);
  void stop();
  /// In a child after fork(): the planning thread is the parent's, and so may be a held lock.
  void abandon() noexcept { awake_ = false; }
  /// Blocks have begun to leave: from now on there is something to plan.
  void wake() { awake_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool awake() const { return awake_.load(std::memory_order_relaxed); }
  /// How full the tier below is. While it is filling up, all operators are recorded that can be run
  /// again: what finds no room below can then be dropped. Under a plan, which is to need less of
  /// it, only once it is nearly full.
  enum class TierBelow : std::uint8_t { kRoomy, kFillingUp, kNearlyFull };
  void set_below(TierBelow below) { below_.store(below, std::memory_order_relaxed); }

  // The stream of outermost operators ------------------------------------------------------------

  /// Whether it is to be recorded how an operator can be run again.
  enum class Recording : std::uint8_t {
    kNo,
    kForPlan,      ///< the plan will want it
    kForFullTier,  ///< it may find no room below
  };

  /// Carries out what the plan has before this operator. The engine's lock must not be held.
  Recording begin_operator(OperatorKey key, std::string_view name, bool repeatable,
                           ReplayCost replay_cost = {});
  /// The running operator, or one nested in it, has pinned these.
  void touch(EngineLock& lock, std::span<const Use> uses);
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
  /// Where the plan wants an absent block that comes back now, or one that moves, or kNoAddress.
  Bytes home_of(const Block& block);
  /// Where the plan wants the allocations of the rematerialisation that has been begun of this
  /// block; empty if it does not say.
  std::vector<Bytes> addresses_for(const Block& block);
  /// The pages that an address from kScattered on stands for; none if the plan has changed since.
  [[nodiscard]] std::vector<std::uint32_t> pages_of(Bytes address);

  struct Stats {
    std::int64_t shapes = 0;       ///< different steps known
    std::int64_t planned = 0;      ///< of those, planned
    std::int64_t kept = 0;         ///< of those, with a plan that was kept from another start
    std::int64_t refined = 0;      ///< of those, planned again with the times of planned steps
    std::int64_t steps = 0;        ///< steps carried out under a plan
    std::int64_t divergences = 0;  ///< steps that turned out to be others
    std::int64_t refused = 0;      ///< drops of blocks that nobody knows how to compute
    std::int64_t failed = 0;       ///< rematerialisations that failed
    double predicted_ms = 0;       ///< of the plan last followed
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
  /// Until no plan is being made. Not to be called within an operator.
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
  using Guard = std::lock_guard<std::mutex>;
  /// More words about the same thing would only annoy.
  static constexpr int kMostLines = 3;

  void begin_locked();
  void touch_locked(const Use& use);
  void collect_orders(std::size_t moment, std::vector<Order>& orders);
  void collect_moves(std::vector<Order>& orders);
  void collect_strays(std::vector<Order>& orders);
  void carry_out(const std::vector<Order>& orders);
  void remake(EngineLock& lock, const Order& order);
  void carry_out_on_ghost(const Order& order);
  void drop_or_evict(EngineLock& lock, const Order& order);
  void note_failure(const std::exception& error);
  bool walking() const { return mode_ != Mode::kLearning; }
  /// The stream is not what walk_ expected: another script that fits, or learning anew.
  void differs();
  void shun_if_part();
  void learn_now();
  bool rejoin(const std::shared_ptr<Script>& script, std::uint64_t from);
  void look_for_known();
  void look_for_new();
  void walk_along(std::shared_ptr<Script> script, Walk walk);
  /// The walk is at the start of a step. True if planning is to be launched.
  bool step_started();
  [[nodiscard]] bool timing_due() const;
  void stop_timing();
  void show_step(bool runs);
  void take_over();
  void launch();
  void plan_in_background();
  void make_plan_of(Script& script, const PilotDevice::Laps& laps);
  [[nodiscard]] bool take_kept(Script& script, PlanCache& cache, const std::string& key) const;
  void search_plan_of(Script& script);
  void keep_measured(const PilotDevice::Laps& laps);

  Engine& engine_;
  PilotDevice& device_;
  std::atomic<bool> awake_{false};
  std::atomic<TierBelow> below_{TierBelow::kRoomy};

  std::mutex mutex_;  ///< guards all below
  Options options_;
  Mode mode_ = Mode::kLearning;
  StepLog log_;
  std::vector<std::shared_ptr<Script>> scripts_;
  std::shared_ptr<Script> script_;  ///< walk_ walks along it
  std::optional<Walk> walk_;
  std::uint64_t look_again_ = 0;  ///< operators_ from which a new step may be looked for
  std::uint64_t operators_ = 0;   ///< all ever seen
  std::uint64_t joined_ = 0;      ///< at which of them walk_ began
  std::uint64_t diverged_ = 0;    ///< at which of them a walk last ended
  bool timing_ = false;           ///< the device counts laps
  bool shown_ = false;            ///< the device has been told that a step runs under a plan
  int followed_ = 0;              ///< steps in a row under the plan of script_
  std::int64_t misplaced_ = 0;    ///< what the device has said of them, when strays were last due
  int settle_after_ = 0;          ///< steps for which strays are left alone
  bool end_due_ = false;  ///< the step has ended; the plan's last directives are still to do
  struct {
    OperatorKey key = 0;
    std::string_view name;
    bool repeatable = false;
    ReplayCost replay_cost;
    bool running = false;
  } now_;
  /// What is being computed again, and where its allocations are wanted.
  std::unordered_map<BlockUid, const std::vector<Bytes>*> remaking_;
  std::unordered_map<BlockUid, Block*> blocks_;  ///< every block that was ever touched and lives
  Stats stats_;
  int said_ = 0;
  bool ghosts_due_ = false;  ///< the device is to be told that nobody counts on ghosts

  std::thread planner_;
  std::atomic<bool> planner_done_{false};
  std::shared_ptr<const Measured> measured_;
  Walk::Names timed_names_;           ///< of the step that was timed; the planner's
  std::shared_ptr<Script> original_;  ///< what was timed, and is being planned
  /// The copy on which the planner works, alone; null: it only looks at what was measured.
  std::shared_ptr<Script> in_making_;
  std::string failure_;
};

}  // namespace lms
