#include "adapters/torch/hook/op_run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "adapters/torch/errors.h"
#include "adapters/torch/hook/list_splitter.h"
#include "adapters/torch/hook/trial.h"
#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

/// Counts the hooked operators on a thread's stack.
class Depth {
 public:
  Depth(ThreadState& state, const OpInfo& info) : state_(state), keeps_(info.goes_on ? 1 : 0) {
    ++state_.depth;
    state_.keeps += keeps_;
  }
  ~Depth() {
    --state_.depth;
    state_.keeps -= keeps_;
  }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  ThreadState& state_;
  const int keeps_;
};

/// Lets the pins of a thread go when its outermost operator ends, however it ends. Pins of nested
/// operators are inherited by the outermost one: a kernel's half-built output must not be evicted
/// between its own parts.
class Outermost {
 public:
  Outermost(ThreadState& state, const OpInfo& info) : state_(state) {
    state_.outermost = &info;
    state_.holder.ends = info.ends_alone;
  }
  ~Outermost() {
    state_.outermost = nullptr;
    state_.operator_pins.release();  // nothing is left after end(), unless the operator threw
    leave_engine(state_, /*to_try_again=*/false);
  }
  Outermost(const Outermost&) = delete;
  Outermost& operator=(const Outermost&) = delete;

  void end() {
    state_.outermost = nullptr;
    auto& scopes = state_.access_scopes;
    if (!scopes.empty() && scopes.back().holds) state_.operator_pins.hand_to(scopes.back().pins);
    state_.operator_pins.release_after_operator(&state_.holder);
  }

 private:
  ThreadState& state_;
};

/// Appends the storages of an operator's arguments, with which its stack ends. `keep`: whoever has
/// them may write them later.
void collect_arguments(const OpInfo& info, const c10::Stack& stack, bool keep,
                       std::vector<StorageUse>& storages) {
  const std::size_t first = stack.size() - info.argument_count;
  for (const auto& argument : info.arguments) {
    collect_storages(stack[first + argument.index], argument.writes || keep, keep, storages);
  }
}

void pin_arguments(ThreadState& state, const OpInfo& info, const c10::Stack& stack) {
  static thread_local std::vector<StorageUse> reused;
  std::vector<StorageUse> storages = std::move(reused);  // operators nest
  storages.clear();
  const bool keep = info.kind == OpKind::kKeep || state.keeps > 0;
  collect_arguments(info, stack, keep, storages);
  std::optional<c10::Stream> stream;
  if (info.takes_stream) {
    for (std::size_t i = stack.size() - info.argument_count; i < stack.size(); ++i) {
      if (stack[i].isStream()) stream = stack[i].toStream();
    }
  }
  if (keep) {
    // Its own pins, so that only what it touches is kept.
    Pins pins;
    pins.add(storages, stream);
    pins.keep();
  } else {
    state.operator_pins.add(storages, stream);
  }
  reused = std::move(storages);
}

/// The operator lets everything go, and begins anew: alone, if it and others have waited for each
/// other.
void begin_anew(ThreadState& state) {
  state.operator_pins.release();
  leave_engine(state, /*to_try_again=*/true);
}

/// While it lives the thread's operator can be done again from its start if it is refused room.
class Repeatable {
 public:
  Repeatable(ThreadState& state, bool repeatable) : holder_(state.holder) {
    holder_.repeatable = repeatable;
  }
  ~Repeatable() { holder_.repeatable = false; }
  Repeatable(const Repeatable&) = delete;
  Repeatable& operator=(const Repeatable&) = delete;

 private:
  PinHolder& holder_;
};

/// The first thing that an outermost operator does: nothing is lost if it has to begin anew.
void pin_first(ThreadState& state, const OpInfo& info, const c10::Stack& stack) {
  const Repeatable repeatable(state, true);
  try {
    pin_arguments(state, info, stack);
  } catch (const c10::Error&) {
    if (!state.holder.contended()) throw;
    begin_anew(state);
    pin_arguments(state, info, stack);
  }
}

/// The kernel runs, of an outermost operator.
class Kernel {
 public:
  Kernel(ThreadState& state, const OpInfo& info) : holder_(state.holder) {
    holder_.holds_locks = info.locks;
  }
  ~Kernel() { holder_.holds_locks = false; }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

 private:
  PinHolder& holder_;
};

/// The manager of the first argument that is on a managed device.
DeviceManager* manager_of(const OpInfo& info, const c10::Stack& stack) {
  const std::size_t first = stack.size() - info.argument_count;
  for (const auto& argument : info.arguments) {
    const c10::IValue& value = stack[first + argument.index];
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) continue;
      if (auto* manager = active_manager(tensor.device())) return manager;
    } else if (value.isTensorList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (!element.isTensor() || !element.toTensor().defined()) continue;
        if (auto* manager = active_manager(element.toTensor().device())) return manager;
      }
    }
  }
  return nullptr;
}

