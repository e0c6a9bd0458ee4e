#include "adapters/torch/hook/op_run.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adapters/torch/deferred/deferred.h"
#include "adapters/torch/errors.h"
#include "adapters/torch/hook/arguments.h"
#include "adapters/torch/hook/asked.h"
#include "adapters/torch/hook/filled_first.h"
#include "adapters/torch/hook/frame.h"
#include "adapters/torch/hook/kept_call.h"
#include "adapters/torch/hook/list_splitter.h"
#include "adapters/torch/hook/pilot_scope.h"
#include "adapters/torch/hook/retry.h"
#include "adapters/torch/hook/trial.h"
#include "adapters/torch/hook/unboxed_call.h"
#include "adapters/torch/operators/autograd_nodes.h"
#include "adapters/torch/operators/numerics.h"
#include "adapters/torch/replay/lineages.h"
#include "adapters/torch/slices/in_slices.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {
namespace {

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

DeviceManager* manager_of(std::span<const StorageUse> storages) {
  for (const StorageUse& use : storages) {
    if (auto* manager = active_manager(use.storage->device())) return manager;
  }
  return nullptr;
}

bool has_rule(DeviceManager* manager, const OpInfo& info) {
  return info.fused.rule != FusedRole::kNoRule && manager != nullptr;
}

/// The operator's rule may have to try its kernel out before.
bool may_try(DeviceManager* manager, const OpInfo& info) {
  if (!has_rule(manager, info) || !(pressed() || manager->drops_everything())) return false;
  const FusedRule* const rule = manager->fused_rule(info);
  return rule != nullptr && rule->tries_out(info.fused.role);
}

/// Calls a kernel of sparse tensors, which may take dense ones in.
void call_keeping(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  const std::size_t base = stack.size() - info.argument_count;
  const std::vector<c10::IValue> arguments(stack.begin() + static_cast<std::ptrdiff_t>(base),
                                           stack.end());
  kernel.callBoxed(op, keys, &stack);
  keep_inside(state, std::span(stack).subspan(base));
  keep_inside(state, arguments);
}

/// Calls a kernel. What its backward pass may use unseen, it keeps.
void call(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
          const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  if (info.keeps_inside) return call_keeping(state, info, kernel, op, keys, stack);
  if (!info.may_go_unseen) return kernel.callBoxed(op, keys, &stack);
  const std::uint64_t nodes = nodes_so_far();
  const std::size_t base = stack.size() - info.argument_count;
  const std::vector<c10::IValue> arguments(stack.begin() + static_cast<std::ptrdiff_t>(base),
                                           stack.end());
  kernel.callBoxed(op, keys, &stack);
  const std::span results = std::span(stack).subspan(base);
  // It may have written to what it has taken.
  if (!made_unseen_nodes(results, nodes) && !made_unseen_nodes(arguments, nodes)) return;
  StorageUses storages;
  for (const auto& values :
       {std::span<const c10::IValue>(arguments), std::span<const c10::IValue>(results)}) {
    for (const c10::IValue& value : values) {
      collect_storages(value, /*writes=*/true, /*inside=*/true, storages);
    }
  }
  Pins pins;
  pins.add(state, storages);
  pins.keep();
}

/// Runs an operator that another has called. Whoever calls from outside PyTorch knows its type of
/// error alone.
template <typename Run>
void run_within(ThreadState& state, const OpInfo& info, Run&& run) {
  const bool by_others = state.in_others_kernel();
  try {
    const Depth depth(state, info);
    run();
  } catch (const Shortage& shortage) {
    if (!by_others) throw;
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                shortage.what_without_backtrace());
  }
}

// Apart, and not inlined: GCC 12 merges the two paths' clean-up into one that is wrong for
// exceptions out of nested operators.
[[gnu::noinline]] void run_nested(ThreadState& state, const OpInfo& info,
                                  const c10::SafeKernelFunction& kernel,
                                  const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                  c10::Stack& stack) {
  run_within(state, info, [&] {
    pin_nested(state, info, stack);
    call(state, info, kernel, op, keys, stack);
  });
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
    call(state, info, kernel, op, keys, stack);
  }
  std::span<const StorageUse> made;
  if (info.completes_results) made = collect_made(state, info, stack, base);
  if (!made.empty() && (draft || state.keeps > 0)) {
    track_made(state, made);
    made = {};
  }
  if (draft) pilot.lineages()->commit(std::move(*draft), stack, base, pilot.most_depth());
  return made;
}

