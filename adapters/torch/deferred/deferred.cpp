#include "adapters/torch/deferred/deferred.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <utility>

#include "adapters/torch/errors.h"
#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/python_lock.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/replay.h"

namespace lms::torch {

std::atomic<int> deferring{0};

namespace {

/// Those that are counted in `deferring`: the CPU's, then those of the GPUs.
std::array<std::atomic<const Deferred*>, 65> deferring_ones{};

std::atomic<const Deferred*>& place_of(c10::Device device) {
  return deferring_ones.at(device.is_cpu() ? 0 : 1 + static_cast<std::size_t>(device.index()));
}

/// Of parts that wait for each other in a row: nobody looks, so somebody only adds up.
constexpr std::size_t kLongestRow = 64;

/// Parts that the calling thread is running.
thread_local int running = 0;

/// The call that these parts of one call are together.
c10::Stack arguments_of(const std::vector<std::shared_ptr<Part>>& group) {
  c10::Stack stack = group.front()->arguments;
  if (group.size() == 1) return stack;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    if (!stack[i].isList()) continue;
    auto all = c10::impl::GenericList(stack[i].toList().elementType());
    for (const auto& part : group) {
      for (const c10::IValue& element : part->arguments[i].toListRef()) all.push_back(element);
    }
    stack[i] = std::move(all);
  }
  return stack;
}

/// But for dimensions of one position, of which the stride says nothing.
bool lie_alike(const at::Tensor& one, const at::Tensor& other) {
  if (one.sizes() != other.sizes()) return false;
  for (std::int64_t d = 0; d < one.dim(); ++d) {
    if (one.size(d) > 1 && one.stride(d) != other.stride(d)) return false;
  }
  return true;
}

/// The thread as it is for a part: in no scope, with pins of its own, and as it was at the call.
class PartScope {
 public:
  explicit PartScope(const Part& part)
      : state_(thread_state()),
        keeps_(std::exchange(state_.keeps, 0)),
        workspace_retry_(std::exchange(state_.workspace_retry, nullptr)),
        environment_(float_environment()),
        grad_mode_(part.grad_mode),
        below_(above_kernels()) {
    ++running;
    pins_.swap(state_.operator_pins);
    scopes_.swap(state_.access_scopes);
    if (environment_ != 0) set_float_environment(0);
  }
  ~PartScope() {
    if (environment_ != 0) set_float_environment(environment_);
    state_.operator_pins.release();
    state_.access_scopes.swap(scopes_);
    state_.operator_pins.swap(pins_);
    state_.workspace_retry = workspace_retry_;
    state_.keeps = keeps_;
    --running;
  }
  PartScope(const PartScope&) = delete;
  PartScope& operator=(const PartScope&) = delete;

 private:
  ThreadState& state_;
  Pins pins_;
  std::vector<AccessScope> scopes_;
  const int keeps_;
  WorkspaceRetry* const workspace_retry_;
  const InParts in_parts_;
  const std::uint32_t environment_;
  const c10::AutoGradMode grad_mode_;
  const c10::impl::ExcludeDispatchKeyGuard below_;
  const c10::impl::DisablePythonDispatcher no_python_;
};

bool conflicts(bool writes, bool other_writes) { return writes || other_writes; }

/// Whose storages are among these.
c10::SmallVector<DeviceManager*, 2> managers_of(std::span<const StorageUse> uses) {
  c10::SmallVector<DeviceManager*, 2> managers;
  for (const StorageUse& use : uses) {
    DeviceManager* const manager = active_manager(use.storage->device());
    if (manager != nullptr && std::ranges::find(managers, manager) == managers.end()) {
      managers.push_back(manager);
    }
  }
  return managers;
}

}  // namespace

// Settings

Deferred::Mode Deferred::mode_of(const std::string& setting) {
  if (setting == "false" || setting == "off") return Mode::kNone;
  if (setting == "true" || setting == "on") return Mode::kChosen;
  if (setting == "lists") return Mode::kLists;
  if (setting == "updates") return Mode::kUpdates;
  if (setting == "all") return Mode::kAll;
  if (setting == "random") return Mode::kRandom;
  throw BadSetting("deferred_updates: '" + setting +
                   "' is not one of auto, true, false, lists, updates, all, random");
}

void Deferred::choose(const std::vector<BlockUid>& written) {
  auto chosen = std::make_shared<const Chosen>(written.begin(), written.end());
  {
    const std::lock_guard guard(chosen_mutex_);
    chosen_ = std::move(chosen);
  }
  any_chosen_ = !written.empty();
  if (is_by_plan(mode()) && !written.empty()) count(true);
}