class WorkspaceRetryScope {
 public:
  WorkspaceRetryScope(ThreadState& state, WorkspaceRetry& workspace_retry) : state_(state) {
    state_.workspace_retry = &workspace_retry;
  }
  ~WorkspaceRetryScope() { state_.workspace_retry = nullptr; }
  WorkspaceRetryScope(const WorkspaceRetryScope&) = delete;
  WorkspaceRetryScope& operator=(const WorkspaceRetryScope&) = delete;

 private:
  ThreadState& state_;
};

/// Tells the pilot of an outermost operator's begin and end, however it ends.
class PilotScope {
 public:
  PilotScope(DeviceManager* manager, const OpInfo& info, const c10::Stack& stack)
      : manager_(manager) {
    if (manager_ == nullptr) return;
    (void)plain_environments();  // heard of from every thread
    const bool repeatable = repeatable_now(info) && manager_->changed_algorithms().repeat(info);
    const FusedRule* const rule = manager_->fused_rule(info);
    recording_ = manager_->pilot().begin_operator(
        info.key, info.name, repeatable,
        rule != nullptr ? rule->price(info.fused.role, info, stack) : ReplayCost{});
    in_stress_ = repeatable && manager_->drops_everything();
  }
  ~PilotScope() {
    if (manager_ == nullptr) return;
    try {
      manager_->pilot().end_operator();
      manager_->operator_ended();
    } catch (const std::exception&) {
      // Planning must never end a step; the next operator finds the device's own error.
    }
  }
  PilotScope(const PilotScope&) = delete;
  PilotScope& operator=(const PilotScope&) = delete;

  /// Where to record how the operator can be run again; null: nobody wants to know.
  [[nodiscard]] Lineages* lineages() const {
    const bool records = recording_ != Pilot::Recording::kNo || in_stress_;
    return records ? &manager_->lineages() : nullptr;
  }
  [[nodiscard]] std::uint32_t most_depth() const {
    // Where no plan says when, lineages that need lineages that need lineages take for ever.
    constexpr std::uint32_t kInStress = 6;
    constexpr std::uint32_t kUnplanned = 32;
    constexpr std::uint32_t kPlanned = 4096;
    if (in_stress_) return kInStress;
    return recording_ == Pilot::Recording::kForPlan ? kPlanned : kUnplanned;
  }

 private:
  DeviceManager* manager_;
  Pilot::Recording recording_ = Pilot::Recording::kNo;
  bool in_stress_ = false;
};

/// What the operator made may leave from now on, though nobody has read it yet. Not views of its
/// arguments: it has made nothing there.
void track_results(ThreadState& state, const std::vector<StorageUse>& arguments,
                   const c10::Stack& stack, std::size_t base) {
  static thread_local std::vector<StorageUse> storages;
  storages.clear();
  for (std::size_t i = base; i < stack.size(); ++i) {
    collect_storages(stack[i], /*writes=*/true, /*inside=*/false, storages);
  }
  std::erase_if(storages, [&](const StorageUse& made) {
    return std::ranges::find(arguments, made.storage, &StorageUse::storage) != arguments.end();
  });
  if (storages.empty()) return;
  if (state.keeps > 0) {
    Pins pins;
    pins.add(storages);
    pins.keep();
  } else {
    state.operator_pins.add(storages);
  }
}

DeviceManager* manager_under_pressure(const OpInfo& info, const c10::Stack& stack) {
  std::vector<StorageUse> storages;
  collect_arguments(info, stack, /*keep=*/false, storages);
  for (const StorageUse& use : storages) {
    if (auto* manager = active_manager(use.storage->device())) return manager;
  }
  return nullptr;
}

/// Out of memory by another road than PyTorch's allocator: the driver, or a vendor library.
bool says_out_of_memory(const c10::Error& error) {
  const std::string& what = error.msg();
  return what.find("out of memory") != std::string::npos ||
         what.find("ALLOC_FAILED") != std::string::npos;
}

/// Calls the kernel. Where it runs out of memory: the manager that must help, and everything as it
/// was before; else null.
DeviceManager* call_unless_short(ThreadState& state, const OpInfo& info,
                                 const c10::SafeKernelFunction& kernel,
                                 const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                 c10::Stack& stack) {
  const c10::Stack arguments(stack.end() - info.argument_count, stack.end());
  const std::size_t base = stack.size() - info.argument_count;
  try {
    const Kernel running(state, info);
    kernel.callBoxed(op, keys, &stack);
    return nullptr;
  } catch (const c10::Error& error) {
    const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                        dynamic_cast<const Shortage*>(&error) != nullptr ||
                        says_out_of_memory(error);
    if (!memory) throw;
    DeviceManager* manager = manager_under_pressure(info, arguments);
    if (manager == nullptr) throw;
    stack.resize(base);
    stack.insert(stack.end(), arguments.begin(), arguments.end());
    return manager;
  }
}

