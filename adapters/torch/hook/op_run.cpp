#include "adapters/torch/hook/op_run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <span>

#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/hook/arguments.h"
#include "adapters/torch/hook/list_splitter.h"
#include "adapters/torch/hook/retry.h"
#include "adapters/torch/hook/trial.h"
#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/slices/in_slices.h"
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
    state_.holder.wants_alone = info.locks && !info.may_rerun;
  }
  ~Outermost() {
    state_.outermost = nullptr;
    state_.arguments.clear();
    state_.operator_pins.release();  // nothing is left after end(), unless the operator threw
    leave_engine(state_, /*to_try_again=*/false);
  }
  Outermost(const Outermost&) = delete;
  Outermost& operator=(const Outermost&) = delete;

  void end(std::span<const StorageUse> made) {
    auto& scopes = state_.access_scopes;
    if (!scopes.empty() && scopes.back().holds) {
      state_.operator_pins.add(state_, made);
      made = {};
      state_.operator_pins.hand_to(scopes.back().pins);
    }
    state_.operator_pins.release_after_operator(state_, made);
  }

 private:
  ThreadState& state_;
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

/// Tells the pilot of an outermost operator's begin and end, however it ends.
class PilotScope {
 public:
  PilotScope(DeviceManager* manager, const OpInfo& info, const c10::Stack& stack)
      : manager_(manager) {
    if (manager_ == nullptr) return;
    (void)plain_environments();  // heard of from every thread
    const bool repeatable = repeatable_now(info) && manager_->changed_algorithms().repeat(info);
    const FusedRule* const rule = manager_->fused_rule(info);
    recording_ = manager_->pilot().begin_operator(info.key, info.name, repeatable,
                                                  rule != nullptr && manager_->pilot().awake()
                                                      ? rule->price(info.fused.role, info, stack)
                                                      : ReplayCost{});
    in_stress_ = repeatable && manager_->drops_everything();
  }
  ~PilotScope() {
    if (manager_ == nullptr) return;
    try {
      manager_->pilot().end_operator();
      for (const Born& block : born_) (void)manager_->pilot().allocating(block.uid, block.bytes);
      manager_->operator_ended();
    } catch (const std::exception&) {
      // Planning must never end a step; the next operator finds the device's own error.
    }
  }
  PilotScope(const PilotScope&) = delete;
  PilotScope& operator=(const PilotScope&) = delete;

  /// The operator has made these below.
  void note_born(std::span<const Born> born) { born_.assign(born.begin(), born.end()); }
  void restart() const {
    if (manager_ != nullptr) manager_->pilot().restart_operator();
  }
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
  std::vector<Born> born_;
  bool in_stress_ = false;
};

/// What the operator made may leave from now on, though nobody has read it yet. Not views of its
/// arguments: it has made nothing there, unless it has given an `out=` other memory.
std::span<const StorageUse> collect_made(ThreadState& state, const OpInfo& info,
                                         const c10::Stack& stack, std::size_t base) {
  state.made.clear();
  for (std::size_t i = base; i < stack.size(); ++i) {
    collect_storages(stack[i], /*writes=*/true, /*inside=*/false, state.made);
  }
  const auto is_argument = [&](const StorageUse& made) {
    const auto& all = state.arguments;
    return std::ranges::find(all, made.storage, &StorageUse::storage) != all.end();
  };
  const auto others = std::remove_if(state.made.begin(), state.made.end(), is_argument);
  state.made.erase(others, state.made.end());
  if (!info.has_outputs) return state.made;
  for (const StorageUse& use : state.arguments) {
    if (use.writes) state.made.push_back({use.storage, /*writes=*/false});
  }
  return state.made;
}

void track(ThreadState& state, std::span<const StorageUse> made) {
  if (state.keeps > 0) {
    Pins pins;
    pins.add(state, made);
    pins.keep();
  } else {
    state.operator_pins.add(state, made);
  }
}

// Apart, and not inlined: GCC 12 merges the two paths' clean-up into one that is wrong for
// exceptions out of nested operators.
[[gnu::noinline]] void run_nested(ThreadState& state, const OpInfo& info,
                                  const c10::SafeKernelFunction& kernel,
                                  const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                  c10::Stack& stack) {
  const Depth depth(state, info);
  pin_nested(state, info, stack);
  kernel.callBoxed(op, keys, &stack);
}

/// All that it touches is on the device at once. What it has made and is not tracked yet.
std::span<const StorageUse> run_whole(ThreadState& state, const PilotScope& pilot,
                                      const OpInfo& info, const c10::SafeKernelFunction& kernel,
                                      const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                      c10::Stack& stack, std::size_t base) {
  try {
    pin_first(state, info, stack);
  } catch (const Shortage& shortage) {
    name_whole_need(state, info, op, stack, shortage);
    throw;
  }
  std::optional<Draft> draft;
  if (Lineages* lineages = pilot.lineages()) {
    draft = lineages->prepare(info, kernel, op, keys, stack);
  }
  const bool may_be_short = pressed() || state.holder.crowded();
  if (info.has_algorithms || (info.may_rerun && may_be_short)) {
    call_with_retry(state, info, kernel, op, keys, stack);
  } else if (info.makes_once && may_be_short) {
    call_once(state, info, kernel, op, keys, stack);
  } else {
    const Kernel running(state, info);
    kernel.callBoxed(op, keys, &stack);
  }
  std::span<const StorageUse> made;
  if (info.completes_results) made = collect_made(state, info, stack, base);
  if (!made.empty() && (draft || state.keeps > 0)) {
    track(state, made);
    made = {};
  }
  if (draft) pilot.lineages()->commit(std::move(*draft), stack, base, pilot.most_depth());
  return made;
}

/// As a whole; where that does not fit, in slices. As `run_whole`.
std::span<const StorageUse> run_or_slice(ThreadState& state, const PilotScope& pilot,
                                         const OpInfo& info, const c10::SafeKernelFunction& kernel,
                                         const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                         c10::Stack& stack, SlicedCall& sliced) {
  try {
    return run_whole(state, pilot, info, kernel, op, keys, stack,
                     stack.size() - info.argument_count);
  } catch (const c10::Error& error) {
    // What an operator in place has begun cannot be begun again: it has allocated before.
    if (!is_shortage(error)) throw;
    const std::exception_ptr whole = std::current_exception();
    begin_anew(state);
    pilot.restart();
    if (!sliced.run(stack)) std::rethrow_exception(whole);
    return {};
  }
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
  PilotScope pilot(manager, info, stack);
  Outermost outermost(state, info);
  const std::size_t base = stack.size() - info.argument_count;
  std::span<const StorageUse> made;
  try {
    const Depth depth(state, info);
    auto sliced = SlicedCall::of(manager, info, kernel, op, keys, stack);
    if (!sliced) {
      made = run_whole(state, pilot, info, kernel, op, keys, stack, base);
    } else if (!sliced->at_once() || !sliced->run(stack)) {
      made = run_or_slice(state, pilot, info, kernel, op, keys, stack, *sliced);
    }
    if (sliced) pilot.note_born(sliced->born());
  } catch (const Shortage& shortage) {
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                shortage.msg());
  }
  outermost.end(made);
}

}  // namespace

void run_operator(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  ThreadState& state = thread_state();
  if (!any_active() || info.kind == OpKind::kTransparent) {
    kernel.callBoxed(op, keys, &stack);
    return;
  }
  if (any_deferred() && put_off(&run_operator, info, kernel, op, keys, stack)) return;
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