void Deferred::count(bool among) {
  if (counted_.exchange(among) == among) return;
  // Whoever looks goes through the places until it has seen so many.
  if (among) ++deferring;
  place_of(manager_.device()) = among ? this : nullptr;
  if (!among) --deferring;
}

bool Deferred::concerns(const OpInfo& info, c10::function_ref<bool()> split) const {
  if (waiting_.load(std::memory_order_relaxed) > 0) return true;
  if (any_late_.load(std::memory_order_relaxed) && !manager_.records_here()) return true;
  const Mode mode = this->mode();
  if (!is_by_plan(mode)) return info.deferral != Deferral::kNever;
  const bool over_lists = info.deferral == Deferral::kLists || info.deferral == Deferral::kMakes;
  if (mode == Mode::kLists && over_lists) return split();
  const bool updates = over_lists || info.deferral == Deferral::kUpdates;
  return updates && any_chosen_.load(std::memory_order_relaxed);
}

bool concerns_deferred(const OpInfo& info, c10::function_ref<bool()> split) {
  int left = deferring.load(std::memory_order_relaxed);
  for (auto place = deferring_ones.begin(); left > 0 && place != deferring_ones.end(); ++place) {
    const Deferred* const one = place->load(std::memory_order_relaxed);
    if (one == nullptr) continue;
    if (one->concerns(info, split)) return true;
    --left;
  }
  return false;
}

std::shared_ptr<const Deferred::Chosen> Deferred::chosen() {
  const std::lock_guard guard(chosen_mutex_);
  return chosen_;
}

void Deferred::set_mode(Mode mode) {
  if (mode == this->mode()) return;
  choose({});
  const Mode before = mode_.exchange(mode);
  if (mode != Mode::kNone) {
    // Until a plan has chosen something, operators need not ask.
    if (mode != Mode::kChosen) count(true);
    return;
  }
  try {
    run_all();
  } catch (...) {
    mode_ = before;
    throw;
  }
  count(false);
}

// Waiting

bool Deferred::defer(RunOperator run, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                     const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack,
                     c10::function_ref<bool()> split) {
  const Mode mode = this->mode();
  if (mode == Mode::kNone) return false;
  const bool by_plan = is_by_plan(mode);
  const bool lists_alone = by_plan || mode == Mode::kUpdates;
  if (lists_alone && info.deferral == Deferral::kElements) return false;
  const bool makes = info.deferral == Deferral::kMakes;
  const bool brief = mode == Mode::kLists && info.deferral != Deferral::kUpdates;
  if (mode == Mode::kChosen && makes) return false;
  // What autograd is to know of is best run where it is called.
  if ((brief || makes) && c10::GradMode::is_enabled()) return false;
  if (makes && c10::InferenceMode::is_enabled()) return false;
  const auto only = by_plan && !brief ? chosen() : nullptr;
  if (only && only->empty()) return false;
  if (!thread_state().access_scopes.empty() || thread_state().keeps > 0) return false;
  if (!manager_.records_here() || manager_.capturing()) return false;
  if (brief && !split()) return false;
  // What helpers of other environments have computed depends on who has helped.
  if (!plain_environments() || float_environment() != 0) return false;
  Deferrable call = what_may_wait(manager_, only.get(), info, kernel, op, keys, stack);
  if (call.parts.empty()) return false;
  discard_dead();
  const std::uint64_t number = [&] {
    const std::lock_guard guard(mutex_);
    return next_call_++;
  }();
  for (auto& part : call.parts) {
    part->run = run;
    part->call = number;
    if (brief) part->brief_for = &thread_state();
    add(std::move(part));
  }
  // Another thread may have turned it off meanwhile, and run what was there.
  if (this->mode() == Mode::kNone) run_all();
  if (!call.rest.empty()) run(info, kernel, op, keys, call.rest);
  const std::size_t base = stack.size() - info.argument_count;
  if (!makes) {
    stack.resize(base + op.schema().returns().size());  // nothing, or the first argument
    return true;
  }
  if (!call.rest.empty()) {
    auto at_once = call.made.begin();
    for (const at::Tensor& tensor : call.rest.back().toTensorVector()) {
      at_once = std::ranges::find(at_once, call.made.end(), false, &at::Tensor::defined);
      *at_once = tensor;
    }
  }
  stack.resize(base);
  stack.emplace_back(std::move(call.made));
  return true;
}