/// The last try, after all that could leave has left: what finds no room now finds none under this
/// limit. If the user allows it, a convolution then goes on with an algorithm that needs less.
void call_with_less_workspace(ThreadState& state, DeviceManager& manager, const OpInfo& info,
                              const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                              c10::DispatchKeySet keys, c10::Stack& stack) {
  const Kernel running(state, info);
  if (!manager.may_change_algorithm(info)) {
    kernel.callBoxed(op, keys, &stack);
    return;
  }
  WorkspaceRetry workspace_retry;
  try {
    const WorkspaceRetryScope scope(state, workspace_retry);
    kernel.callBoxed(op, keys, &stack);
  } catch (const c10::Error&) {
    if (workspace_retry.refused.empty()) throw;
    // Whatever the kernel says, after all its algorithms, this is why.
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                workspace_retry.refused);
  }
  if (!workspace_retry.refused.empty()) manager.algorithm_was_changed(info);
}

void call_with_retry(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                     const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  int tries = 0;
  DeviceManager* short_of = nullptr;
  // First what is in the way leaves, where that is known; then everything.
  for (bool cleared = true; cleared;) {
    DeviceManager* manager = nullptr;
    {
      const Repeatable repeatable(state, tries == 0);
      manager = call_unless_short(state, info, kernel, op, keys, stack);
    }
    if (manager == nullptr) return;
    short_of = manager;
    // What the first run's own parts pinned is not needed by the second.
    begin_anew(state);
    cleared = tries++ == 0 && manager->clear_what_failed();
    if (!cleared) manager->reclaim_everything();
    ++manager->op_retries;
    manager->pilot().restart_operator();
    pin_arguments(state, info, stack);
  }
  call_with_less_workspace(state, *short_of, info, kernel, op, keys, stack);
}

// Apart, and not inlined: GCC 12 merges the two paths' clean-up into one that is wrong for
// exceptions out of nested operators.
[[gnu::noinline]] void run_nested(ThreadState& state, const OpInfo& info,
                                  const c10::SafeKernelFunction& kernel,
                                  const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                  c10::Stack& stack) {
  const Depth depth(state, info);
  pin_arguments(state, info, stack);
  kernel.callBoxed(op, keys, &stack);
}

[[gnu::noinline]] void run_outermost(ThreadState& state, const OpInfo& info,
                                     const c10::SafeKernelFunction& kernel,
                                     const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                     c10::Stack& stack) {
  DeviceManager* const manager = manager_of(info, stack);
  if (info.fused.rule != FusedRole::kNoRule && manager != nullptr &&
      (pressed() || manager->drops_everything())) {
    try_out(*manager, info, kernel, op, keys, stack);
  }
  const PilotScope pilot(manager, info, stack);
  Outermost outermost(state, info);
  const std::size_t base = stack.size() - info.argument_count;
  try {
    const Depth depth(state, info);
    pin_first(state, info, stack);
    std::vector<StorageUse> arguments;
    if (info.completes_results) collect_arguments(info, stack, /*keep=*/false, arguments);
    std::optional<Draft> draft;
    if (Lineages* lineages = pilot.lineages()) {
      draft = lineages->prepare(info, kernel, op, keys, stack);
    }
    const bool may_be_short = pressed() || state.holder.crowded();
    if (info.has_algorithms || (info.may_rerun && may_be_short)) {
      call_with_retry(state, info, kernel, op, keys, stack);
    } else {
      const Kernel running(state, info);
      kernel.callBoxed(op, keys, &stack);
    }
    if (info.completes_results) track_results(state, arguments, stack, base);
    if (draft) pilot.lineages()->commit(std::move(*draft), stack, base, pilot.most_depth());
  } catch (const Shortage& shortage) {
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                shortage.msg());
  }
  outermost.end();
}

}  // namespace

void run_operator(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  ThreadState& state = thread_state();
  if (!any_active() || info.kind == OpKind::kTransparent) {
    kernel.callBoxed(op, keys, &stack);
    return;
  }
  if (info.kind == OpKind::kList && state.depth == 0 &&
      run_in_chunks(&run_operator, info, kernel, op, keys, stack)) {
    return;
  }
  if (state.depth > 0) {
    run_nested(state, info, kernel, op, keys, stack);
  } else {
    run_outermost(state, info, kernel, op, keys, stack);
  }
}

}  // namespace lms::torch
