#include "pilot/pilot.h"

#include <algorithm>
#include <utility>

namespace lms {
namespace {

/// Sizes are told apart in units of this.
constexpr Bytes kRounding = 512;

}  // namespace

Pilot::~Pilot() {
  stop();
  const Guard guard(planner_mutex_);
  if (planner_) planner_->join();
}

void Pilot::start(const Options& options) {
  {
    const Lock lock(mutex_);
    if (power_ != State::kOff && options == given_) return;
  }
  stop();
  {
    EngineLock lock = engine_.lock();
    outlook_.clear_moves(lock);
  }
  Lock lock(mutex_);
  stop_locked(lock);
  options_ = given_ = options;
  mode_ = Mode::kLearning;
  wants_costs_ = true;
  log_.clear();
  overheard_.stop();
  whole_.reset();
  growth_ = {};
  succession_ = {};
  log_.set_marginal(kMarginal * options.min_block);
  outlook_.clear();
  scripts_.clear();
  script_.reset();
  walk_.reset();
  blocks_.clear();
  measured_.reset();
  now_ = {};
  remaking_.clear();
  end_due_ = false;
  plan_or_none_.start(options.compares && device_.copies_beside());
  detours_.start(options.detours);
  detour_.reset();
  due_.reset();
  parting_.reset();
  left_out_from_.reset();
  straight_until_ = 0;
  followed_ = 0;
  step_begun_at_ = 0;
  look_again_ = look_again_for_form_ = look_roughly_ = operators_ = joined_ = diverged_ =
      planned_at_ = 0;
  left_at_.clear();
  segment_.reset();
  occurrences_.clear();
  difference_.clear();
  complained_ = false;
  stats_ = {};
  clear_from_ = 0;
  clear_patience_ = kClearPatience;
  way_due_ = false;
  said_ = 0;
  below_ = TierBelow::kRoomy;
  device_.defer_updates({});
  if (options.enabled) power_ = State::kAsleep;
}

void Pilot::stop() {
  Lock lock(mutex_);
  stop_locked(lock);
}

void Pilot::go_on() {
  const Lock lock(mutex_);
  walk_.reset();
  overheard_.stop();
  learn_now();
  ghosts_due_ = true;
  if (options_.enabled) power_ = State::kAwake;
}

void Pilot::stop_locked(Lock& lock) {
  // Asleep, no thread begins another job; the one that there is may be using the device.
  power_ = State::kOff;
  if (due_) std::exchange(due_, nullptr)->done = true;  // nobody will launch it any more
  if (job_) job_->stop = true;
  planned_->wait(lock, [this] { return idle(job_); });
  show_step(false);
  stop_timing();
  if (job_) job_->original->waits = false;  // what becomes of it nobody asks
  job_.reset();
}

void Pilot::before_fork() {
  planner_mutex_.lock();
  mutex_.lock();
}

void Pilot::after_fork() {
  mutex_.unlock();
  planner_mutex_.unlock();
}

void Pilot::in_child() {
  power_ = State::kOff;
  job_.reset();  // the planner, which is no more, has its own reference
  (void)planner_.release();
  // Threads that are no more may be waiting for it.
  (void)planned_.release();
  planned_ = std::make_unique<std::condition_variable>();
  after_fork();
}

BlockUid Pilot::new_uid() noexcept {
  static std::atomic<BlockUid> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// The stream of operators

Pilot::Recording Pilot::begin_operator(OperatorKey key, std::string_view name, bool repeatable,
                                       std::optional<ReplayCost> replay_cost) {
  if (!awake()) return Recording::kNo;
  struct Reused {
    std::vector<Order> orders;
    std::vector<Ahead::Wanted> wanted;
  };
  static thread_local Reused of_thread;
  Reused& reused = of_thread;
  std::vector<Order> orders = std::move(reused.orders);
  orders.clear();
  bool timed = false;
  Recording recording = Recording::kNo;
  bool ghosts_due = false;
  bool way_due = false;
  bool foresees = false;
  bool look = false;
  bool follows = false;
  std::vector<Ahead::Wanted>& wanted = reused.wanted;
  std::shared_ptr<const Script> followed;  // the orders refer to it
  {
    const Guard guard(mutex_);
    if (!awake()) return Recording::kNo;  // it has been started anew just now
    now_ = {key, name, repeatable, replay_cost ? *replay_cost : known_cost(key), true};
    begin_locked();
    // What the host does between two steps is none of the operators' time.
    if (timing_ && std::exchange(laps_due_, false)) {
      device_.start_laps();
      host_.start();
    }
    if (mode_ == Mode::kFollowing) {
      if (walk_->position() == 0) show_step(true);
      if (end_due_) {
        collect_orders(script_->size(), orders);
        collect_turns(script_->size(), orders);
        collect_moves(orders);
      }
      if (walk_->position() == 0) collect_strays(orders);
      collect_left_out(orders);
      collect_orders(walk_->position(), orders);
      collect_turns(walk_->position(), orders);
      if (script_->records(walk_->position())) recording = Recording::kForPlan;
      if (!orders.empty()) followed = script_;
      follows = true;
      outlook_.rest();
    } else {
      look = outlook_.begin_operator(key);
      foresees = outlook_.trusted() && device_.copies_beside();
      if (foresees) find_wanted(wanted);
    }
    const TierBelow below = below_.load(std::memory_order_relaxed);
    const bool full =
        below == TierBelow::kNearlyFull || (below == TierBelow::kFillingUp && !follows);
    if (recording == Recording::kNo && full && repeatable && options_.search.recompute) {
      recording = Recording::kForFullTier;
    }
    end_due_ = false;
    timed = timing_;
    ghosts_due = std::exchange(ghosts_due_, false);
    way_due = std::exchange(way_due_, false);
  }
  if (ghosts_due) device_.drop_ghosts();
  const auto begun = timed ? HostClock::Clock::now() : HostClock::Clock::time_point{};
  if (way_due) device_.clear_way();
  HostTimes host;
  if (!orders.empty()) carry_out(orders, timed ? &host : nullptr);
  if (foresees || look) look_ahead(look, foresees, wanted);
  if (timed) {
    // What has been computed again is none of the operator's time.
    const bool computed =
        std::ranges::any_of(orders, [](const Order& order) { return order.task == Task::kRemake; });
    const Guard guard(mutex_);
    if (timing_ && computed) device_.restart_lap();
    if (timing_) device_.begin_lap();
    host_.add(host);
    host_.exclude(HostClock::since(begun));
  }
  reused.orders = std::move(orders);
  return recording;
}

ReplayCost Pilot::known_cost(OperatorKey key) const {
  if (!walking()) return {};
  const StepShape::Operator& op = script_->shape.operators[walk_->position()];
  return op.key == key ? op.replay_cost : ReplayCost();
}

/// `tell`: something, to a log. Those that listen hear it.
void Pilot::tell(auto tell) {
  if (!walking()) tell(log_);
  if (StepLog* heard = overheard_.log()) tell(*heard);
}

void Pilot::begin_locked() {
  ++operators_;
  tell([&](StepLog& log) {
    log.begin_operator(now_.key, now_.name, now_.repeatable, now_.replay_cost);
  });
  if (!walking()) return;
  if (!walk_->begin(now_.key)) differs();  // which tells the log, if it is no known step
  if (walking() && !walk_->inside()) (void)walk_->begin(now_.key);
}

/// `go`: the walk takes note of something, or returns false: it differs there.
void Pilot::go_along(auto go) {
  if (!walking() || go()) return;
  differs();
  // A script that the walk has changed to may expect something else as well.
  if (!walking() || go()) return;
  for (const bool any : {false, true}) {
    if (!walk_->differs_in_size()) break;
    change_size(any);
    if (go()) return;
  }
  difference_ = walk_->why();
  leave();
}

void Pilot::touch(EngineLock& /*lock*/, std::span<const Use> uses) {
  if (!awake()) return;
  const Guard guard(mutex_);
  if (!now_.running) return;
  for (const Use& use : uses) touch_locked(use);
}

void Pilot::kept(EngineLock& /*lock*/, const Block& block) {
  if (!awake()) return;
  const Guard guard(mutex_);
  tell([&](StepLog& log) { log.keep(block.uid); });
}

void Pilot::used_below(EngineLock& /*lock*/, std::span<const Use> uses) {
  if (!awake()) return;
  const Guard guard(mutex_);
  for (const Use& use : uses) {
    if (use.block->uid == 0) continue;
    blocks_[use.block->uid] = use.block;
    tell([&](StepLog& log) { log.may_move(use.block->uid); });
  }
}

void Pilot::touch_locked(const Use& use) {
  Block& block = *use.block;
  if (block.uid == 0) return;
  if (block.beside) {
    // Nobody can count on its bytes later.
    return tell([](StepLog& log) {
      if (log.end() > log.first()) log.at(log.end() - 1).repeatable = false;
    });
  }
  if (use.writes && parting_ && !parting_->changed) {
    parting_->changed = std::ranges::binary_search(parting_->walk.script->only_read, block.uid);
  }
  // As allocators round it: the same block may be heard of by its allocation, or by its use.
  const Bytes bytes = round_up(block.size, kRounding);
  const auto note = [&](StepLog& log) {
    log.touch(block.uid, bytes, use.writes);
    if (block.kept) log.keep(block.uid);
  };
  if (mode_ == Mode::kFollowing && walk_->touch_known(block.uid, bytes, use.writes, &block)) {
    return tell(note);
  }
  blocks_[block.uid] = &block;
  go_along([&] { return walk_->touch(block.uid, bytes, use.writes, &block); });
  tell(note);
  if (mode_ != Mode::kFollowing) outlook_.touch(block, bytes, use.writes);
}

void Pilot::restart_operator() {
  if (!awake()) return;
  const Guard guard(mutex_);
  if (!now_.running) return;
  if (timing_) device_.restart_lap();
  if (walking()) walk_->restart();
  tell([](StepLog& log) { log.restart_operator(); });
}

/// More is known than one part of a step.
bool Pilot::knows_whole() const {
  return scripts_.size() > 1 || (scripts_.size() == 1 && !scripts_.front()->is_part);
}

void Pilot::end_operator() {
  if (!awake()) return;
  std::shared_ptr<Job> job;
  {
    const Guard guard(mutex_);
    if (!now_.running) return;
    now_.running = false;
    const bool follows = mode_ == Mode::kFollowing;
    if (plan_or_none_.count(follows)) weigh_plans();
    if (idle(job_) && knows_whole() && !plan_or_none_.rests()) {
      detours_.count(follows, [this] { return device_.now_ms(); });
    } else {
      detours_.pass();
    }
    tell([](StepLog& log) { log.end_operator(); });
    if (walking()) {
      if (timing_) note_lap(walk_->position());
      const bool last = walk_->position() + 1 == script_->size();
      const bool sized = walk_->sizes() != Walk::Sizes::kEqual;
      const bool jumped = walk_->jumped();
      if (last && !jumped && sized) learn_size();
      if (walk_->end()) {
        job = step_started(!jumped && !sized);
        prefer_another();
      }
    } else {
      if (timing_) note_lap(SIZE_MAX);
      note_departures();
      look_for_way_back();
      if (!walking()) look_for_known();
      if (!walking()) look_for_new();
      if (!walking()) complain();
    }
    look_for_whole();
    look_for_longer();
    see_to_whole();
    if (!job) job = std::exchange(due_, nullptr);
  }
  if (job) launch(job);
}

void Pilot::mark_step() {
  if (!awake()) return;
  const Guard guard(mutex_);
  if (!awake()) return;
  tell([](StepLog& log) { log.mark_step(); });
  if (!walking()) look_for_new();
}

// Allocations

Bytes Pilot::allocating(BlockUid uid, Bytes bytes) {
  if (!awake()) return kNoAddress;
  const Guard guard(mutex_);
  if (!awake()) return kNoAddress;
  Bytes address = kNoAddress;
  bytes = round_up(bytes, kRounding);
  go_along([&] { return walk_->alloc(uid, bytes, &address); });
  tell([&](StepLog& log) { log.alloc(uid, bytes); });
  return mode_ == Mode::kFollowing ? address : kNoAddress;
}

void Pilot::released(BlockUid uid) {
  if (uid == 0 || !awake()) return;
  const Guard guard(mutex_);
  blocks_.erase(uid);
  outlook_.released(uid);
  if (walking()) walk_->release(uid);
  tell([&](StepLog& log) { log.release(uid); });
  if (detour_) detour_->release(uid);
}

void Pilot::gone(BlockUid uid) {
  if (uid == 0 || !awake()) return;
  const Guard guard(mutex_);
  blocks_.erase(uid);
  outlook_.released(uid);
}

Bytes Pilot::home_of(const Block& block) {
  if (!awake()) return kNoAddress;
  const Guard guard(mutex_);
  return mode_ == Mode::kFollowing ? walk_->home(block.uid) : kNoAddress;
}

std::vector<std::uint32_t> Pilot::pages_of(Bytes address) {
  const Guard guard(mutex_);
  const auto index = static_cast<std::size_t>(address - kScattered);
  if (!script_ || index >= script_->placement.scattered.size()) return {};
  return script_->placement.scattered[index];
}

// Facts

Pilot::Stats Pilot::stats() {
  const Guard guard(mutex_);
  Stats stats = stats_;
  stats.why = why_locked();
  stats.on_trial = script_ && script_->trial;
  stats.rests = plan_or_none_.rests();
  return stats;
}

std::shared_ptr<const Script> Pilot::current() {
  const Guard guard(mutex_);
  if (script_ && script_->planned) return script_;
  for (const auto& script : scripts_) {
    if (script->planned) return script;
  }
  return script_;
}

std::shared_ptr<const Pilot::Measured> Pilot::measured() {
  const Guard guard(mutex_);
  return measured_;
}

void Pilot::wait_for_plan() {
  const auto begun = HostClock::Clock::now();
  Lock lock(mutex_);
  planned_->wait(lock, [this] { return idle(job_); });
  host_.exclude(HostClock::since(begun));  // if a step is being timed: no operator's work
}

}  // namespace lms