void Deferred::add(std::unique_ptr<Part> part) {
  const PartPtr shared = std::move(part);
  bool too_long = false;
  {
    const std::lock_guard guard(mutex_);
    shared->number = next_number_++;
    shared->called = std::chrono::steady_clock::now();
    all_.push_back(shared);
    for (const StorageUse& use : shared->uses) {
      auto& row = by_storage_[use.storage];
      row.push_back({shared, use.writes});
      too_long = too_long || row.size() > kLongestRow;
    }
    ++waiting_;
    const bool brief = shared->brief_for != nullptr;
    if (brief) ++brief_;
    ++(brief ? in_lists_ : parts_);
  }
  if (too_long) before_use(shared->uses);
}

void Deferred::remove(const PartPtr& part) {
  for (const StorageUse& use : part->uses) {
    const auto row = by_storage_.find(use.storage);
    if (row == by_storage_.end()) continue;
    std::erase_if(row->second, [&](const Waiting& one) { return one.part == part; });
    if (row->second.empty()) by_storage_.erase(row);
  }
  std::erase(all_, part);
  --waiting_;
  if (part->brief_for != nullptr) --brief_;
}

Deferred::Group Deferred::first_for(std::span<const StorageUse> uses, std::uint64_t before) const {
  // Whoever is before one that must run, and conflicts with it, must run as well.
  const auto in_order = [](const PartPtr& one, const PartPtr& other) {
    return one->number < other->number;
  };
  std::set<PartPtr, decltype(in_order)> needed;
  std::vector<std::pair<StorageUse, std::uint64_t>> open;
  for (const StorageUse& use : uses) open.emplace_back(use, before);
  while (!open.empty()) {
    const auto [use, end] = open.back();
    open.pop_back();
    const auto row = by_storage_.find(use.storage);
    if (row == by_storage_.end()) continue;
    for (const Waiting& one : row->second) {
      if (one.part->number >= end || !conflicts(use.writes, one.writes)) continue;
      if (!needed.insert(one.part).second) continue;
      for (const StorageUse& next : one.part->uses) open.emplace_back(next, one.part->number);
    }
  }
  return group_of(Group(needed.begin(), needed.end()));
}

Deferred::Group Deferred::group_of(std::span<const PartPtr> parts) const {
  Group group;
  Bytes bytes = 0;
  for (const PartPtr& part : parts) {
    bytes += part->bytes;
    if (!group.empty() && (part->call != group.front()->call || part->runs || group.front()->runs ||
                           bytes > manager_.list_chunk())) {
      break;
    }
    group.push_back(part);
  }
  return group;
}

Deferred::Group Deferred::next_brief(const ThreadState& thread) const {
  // What a position needs of all calls is there while its part of the last one runs.
  const auto last = std::ranges::find(all_.rbegin(), all_.rend(), &thread, &Part::brief_for);
  if (last == all_.rend()) return {};
  auto first = last;
  while (first != all_.rend() && (*first)->call == (*last)->call) ++first;
  const std::span<const PartPtr> positions(first.base(), last.base());
  StorageUses uses;
  const Group together = group_of(positions);
  for (const PartPtr& part : together) uses.append(part->uses.begin(), part->uses.end());
  return first_for(uses, together.back()->number + 1);
}

// Running

void Deferred::before_use(std::span<const StorageUse> uses) {
  if (waiting_.load(std::memory_order_relaxed) > 0) {
    std::unique_lock lock(mutex_);
    if (!said_ && is_by_plan(mode()) && cuts_short(uses)) {
      said_ = true;
      say(manager_.device(),
          "an operator writes a gradient whose update would have waited, so the update runs now: "
          "zero_grad(set_to_none=True), the default, lets go of gradients instead");
    }
    run_until(lock, [&] { return first_for(uses, UINT64_MAX); });
  }
  if (any_late_.load(std::memory_order_relaxed)) order_after_late(uses);
}

/// What a part only reads, its gradient, is about to be written.
bool Deferred::cuts_short(std::span<const StorageUse> uses) const {
  const auto reads_for_long = [](const Waiting& one) {
    return !one.writes && one.part->brief_for == nullptr;
  };
  return std::ranges::any_of(uses, [&](const StorageUse& use) {
    const auto row = use.writes ? by_storage_.find(use.storage) : by_storage_.end();
    return row != by_storage_.end() && std::ranges::all_of(row->second, reads_for_long);
  });
}

void Deferred::run_all() {
  discard_dead();
  std::unique_lock lock(mutex_);
  run_until(lock, [&] { return group_of(all_); });
}