/// As it is being handled that the call has found no room: in slices, or in place. Throws what is
/// being handled, `error`, where that cannot be.
void slice_instead(ThreadState& state, PilotScope& pilot, c10::Stack& stack, c10::Error& error,
                   const DeviceManager* manager, std::optional<SlicedCall>&& sliced) {
  if (!sliced) throw;
  const auto* const shortage = dynamic_cast<const Shortage*>(&error);
  if (shortage != nullptr) {
    sliced->lacks(std::max<Bytes>(shortage->least_limit - manager->limit(), 0));
  }
  begin_anew(state);
  pilot.restart();
  if (!sliced->run(stack, /*tried=*/true)) {
    const std::string& full = sliced->why_full_below();
    const bool said = shortage != nullptr && !shortage->below.empty();
    const auto explain = [&](c10::Error& one) {
      if (said || full.empty()) return;
      one.add_context(
          "In parts, or on tensors where they lie below, it would have needed less, but there was "
          "no room below: " +
          full + ".");
    };
    if (!sliced->refused().empty()) {
      c10::OutOfMemoryError last({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                 sliced->refused());
      explain(last);
      throw last;
    }
    explain(error);
    throw;
  }
  pilot.note_born(sliced->born());
}

/// All of an outermost operator but its frame.
std::span<const StorageUse> run_boxed(ThreadState& state, DeviceManager* manager, PilotScope& pilot,
                                      const OpInfo& info, const c10::SafeKernelFunction& kernel,
                                      const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                      c10::Stack& stack) {
  auto sliced = SlicedCall::of(manager, info, kernel, op, keys, stack);
  if (sliced && sliced->at_once() && sliced->run(stack, /*tried=*/false)) {
    pilot.note_born(sliced->born());
    return {};
  }
  // Kernels take lists out of their arguments: whoever is to call one again needs them as they
  // were.
  const std::size_t base = stack.size() - info.argument_count;
  KeptCall kept;
  constexpr auto kAny = SlicedCall::Of::kAny;
  const bool may_slice = !sliced && SlicedCall::may_be(manager, info, {}, kAny);
  if (may_slice) kept.keep(std::span(stack).last(info.argument_count));
  try {
    return run_whole(state, pilot, info, kernel, op, keys, stack, base);
  } catch (c10::Error& error) {
    // What an operator in place has begun cannot be begun again: it has allocated before.
    if (!is_shortage(error) || (!sliced && !may_slice)) throw;
    if (sliced) {
      slice_instead(state, pilot, stack, error, manager, std::move(sliced));
    } else {
      stack.resize(base);
      stack.insert(stack.end(), kept.arguments().begin(), kept.arguments().end());
      slice_instead(state, pilot, stack, error, manager,
                    SlicedCall::of(manager, info, kernel, op, keys, stack, kAny));
    }
    return {};
  }
}

/// run_whole() of what is not recorded.
std::span<const StorageUse> run_unboxed(ThreadState& state, UnboxedCall& call,
                                        const StorageUses& arguments) {
  const OpInfo& info = call.info();
  state.arguments = arguments;
  try {
    pin_first(state);
  } catch (const Shortage& shortage) {
    c10::Stack boxed;
    call.box(boxed);
    name_whole_need(state, info, call.op(), boxed, shortage);
    throw;
  }
  const bool may_be_short = pressed() || state.holder.crowded();
  if (info.has_algorithms || (info.may_rerun && may_be_short)) {
    call_with_retry(state, call);
  } else if (info.makes_once && may_be_short) {
    call_once(state, call);
  } else {
    const Kernel running(state, info);
    call.run();
  }
  if (!info.completes_results) return {};
  state.made.clear();
  call.collect_results(state.made);
  return sort_out_made(state, info);
}

/// `run` is all of an outermost operator but its frame.
template <typename Run>
void run_in_frame(ThreadState& state, const OpInfo& info, Run&& run) {
  Outermost outermost(state, info);
  std::span<const StorageUse> made;
  try {
    const Depth depth(state, info);
    made = run();
  } catch (const Shortage& shortage) {
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                shortage.what_without_backtrace());
  }
  outermost.end(made);
}

