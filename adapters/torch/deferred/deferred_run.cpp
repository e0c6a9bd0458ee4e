// Whoever is about to look, and the parts that run for it.

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/deferred/list_passes.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/python_lock.h"
#include "adapters/torch/registry.h"
#include "adapters/torch/replay/replay.h"

namespace lms::torch {

int& running_here() noexcept {
  static thread_local int running = 0;
  return running;
}

namespace {

/// But for dimensions of one position, of which the stride says nothing.
bool lie_alike(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && strides_alike(one.sizes(), one.strides(), other.strides());
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
    ++running_here();
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
    --running_here();
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

/// A pass uses all of its tensors at once: no more than this part of the limit, which leaves the
/// next one's room to come.
constexpr Bytes kPassOfLimit = 4;

/// For tests, where there are no kernels: a pass is its parts' operators, one after the other.
bool passes_by_operators() {
  static const bool by_operators = std::getenv("TEST_LIST_PASSES") != nullptr;
  return by_operators;
}

/// It has been made below, as there was no room.
bool lies_below(DeviceManager& manager, c10::StorageImpl& storage) {
  EngineLock lock = manager.engine().lock();
  const Block* const block = manager.find(lock, storage);
  return block != nullptr && block->state == BlockState::kAbsent;
}

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

// Running

void Deferred::before_use(std::span<const StorageUse> uses, std::uint64_t before) {
  if (may_be_dead_.load(std::memory_order_relaxed)) discard_dead();
  if (waiting_.load(std::memory_order_relaxed) > 0) {
    std::unique_lock lock(mutex_);
    if (!said_ && is_by_plan(mode()) && cuts_short(uses)) {
      said_ = true;
      say(manager_.device(),
          "an operator writes a gradient whose update would have waited, so the update runs now: "
          "zero_grad(set_to_none=True), the default, lets go of gradients instead");
    }
    run_until(lock, [&] {
      PartPtrs needed = needed_for(uses, before);
      for (const PartPtr& part : needed) {
        // Of what is small, an evaluation's, others of its kind are not to learn.
        const bool learns = part->rows && !part->was_read && !part->runs && is_large(*part);
        if (learns && manager_.slice_mode() != SliceMode::kChains) wanted_whole_.insert(part->kind);
      }
      return needed;
    });
  }
  if (any_late_.load(std::memory_order_relaxed)) order_after_late(uses);
}

/// What a part only reads, its gradient, is about to be written.
bool Deferred::cuts_short(std::span<const StorageUse> uses) const {
  const auto reads_for_long = [](const Waiting& one) {
    return !one.writes && one.part->brief_for == nullptr && !one.part->rows;
  };
  return std::ranges::any_of(uses, [&](const StorageUse& use) {
    const auto row = use.writes ? by_storage_.find(use.storage) : by_storage_.end();
    return row != by_storage_.end() && std::ranges::all_of(row->second, reads_for_long);
  });
}

void Deferred::run_all() {
  discard_dead();
  std::unique_lock lock(mutex_);
  run_until(lock, [&] {
    PartPtrs all;
    for (const auto& [number, part] : all_) all.push_back(part);
    return all;
  });
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
    for (const auto& [number, part] : all_) {
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
  const PartPtr one =
      std::next(all_.begin(), static_cast<std::ptrdiff_t>(random_() % all_.size()))->second;
  run_until(lock, [&] {
    PartPtrs row = needed_for(one->uses, one->number);
    if (one->waits) row.push_back(one);
    return row;
  });
  lock.unlock();  // before the part goes
}

void Deferred::run_until(std::unique_lock<std::mutex>& lock, c10::function_ref<PartPtrs()> next) {
  // What others call meanwhile comes after these; what they run need not run again.
  for (PartPtrs parts = next(); !parts.empty(); parts = next()) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      while (parts[i] != nullptr && parts[i]->waits) {
        if (parts[i]->runs) {
          wait(lock);
        } else if (run_in_pass(lock, std::span(parts).subspan(i)) == 0) {
          run_one(lock, std::move(parts[i]));
        }
      }
    }
    // Of a part that another thread has run this may be the last name, and what it holds is not let
    // go under the lock.
    if (std::ranges::any_of(parts, [](const PartPtr& part) { return part != nullptr; })) {
      lock.unlock();
      parts.clear();
      lock.lock();
    }
  }
}

void Deferred::run_one(std::unique_lock<std::mutex>& lock, PartPtr part) {
  if (manager_.capturing()) {
    lock.unlock();
    throw Error("LMS: a graph capture uses a tensor whose update has not run yet: " +
                part->info->name);
  }
  part->runs = true;
  lock.unlock();
  bool done = true;
  std::exception_ptr error;
  try {
    run(*part);
  } catch (const std::exception& failure) {
    // Its blocks found no room, so nothing has been written. And what has not been made has no
    // memory: nobody may go on with it.
    done = !is_shortage(failure) && part->makes.empty();
    error = std::current_exception();
  } catch (...) {
    done = part->makes.empty();
    error = std::current_exception();
  }
  lock.lock();
  part->runs = false;
  if (done) end(part);
  ended_.notify_all();
  lock.unlock();
  part.reset();  // perhaps the last that holds a gradient
  if (error) std::rethrow_exception(error);
  lock.lock();
}

void Deferred::end(const PartPtr& part) {
  if (part->brief_for == nullptr && !part->rows)
    waited_ += std::chrono::steady_clock::now() - part->called;
  note_late(*part);
  remove(part);
}

std::size_t Deferred::run_in_pass(std::unique_lock<std::mutex>& lock, std::span<PartPtr> parts) {
  PassKernels* const kernels = manager_.pass_kernels();
  if (!passes_by_operators() && (kernels == nullptr || !kernels->available())) return 0;
  if (parts.size() < 2 || parts.front()->alone || manager_.capturing()) return 0;
  auto pass = ListPass::of(parts, manager_.limit() / kPassOfLimit);
  if (!pass) return 0;
  const std::span<PartPtr> taken = parts.first(pass->parts());
  for (const PartPtr& part : taken) part->runs = true;
  lock.unlock();
  bool done = false;
  std::exception_ptr error;
  try {
    done = run(*pass);
  } catch (...) {
    // Alone they need less at once, and say themselves what is wrong.
    done = pass->has_run();
    if (done) error = std::current_exception();
  }
  pass.reset();
  lock.lock();
  for (const PartPtr& part : taken) {
    part->runs = false;
    part->alone = true;
    if (done) end(part);
  }
  if (done) in_passes_ += static_cast<std::int64_t>(taken.size());
  ended_.notify_all();
  if (!done) return 0;
  lock.unlock();
  for (PartPtr& part : taken) part.reset();
  if (error) std::rethrow_exception(error);
  lock.lock();
  return taken.size();
}

bool Deferred::run(ListPass& pass) {
  PassKernels* const kernels = passes_by_operators() ? nullptr : manager_.pass_kernels();
  bool done = false;
  const c10::DeviceGuard guard(manager_.device());  // PyTorch's own kernels have one each
  manager_.in_order([&] {
    const PartScope scope(pass.first());
    if (kernels != nullptr && !pass.may_run(*kernels)) return;
    done = pass.run(kernels);
    if (!done) return;
    pass.for_each_use([&](const StorageUse& use) { manager_.used_late(*use.storage); });
  });
  return done;
}

bool Deferred::run_rows(const Part& part) {
  const UnmadeRows rows = rows_for(part.uses, part.number);
  if (rows.empty()) return false;
  bool done = false;
  manager_.in_order([&] {
    const PartScope scope(part);
    c10::Stack stack = part.arguments;
    done = part.run_by_rows(*part.info, *part.kernel, *part.op, part.keys, stack, rows);
    if (!done) return;
    fill(part, {stack.back().toTensor()});
    for (const StorageUse& use : part.uses) manager_.used_late(*use.storage);
  });
  return done;
}

void Deferred::run(const Part& part) {
  if (part.rows) {
    if (run_rows(part)) return;
    before_use(std::span(part.uses).first(part.uses.size() - 1), part.number);  // but what it makes
  }
  manager_.in_order([&] {
    const PartScope scope(part);
    c10::Stack stack = part.arguments;
    part.run(*part.info, *part.kernel, *part.op, part.keys, stack);
    if (part.rows) {
      fill(part, {stack.back().toTensor()});
    } else if (!part.makes.empty()) {
      fill(part, stack.back().toTensorVector());
    }
    for (const StorageUse& use : part.uses) manager_.used_late(*use.storage);
  });
}

void Deferred::fill(const Part& part, const std::vector<at::Tensor>& made) {
  TORCH_INTERNAL_ASSERT(made.size() == part.makes.size());
  StorageUses from;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const at::Tensor& waiting = part.makes[i];
    from.push_back({storage_of(made[i]), true});
    TORCH_INTERNAL_ASSERT(lie_alike(made[i], waiting) && made[i].dtype() == waiting.dtype() &&
                          made[i].storage_offset() == 0 &&
                          from.back().storage->nbytes() == storage_of(waiting)->nbytes());
  }
  Pins held;  // where they are, they stay
  if (part.rows == nullptr || !lies_below(manager_, *from.front().storage)) held.add(from);
  for (std::size_t i = 0; i < made.size(); ++i) {
    manager_.hand_over(*from[i].storage, *storage_of(part.makes[i]));
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

// Entrances

namespace {

/// Parts run what they need before they begin, and a replay reads what was there before.
bool none_may_run() { return running_here() > 0 || thread_state().replay != nullptr; }

/// Reading a loss is no reason to run an optimizer's updates: zero_grad() may come after it, and
/// lets go of the gradients.
bool uses_large(const DeviceManager& manager, const StorageUses& uses) {
  return std::ranges::any_of(uses, [&](const StorageUse& use) {
    return use.storage->device() == manager.device() &&
           static_cast<Bytes>(use.storage->nbytes()) >= manager.min_block();
  });
}

StorageUses uses_of(const OpInfo& info, const c10::Stack& stack) {
  StorageUses uses;
  if (info.reads_geometry) return uses;
  const std::size_t first = stack.size() - info.argument_count;
  for (const auto& argument : info.arguments) {
    collect_storages(stack[first + argument.index], argument.writes, /*inside=*/true, uses);
  }
  return uses;
}

}  // namespace

bool put_off(const Entrances& entrances, const OpInfo& info, const c10::SafeKernelFunction& kernel,
             const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack,
             c10::function_ref<bool()> split) {
  if (info.deferral == Deferral::kNever || none_may_run()) return false;
  const ThreadState& state = thread_state();
  // In an unseen call whoever looks next may not be seen.
  if (state.depth > 0 || state.unseen_calls > 0) return false;
  const auto managers = managers_of(uses_of(info, stack));
  return managers.size() == 1 &&
         managers.front()->deferred().defer(entrances, info, kernel, op, keys, stack, split);
}

void run_needed(const OpInfo& info, const c10::Stack& stack) {
  if (!none_may_run()) run_needed(info, uses_of(info, stack));
}

void run_needed(const OpInfo& info, const StorageUses& uses) {
  if (none_may_run()) return;
  const bool outermost = thread_state().depth == 0;
  const bool ends_lists = outermost && info.kind != OpKind::kList && !thread_state().in_parts;
  for (DeviceManager* const manager : managers_of(uses)) {
    Deferred& deferred = manager->deferred();
    if (ends_lists && uses_large(*manager, uses)) deferred.run_brief();
    deferred.before_use(uses);
    if (outermost) deferred.run_some();
  }
}

UnmadeRows run_needed_but_rows(const OpInfo& info, const c10::Stack& stack) {
  if (none_may_run()) return {};
  const ThreadState& state = thread_state();
  const StorageUses uses = uses_of(info, stack);
  const auto managers = managers_of(uses);
  if (!info.reads_rows || state.depth > 0 || state.keeps > 0 || !state.access_scopes.empty() ||
      managers.size() != 1 || !managers.front()->records_here()) {
    run_needed(info, uses);
    return {};
  }
  Deferred& deferred = managers.front()->deferred();
  StorageUses others;
  StorageUses unmade;
  for (const StorageUse& use : uses) {
    (!use.writes && deferred.will_make(*use.storage) ? unmade : others).push_back(use);
  }
  run_needed(info, others);
  UnmadeRows rows = deferred.rows_for(unmade);
  if (rows.empty() && !unmade.empty()) run_needed(info, unmade);
  return rows;
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