void Deferred::run_brief() {
  if (brief_.load(std::memory_order_relaxed) == 0) return;
  discard_dead();
  const ThreadState& thread = thread_state();
  std::unique_lock lock(mutex_);
  try {
    run_until(lock, [&] { return next_brief(thread); });
  } catch (const std::exception& error) {
    // From now on the error is whose who looks: this operator may be what makes room.
    if (!lock.owns_lock()) lock.lock();
    for (const PartPtr& part : all_) {
      if (part->brief_for != &thread) continue;
      part->brief_for = nullptr;
      --brief_;
    }
    if (!is_shortage(error)) throw;
  }
}

void Deferred::run_some() {
  if (mode() != Mode::kRandom) return;
  std::unique_lock lock(mutex_);
  if (all_.empty() || random_() % 8 != 0) return;
  const PartPtr one = all_[random_() % all_.size()];
  run_until(lock, [&] { return first_for(one->uses, one->number + 1); });
}

void Deferred::run_until(std::unique_lock<std::mutex>& lock, const std::function<Group()>& next) {
  for (Group group = next(); !group.empty(); group = next()) {
    if (group.front()->runs) {
      group.clear();
      wait(lock);
      continue;
    }
    if (manager_.capturing()) {
      throw Error("LMS: a graph capture uses a tensor whose update has not run yet: " +
                  group.front()->info->name);
    }
    for (const PartPtr& part : group) part->runs = true;
    lock.unlock();
    bool done = true;
    std::exception_ptr error;
    try {
      run(group);
    } catch (const std::exception& failure) {
      // Its blocks found no room, so nothing has been written. And what has not been made has no
      // memory: nobody may go on with it.
      done = !is_shortage(failure) && !group.front()->makes.defined();
      error = std::current_exception();
    } catch (...) {
      done = !group.front()->makes.defined();
      error = std::current_exception();
    }
    lock.lock();
    for (const PartPtr& part : group) {
      part->runs = false;
      if (!done) continue;
      if (part->brief_for == nullptr) waited_ += std::chrono::steady_clock::now() - part->called;
      note_late(*part);
      remove(part);
    }
    ended_.notify_all();
    lock.unlock();
    group.clear();  // perhaps the last that holds a gradient
    if (error) std::rethrow_exception(error);
    lock.lock();
  }
}

void Deferred::run(const Group& group) {
  const Part& part = *group.front();
  manager_.in_order([&] {
    const PartScope scope(part);
    c10::Stack stack = arguments_of(group);
    part.run(*part.info, *part.kernel, *part.op, part.keys, stack);
    if (part.makes.defined()) fill(group, stack.back().toTensorVector());
    for (const PartPtr& one : group) {
      for (const StorageUse& use : one->uses) manager_.used_late(*use.storage);
    }
  });
}

void Deferred::fill(const Group& group, const std::vector<at::Tensor>& made) {
  TORCH_INTERNAL_ASSERT(made.size() == group.size());
  StorageUses from;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const at::Tensor& waiting = group[i]->makes;
    from.push_back({storage_of(made[i]), true});
    TORCH_INTERNAL_ASSERT(lie_alike(made[i], waiting) && made[i].dtype() == waiting.dtype() &&
                          made[i].storage_offset() == 0 &&
                          from.back().storage->nbytes() == storage_of(waiting)->nbytes());
  }
  Pins held;  // where they are, they stay
  held.add(from);
  for (std::size_t i = 0; i < group.size(); ++i) {
    manager_.hand_over(*from[i].storage, *storage_of(group[i]->makes));
  }
}

void Deferred::wait(std::unique_lock<std::mutex>& lock) {
  OuterLock* const python = python_lock();
  void* const released = python != nullptr ? python->release() : nullptr;
  ended_.wait(lock);
  if (released == nullptr) return;
  lock.unlock();
  python->acquire(released);
  lock.lock();
}

void Deferred::discard_dead() {
  std::vector<PartPtr> dead;  // destroyed without the lock
  const std::lock_guard guard(mutex_);
  // How often parts hold each storage; 0 where one that is wanted reads or writes it.
  std::unordered_map<c10::StorageImpl*, std::size_t> held;
  for (const PartPtr& part : all_) {
    for (const StorageUse& use : part->uses) ++held[use.storage];
  }
  for (auto at = all_.size(); at-- > 0;) {
    const PartPtr part = all_[at];
    const bool wanted =
        part->runs || std::ranges::any_of(part->uses, [&](const StorageUse& use) {
          return use.writes && c10::raw::intrusive_ptr::use_count(use.storage) > held[use.storage];
        });
    if (wanted) {
      for (const StorageUse& use : part->uses) held[use.storage] = 0;
    } else {
      remove(part);
      dead.push_back(part);
    }
  }
}