[[gnu::noinline]] void run_outermost(ThreadState& state, const OpInfo& info,
                                     const c10::SafeKernelFunction& kernel,
                                     const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                     c10::Stack& stack) {
  DeviceManager* const manager = manager_of(info, stack);
  if (may_try(manager, info)) try_out(*manager, info, kernel, op, keys, stack);
  PilotScope pilot(state, manager, info, stack);
  run_in_frame(state, info,
               [&] { return run_boxed(state, manager, pilot, info, kernel, op, keys, stack); });
}

[[gnu::noinline]] void run_outermost(ThreadState& state, UnboxedCall& call) {
  const OpInfo& info = call.info();
  StorageUses arguments;
  call.collect_arguments(arguments);
  DeviceManager* const manager = manager_of(arguments);
  if (info.reads_geometry) arguments.clear();
  c10::Stack boxed;
  const bool tries = may_try(manager, info);
  if (tries || (has_rule(manager, info) && manager->pilot().wants_costs())) call.box(boxed);
  if (tries) try_out(*manager, info, call.kernel(), call.op(), call.keys(), boxed);
  PilotScope pilot(state, manager, info, boxed);
  run_in_frame(state, info, [&] {
    if (pilot.lineages() != nullptr || SlicedCall::may_be(manager, info, arguments)) {
      if (boxed.empty()) call.box(boxed);
      const auto made =
          run_boxed(state, manager, pilot, info, call.kernel(), call.op(), call.keys(), boxed);
      call.take_results(boxed);
      return made;
    }
    boxed.clear();
    try {
      return run_unboxed(state, call, arguments);
    } catch (c10::Error& error) {
      if (!is_shortage(error)) throw;
      call.box(boxed);
      constexpr auto kAny = SlicedCall::Of::kAny;
      slice_instead(
          state, pilot, boxed, error, manager,
          SlicedCall::of(manager, info, call.kernel(), call.op(), call.keys(), boxed, kAny));
      call.take_results(boxed);
      return std::span<const StorageUse>();
    }
  });
}

/// In parts, with rows of what it reads made as they are needed (slices/unmade.h).
bool run_by_rows(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                 const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack,
                 const UnmadeRows& rows) {
  ThreadState& state = thread_state();
  DeviceManager* const manager = manager_of(info, stack);
  constexpr auto kAny = SlicedCall::Of::kAny;
  auto sliced = SlicedCall::of(manager, info, kernel, op, keys, stack, kAny);
  if (!sliced) return false;
  bool done = false;
  PilotScope pilot(state, manager, info, {});
  run_in_frame(state, info, [&] {
    const std::size_t base = stack.size() - info.argument_count;
    try {
      done = sliced->run_by_rows(stack, rows);
    } catch (const Shortage&) {
      if (sliced->writes()) throw;
    }
    if (!done) {
      pilot.restart();
      return std::span<const StorageUse>();
    }
    pilot.note_born(sliced->born());
    const bool is_here = sliced->born().empty() && info.completes_results;
    return is_here ? collect_made(state, info, stack, base) : std::span<const StorageUse>();
  });
  return done;
}

void run_made(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
              const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  if (state.depth > 0) {
    run_nested(state, info, kernel, op, keys, stack);
  } else {
    run_outermost(state, info, kernel, op, keys, stack);
  }
}

/// By rows, or else once all that it reads has been made.
void run_with_unmade(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                     const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack,
                     UnmadeRows& rows) {
  std::string before = std::exchange(state.full_by_rows, {});
  const auto restore = c10::make_scope_exit([&] { state.full_by_rows = std::move(before); });
  if (run_by_rows(info, kernel, op, keys, stack, rows)) return;
  rows.release();
  run_needed(info, stack);
  run_made(state, info, kernel, op, keys, stack);
}

