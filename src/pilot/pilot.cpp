#include "pilot/pilot.h"

#include <algorithm>

namespace lms {
namespace {

/// So many operators in a row, alike in all that can be seen, tell that a known step has begun.
constexpr std::size_t kTellTale = 12;
/// Steps under a new plan before its times are taken.
constexpr int kSettled = 3;
/// Sizes are told apart in units of this.
constexpr Bytes kRounding = 512;
/// Operators after which a loop that is no step is looked at again.
constexpr std::uint64_t kPause = 64;
/// Loops of more shapes than this stay reactive in those that came last.
constexpr std::size_t kMostScripts = 32;

/// Most bytes that are alive at once in a step, without what it never uses.
Bytes bytes_needed(const StepShape& shape) {
  std::vector<bool> used(shape.trace.blocks.size());
  for (const auto& op : shape.operators) {
    for (const auto& touch : op.touches) used[static_cast<std::size_t>(touch.block)] = true;
  }
  Bytes idle = 0;
  for (std::size_t id = 0; id < used.size(); ++id) {
    const TraceBlock& block = shape.trace.blocks[id];
    if (!block.born_in_step && !used[id]) idle += block.bytes;
  }
  return std::ranges::max(shape.trace.live_bytes()) - idle;
}

}  // namespace

Pilot::~Pilot() {
  stop();
  const Guard guard(planner_mutex_);
  if (planner_) planner_->join();
}

void Pilot::start(const Options& options) {
  Lock lock(mutex_);
  stop_locked(lock);
  options_ = options;
  mode_ = Mode::kLearning;
  log_.clear();
  scripts_.clear();
  script_.reset();
  walk_.reset();
  blocks_.clear();
  measured_.reset();
  now_ = {};
  remaking_.clear();
  end_due_ = false;
  followed_ = 0;
  look_again_ = operators_ = joined_ = diverged_ = 0;
  stats_ = {};
  said_ = 0;
  below_ = TierBelow::kRoomy;
  if (options.enabled) power_ = State::kAsleep;
}

void Pilot::stop() {
  Lock lock(mutex_);
  stop_locked(lock);
}

void Pilot::go_on() {
  const Lock lock(mutex_);
  learn_now();
  if (options_.enabled) power_ = State::kAwake;
}

void Pilot::stop_locked(Lock& lock) {
  // Asleep, no thread begins another job; the one that there is may be using the device.
  power_ = State::kOff;
  planned_->wait(lock, [this] { return idle(job_); });
  show_step(false);
  stop_timing();
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
                                       ReplayCost replay_cost) {
  if (!awake()) return Recording::kNo;
  static thread_local std::vector<Order> reused;
  std::vector<Order> orders = std::move(reused);
  orders.clear();
  bool timed = false;
  Recording recording = Recording::kNo;
  bool ghosts_due = false;
  std::shared_ptr<const Script> followed;  // the orders refer to it
  {
    const Guard guard(mutex_);
    if (!awake()) return Recording::kNo;  // it has been started anew just now
    now_ = {key, name, repeatable, replay_cost, true};
    begin_locked();
    // What the host does between two steps is none of the operators' time.
    if (timing_ && walk_->position() == 0) device_.start_laps();
    if (mode_ == Mode::kFollowing) {
      if (walk_->position() == 0) show_step(true);
      if (end_due_) {
        collect_orders(script_->size(), orders);
        collect_turns(script_->size(), orders);
        collect_moves(orders);
      }
      if (walk_->position() == 0) collect_strays(orders);
      collect_orders(walk_->position(), orders);
      collect_turns(walk_->position(), orders);
      if (script_->records(walk_->position())) recording = Recording::kForPlan;
      followed = script_;
    }
    const TierBelow below = below_.load(std::memory_order_relaxed);
    const bool full =
        below == TierBelow::kNearlyFull || (below == TierBelow::kFillingUp && !followed);
    if (recording == Recording::kNo && full && repeatable && options_.search.recompute) {
      recording = Recording::kForFullTier;
    }
    end_due_ = false;
    timed = timing_;
    ghosts_due = std::exchange(ghosts_due_, false);
  }
  if (ghosts_due) device_.drop_ghosts();
  if (!orders.empty()) carry_out(orders);
  if (timed) {
    // What has been computed again is none of the operator's time.
    const bool computed =
        std::ranges::any_of(orders, [](const Order& order) { return order.task == Task::kRemake; });
    const Guard guard(mutex_);
    if (timing_ && computed) device_.restart_lap();
    if (timing_) device_.begin_lap();
  }
  reused = std::move(orders);
  return recording;
}

void Pilot::begin_locked() {
  ++operators_;
  if (walking() && !walk_->begin(now_.key)) differs();
  if (walking() && !walk_->inside()) (void)walk_->begin(now_.key);
  if (!walking()) log_.begin_operator(now_.key, now_.name, now_.repeatable, now_.replay_cost);
}

void Pilot::touch(EngineLock& /*lock*/, std::span<const Use> uses) {
  if (!awake()) return;
  const Guard guard(mutex_);
  if (!now_.running) return;
  for (const Use& use : uses) touch_locked(use);
}

void Pilot::touch_locked(const Use& use) {
  Block& block = *use.block;
  if (block.uid == 0) return;
  Block*& known = blocks_[block.uid];
  known = &block;
  // As allocators round it: the same block may be heard of by its allocation, or by its use.
  const Bytes bytes = round_up(block.size, kRounding);
  if (walking() && !walk_->touch(block.uid, bytes, use.writes, &block)) {
    differs();
    // A script that the walk has changed to may expect something else as well.
    if (walking() && !walk_->touch(block.uid, bytes, use.writes, &block)) learn_now();
  }
  if (!walking()) log_.touch(block.uid, bytes, use.writes);
}

void Pilot::restart_operator() {
  if (!awake()) return;
  const Guard guard(mutex_);
  if (!now_.running) return;
  if (timing_) device_.restart_lap();
  if (walking()) {
    walk_->restart();
  } else {
    log_.restart_operator();
  }
}

void Pilot::end_operator() {
  if (!awake()) return;
  std::shared_ptr<Job> job;
  {
    const Guard guard(mutex_);
    if (!now_.running) return;
    now_.running = false;
    if (walking()) {
      if (timing_) device_.lap();
      if (walk_->end()) job = step_started();
    } else {
      log_.end_operator();
      look_for_known();
      if (!walking()) look_for_new();
    }
  }
  if (job) launch(job);
}

void Pilot::mark_step() {
  if (!awake()) return;
  const Guard guard(mutex_);
  if (!awake() || walking()) return;
  log_.mark_step();
  look_for_new();
}

// Allocations

Bytes Pilot::allocating(BlockUid uid, Bytes bytes) {
  if (!awake()) return kNoAddress;
  const Guard guard(mutex_);
  if (!awake()) return kNoAddress;
  Bytes address = kNoAddress;
  bytes = round_up(bytes, kRounding);
  if (walking() && !walk_->alloc(uid, bytes, &address)) {
    differs();
    if (walking() && !walk_->alloc(uid, bytes, &address)) learn_now();
  }
  if (!walking()) log_.alloc(uid, bytes);
  return mode_ == Mode::kFollowing ? address : kNoAddress;
}

void Pilot::released(BlockUid uid) {
  if (uid == 0 || !awake()) return;
  const Guard guard(mutex_);
  blocks_.erase(uid);
  if (walking()) {
    walk_->release(uid);
  } else {
    log_.release(uid);
  }
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

// Which step it is

void Pilot::shun_if_part() {
  // A loop that ends after a few rounds, and does so again and again, is part of a longer step
  // (micro-steps whose gradients accumulate). Time to see the whole of that step twice.
  constexpr std::uint64_t kFew = 32;
  constexpr int kAgain = 2;
  constexpr std::uint64_t kRounds = 3;
  if (operators_ - joined_ < kFew * script_->size()) {
    if (++script_->ended_early >= kAgain) {
      script_->shunned_until = operators_ + kRounds * (operators_ - diverged_);
    }
  }
  diverged_ = operators_;
}

void Pilot::differs() {
  ++stats_.divergences;
  for (const auto& other : scripts_) {
    if (other == script_) continue;
    auto changed = walk_->change_to(*other);
    if (!changed) continue;
    if (now_.running && !changed->inside() && !changed->begin(now_.key)) continue;
    walk_along(other, std::move(*changed));
    return;
  }
  shun_if_part();
  if (mode_ == Mode::kFollowing && said_++ < kMostLines) {
    device_.say("this step is another than the one planned: " + walk_->why() +
                "; going on without a plan until this loop is known");
  }
  learn_now();
}

void Pilot::learn_now() {
  show_step(false);
  stop_timing();
  mode_ = Mode::kLearning;
  walk_.reset();
  script_.reset();
  end_due_ = false;
  log_.clear();
  ghosts_due_ = true;
  if (now_.running) log_.begin_operator(now_.key, now_.name, now_.repeatable, now_.replay_cost);
}

void Pilot::walk_along(std::shared_ptr<Script> script, Walk walk) {
  show_step(false);
  stop_timing();
  // The walk refers to its script.
  walk_.emplace(std::move(walk));
  script_ = std::move(script);
  mode_ = script_->planned ? Mode::kFollowing : Mode::kTracking;
  joined_ = operators_;
  end_due_ = false;
  followed_ = 0;
  settle_after_ = 0;
  ghosts_due_ = true;
}

void Pilot::show_step(bool runs) {
  if (std::exchange(shown_, runs) != runs) device_.show(PilotDevice::Stage::kStep, runs);
}

void Pilot::stop_timing() {
  if (std::exchange(timing_, false)) device_.drop_laps();
}

bool Pilot::timing_due() const {
  if (job_ || script_->hopeless) return false;
  // Times are taken once to plan, once more where the plan itself has changed them, and of the plan
  // that is kept, to be shown.
  const bool settled = mode_ == Mode::kFollowing && followed_ >= kSettled;
  return mode_ == Mode::kTracking || (settled && !(script_->refined && script_->measured));
}

std::shared_ptr<Pilot::Job> Pilot::step_started() {
  show_step(false);
  if (mode_ == Mode::kFollowing) {
    ++stats_.steps;
    ++followed_;
    end_due_ = true;
    ghosts_due_ = true;
  }
  if (timing_) {
    timing_ = false;
    job_ = std::make_shared<Job>();
    job_->original = script_;
    // A refined plan stays: it is only to be seen what became of it.
    if (!script_->refined) job_->made = std::make_shared<Script>(*script_);
    job_->names = walk_->take_names();
    job_->options = options_;
    return job_;
  }
  if (job_ && job_->done) take_over();
  timing_ = timing_due();
  if (timing_ && mode_ == Mode::kFollowing) walk_->keep_names();
  return nullptr;
}

// Learning

bool Pilot::rejoin(const std::shared_ptr<Script>& script, std::uint64_t from) {
  Walk walk(*script);
  Bytes ignored = kNoAddress;
  const auto allocs = [&](const LoggedOperator& op, bool inside) {
    return std::ranges::all_of(op.changes, [&](const auto& change) {
      return change.inside != inside || !change.alloc ||
             walk.alloc(change.block, log_.bytes_of(change.block), &ignored);
    });
  };
  const auto releases = [&](const LoggedOperator& op, bool inside) {
    for (const auto& change : op.changes) {
      if (change.inside == inside && !change.alloc) walk.release(change.block);
    }
  };
  if (from > log_.first() && !allocs(log_.at(from - 1), false)) return false;
  for (std::uint64_t n = from; n < log_.end(); ++n) {
    const LoggedOperator& op = log_.at(n);
    if (!walk.begin(op.key) || !allocs(op, true)) return false;
    for (const auto& touch : op.touches) {
      if (!walk.touch(touch.block, log_.bytes_of(touch.block), touch.writes, nullptr)) return false;
    }
    releases(op, true);
    (void)walk.end();
    releases(op, false);
    // What is allocated between two operators is the later one's.
    if (!allocs(op, false)) return false;
  }
  walk_along(script, std::move(walk));
  log_.clear();
  return true;
}

void Pilot::look_for_known() {
  for (const auto& script : scripts_) {
    if (operators_ < script->shunned_until) continue;
    const std::size_t tell = std::min(kTellTale, script->size());
    if (log_.end() - log_.first() < tell) continue;
    const std::uint64_t from = log_.end() - tell;
    bool alike = true;
    for (std::size_t i = tell; alike && i-- > 0;) {
      alike = log_.at(from + i).key == script->shape.operators[i].key;
    }
    if (alike && rejoin(script, from)) return;
  }
}

void Pilot::look_for_new() {
  if (operators_ < look_again_ || scripts_.size() >= kMostScripts) return;
  const auto span = log_.repeated_step();
  if (!span) return;
  auto script = std::make_shared<Script>();
  script->shape = make_shape(log_, *span);
  if (bytes_needed(script->shape) < options_.limit / 4 * 3) {
    // A loop inside the step: alone it would fit, and nothing would have to move.
    look_again_ = operators_ + std::max<std::uint64_t>(kPause, 2 * script->size());
    return;
  }
  auto replaced = scripts_.end();
  for (auto known = scripts_.begin(); known != scripts_.end(); ++known) {
    if (!same_step((*known)->shape, script->shape)) continue;
    if (operators_ < (*known)->shunned_until || rejoin(*known, span->end)) return;
    // The same on other blocks: of another model, perhaps after the first.
    if ((*known)->planned && same_blocks((*known)->shape, script->shape)) {
      auto planned = std::make_shared<Script>(**known);
      planned->shape.uids = script->shape.uids;
      planned->shape.turning = script->shape.turning;
      planned->ended_early = 0;
      script = std::move(planned);
    }
    if (outlived(**known)) replaced = known;
  }
  script->turns = std::make_shared<Turns>(script->shape);
  if (!rejoin(script, span->end)) return;
  if (replaced != scripts_.end()) {
    *replaced = std::move(script);
  } else {
    scripts_.push_back(std::move(script));
  }
  stats_.shapes = static_cast<std::int64_t>(scripts_.size());
}

/// True if a block that every step uses is no more.
bool Pilot::outlived(const Script& script) const {
  for (TraceBlockId id = 0; id < script.shape.uids.size(); ++id) {
    const TraceBlock& block = script.shape.trace.blocks[id];
    if (block.born_in_step || block.carried_from != kNoBlock) continue;
    if (script.turns->idle(id) || script.turns->may_turn(id)) continue;
    if (!blocks_.contains(script.shape.uids[id])) return true;
  }
  return false;
}

// Facts

Pilot::Stats Pilot::stats() {
  const Guard guard(mutex_);
  return stats_;
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
  Lock lock(mutex_);
  planned_->wait(lock, [this] { return idle(job_); });
}

}  // namespace lms