// Streams

void Deferred::note_late(const Part& part) {
  if (manager_.device().is_cpu()) return;
  ++epoch_;
  for (const StorageUse& use : part.uses) {
    late_.insert_or_assign(
        use.storage, Late{c10::weak_intrusive_ptr<c10::StorageImpl>(
                              c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(use.storage)),
                          epoch_});
  }
  any_late_ = true;
  if (late_.size() > 2 * late_kept_ + 64) forget_late();
}

void Deferred::forget_late() {
  std::erase_if(late_, [](const auto& entry) { return entry.second.storage.expired(); });
  late_kept_ = late_.size();
}

void Deferred::order_after_late(std::span<const StorageUse> uses) {
  if (manager_.records_here()) return;  // the stream on which parts run
  {
    const c10::impl::VirtualGuardImpl guard(manager_.device().type());
    const c10::StreamId stream = guard.getStream(manager_.device()).id();
    const std::lock_guard lock(mutex_);
    std::uint64_t& seen = seen_[stream];
    const bool behind = std::ranges::any_of(uses, [&](const StorageUse& use) {
      const auto late = late_.find(use.storage);
      return late != late_.end() && late->second.epoch > seen;
    });
    if (!behind) return;
    seen = epoch_;
  }
  manager_.in_order([] {});
}

// Forks

void Deferred::before_fork() {
  try {
    run_all();
  } catch (const std::exception&) {
    // It waits on, in the child as well.
  }
  mutex_.lock();
}

// Facts

Deferred::Stats Deferred::stats() {
  discard_dead();
  const std::lock_guard guard(mutex_);
  using Microseconds = std::chrono::duration<std::int64_t, std::micro>;
  Stats stats{.parts = parts_,
              .waiting = waiting_ - brief_,
              .bytes = 0,
              .in_lists = in_lists_,
              .waited_us = std::chrono::duration_cast<Microseconds>(waited_).count()};
  for (const auto& [storage, row] : by_storage_) {
    const bool waits =
        std::ranges::any_of(row, [](const Waiting& one) { return one.part->brief_for == nullptr; });
    if (waits) stats.bytes += static_cast<Bytes>(storage->nbytes());
  }
  return stats;
}

// Entrances

namespace {

/// Parts run what they need before they begin, and a replay reads what was there before.
bool none_may_run() { return running > 0 || thread_state().replay != nullptr; }

StorageUses uses_of(const OpInfo& info, const c10::Stack& stack) {
  StorageUses uses;
  const std::size_t first = stack.size() - info.argument_count;
  for (const auto& argument : info.arguments) {
    collect_storages(stack[first + argument.index], argument.writes, /*inside=*/true, uses);
  }
  return uses;
}

}  // namespace

bool put_off(RunOperator run, const OpInfo& info, const c10::SafeKernelFunction& kernel,
             const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack,
             c10::function_ref<bool()> split) {
  if (info.deferral == Deferral::kNever || none_may_run() || thread_state().depth > 0) return false;
  const auto managers = managers_of(uses_of(info, stack));
  return managers.size() == 1 &&
         managers.front()->deferred().defer(run, info, kernel, op, keys, stack, split);
}

void run_needed(const OpInfo& info, const c10::Stack& stack) {
  if (none_may_run()) return;
  const StorageUses uses = uses_of(info, stack);
  const bool outermost = thread_state().depth == 0;
  for (DeviceManager* const manager : managers_of(uses)) {
    Deferred& deferred = manager->deferred();
    if (outermost && info.kind != OpKind::kList && !thread_state().in_parts) deferred.run_brief();
    deferred.before_use(uses);
    if (outermost) deferred.run_some();
  }
}

namespace {

void run_before(const StorageUses& uses) {
  for (DeviceManager* const manager : managers_of(uses)) manager->deferred().before_use(uses);
}

}  // namespace

void run_deferred(const at::Tensor& tensor, bool writes) {
  if (!any_deferred() || none_may_run()) return;
  StorageUses uses;
  collect_storages(tensor, writes, /*inside=*/true, uses);
  run_before(uses);
}

void run_deferred(c10::StorageImpl& storage, bool writes) {
  if (any_deferred() && !none_may_run()) run_before({{&storage, writes}});
}

}  // namespace lms::torch