constexpr Entrances kEntrances{.run = &run_operator, .run_by_rows = &run_by_rows};

void run_or_put_off(ThreadState& state, Concern deferred, c10::function_ref<bool()> split,
                    const OpInfo& info, const c10::SafeKernelFunction& kernel,
                    const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  if (deferred == Concern::kMayWait && put_off(kEntrances, info, kernel, op, keys, stack, split)) {
    return;
  }
  if (info.kind == OpKind::kList && state.depth == 0 &&
      run_in_chunks(&run_operator, info, kernel, op, keys, stack)) {
    return;
  }
  if (deferred != Concern::kNothing) {
    UnmadeRows rows = run_needed_but_rows(info, stack);
    if (!rows.empty()) {
      run_with_unmade(state, info, kernel, op, keys, stack, rows);
      return;
    }
  }
  run_made(state, info, kernel, op, keys, stack);
}

/// Tensors whose bytes lie in tensors within: storages are found among boxed arguments alone.
bool looks_inside(c10::DispatchKeySet keys) {
  return keys.has_any(c10::DispatchKeySet({c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr}));
}

[[gnu::noinline]] void run_nested(ThreadState& state, UnboxedCall& call) {
  run_within(state, call.info(), [&] {
    StorageUses storages;
    if (!call.info().reads_geometry) call.collect_arguments(storages);
    pin_nested(state, storages);
    call.run();
  });
}

}  // namespace

void run_operator(const OpInfo& info, const c10::SafeKernelFunction& kernel,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  ThreadState& state = thread_state();
  if (!any_active() || info.kind == OpKind::kTransparent) {
    kernel.callBoxed(op, keys, &stack);
    return;
  }
  if (may_fill_new_memory(info) && fills_new_memory(stack)) {
    kernel.callBoxed(op, keys, &stack);
    return;
  }
  Asked split([&] {
    if (info.deferral != Deferral::kRows) return would_be_split(info, stack);
    StorageUses uses;
    collect_arguments(info, stack, /*keep=*/false, uses);
    return are_worth_waiting_for(info, uses);
  });
  const Concern deferred = concern_of_deferred(info, split);
  run_or_put_off(state, deferred, split, info, kernel, op, keys, stack);
}

void run_operator(UnboxedCall& call) {
  ThreadState& state = thread_state();
  const OpInfo& info = call.info();
  if (!any_active() || info.kind == OpKind::kTransparent) {
    call.run();
    return;
  }
  if (may_fill_new_memory(info)) {
    c10::Stack stack;
    call.box(stack);
    if (fills_new_memory(stack)) {
      call.run();
      return;
    }
  }
  Asked split([&] {
    if (info.deferral != Deferral::kRows) return would_be_split(call);
    StorageUses uses;
    call.collect_arguments(uses);
    return are_worth_waiting_for(info, uses);
  });
  const Concern deferred = concern_of_deferred(info, split);
  if (state.keeps > 0 || deferred == Concern::kMayWait ||
      (deferred == Concern::kRuns && looks_inside(call.keys()))) {
    c10::Stack stack;
    call.box(stack);
    run_or_put_off(state, deferred, split, info, call.kernel(), call.op(), call.keys(), stack);
    call.take_results(stack);
    return;
  }
  const auto run_first = [&](const UnboxedCall& one) {
    if (deferred == Concern::kNothing || info.reads_geometry) return;
    StorageUses uses;
    one.collect_arguments(uses);
    run_needed(info, uses);
  };
  if (info.kind == OpKind::kList && state.depth == 0 && run_in_chunks(call, [&](UnboxedCall& part) {
        run_first(part);
        run_outermost(state, part);
      })) {
    return;
  }
  run_first(call);
  if (state.depth > 0) {
    run_nested(state, call);
  } else {
    run_outermost(state, call);
  }
}

}  // namespace lms::torch
