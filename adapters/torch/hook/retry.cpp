#include "adapters/torch/hook/retry.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "adapters/torch/errors.h"
#include "adapters/torch/hook/arguments.h"
#include "adapters/torch/hook/kept_call.h"
#include "adapters/torch/operators/results.h"
#include "adapters/torch/replay/replay.h"
#include "adapters/torch/slices/in_slices.h"

namespace lms::torch {
namespace {

DeviceManager* manager_of_first(std::span<const StorageUse> storages) {
  for (const StorageUse& use : storages) {
    if (auto* manager = active_manager(use.storage->device())) return manager;
  }
  return nullptr;
}

DeviceManager* manager_under_pressure(const OpInfo& info, const c10::Stack& stack) {
  StorageUses storages;
  collect_arguments(info, stack, /*keep=*/false, storages);
  return manager_of_first(storages);
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
  const std::size_t base = stack.size() - info.argument_count;
  KeptCall kept{std::span(stack).last(info.argument_count)};
  const c10::Stack& arguments = kept.arguments();
  try {
    const Kernel running(state, info);
    kernel.callBoxed(op, keys, &stack);
    return nullptr;
  } catch (const c10::Error& error) {
    if (!is_shortage(error) && !says_out_of_memory(error)) throw;
    DeviceManager* manager = manager_under_pressure(info, arguments);
    if (manager == nullptr) throw;
    stack.resize(base);
    stack.insert(stack.end(), arguments.begin(), arguments.end());
    return manager;
  }
}

DeviceManager* call_unless_short(ThreadState& state, UnboxedCall& call) {
  try {
    const Kernel running(state, call.info());
    call.run();
    return nullptr;
  } catch (const c10::Error& error) {
    if (!is_shortage(error) && !says_out_of_memory(error)) throw;
    DeviceManager* manager = manager_of_first(state.arguments);
    if (manager == nullptr) throw;
    return manager;
  }
}

/// The last try, after all that could leave has left: what finds no room now finds none under this
/// limit. If the user allows it, a convolution then goes on with an algorithm that needs less,
/// unless it may be tried in place by the first one (in_slices.h).
void call_with_less_workspace(ThreadState& state, DeviceManager& manager, const OpInfo& info,
                              const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                              c10::DispatchKeySet keys, c10::Stack& stack) {
  const auto may_be_in_place = [&] {
    const auto sliced =
        SlicedCall::of(&manager, info, kernel, op, keys, stack, SlicedCall::Of::kAny);
    return sliced && sliced->may_be_in_place();
  };
  const bool may_change =
      manager.may_change_algorithm(info, std::span(stack).last(info.argument_count));
  // With cudnn.benchmark there is no first algorithm, and no bits to keep to (0009).
  const bool has_first = !at::globalContext().benchmarkCuDNN();
  const bool in_place_first = may_change && has_first && may_be_in_place();
  const Kernel running(state, info);
  if (!may_change || in_place_first) {
    kernel.callBoxed(op, keys, &stack);
    return;
  }
  WorkspaceRetry workspace_retry;
  try {
    const WorkspaceRetryScope scope(state, &workspace_retry);
    kernel.callBoxed(op, keys, &stack);
  } catch (const c10::Error&) {
    if (workspace_retry.refused.empty()) throw;
    // Whatever the kernel says, after all its algorithms, this is why.
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                workspace_retry.refused);
  }
  if (!workspace_retry.refused.empty()) manager.algorithm_was_changed(info);
}

/// `run` gets a copy of the arguments ready for what is to be said if it finds no room.
template <typename Run>
void run_naming_need(ThreadState& state, const OpInfo& info, const c10::OperatorHandle& op,
                     const c10::Stack& stack, Run&& run) {
  KeptCall kept{std::span(stack).last(info.argument_count)};
  try {
    run();
  } catch (const Shortage& shortage) {
    name_whole_need(state, info, op, kept.arguments(), shortage);
    throw;
  }
}

}  // namespace

namespace {

/// The call has found no room once, of `short_of`. First what is in the way leaves, where that is
/// known; then everything.
void call_again(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack,
                DeviceManager* short_of) {
  for (bool first = true;; first = false) {
    // What the first run's own parts pinned is not needed by the second.
    begin_anew(state);
    const bool cleared = first && short_of->clear_what_failed();
    if (!cleared) short_of->reclaim_everything();
    ++short_of->op_retries;
    if (!state.is_beside()) short_of->pilot().restart_operator();
    pin_arguments(state, info, stack);
    if (!cleared) break;
    short_of = call_unless_short(state, info, kernel, op, keys, stack);
    if (short_of == nullptr) return;
  }
  run_naming_need(state, info, op, stack, [&] {
    call_with_less_workspace(state, *short_of, info, kernel, op, keys, stack);
  });
}

}  // namespace

void call_with_retry(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                     const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  DeviceManager* short_of = nullptr;
  {
    const Repeatable repeatable(state, true);
    short_of = call_unless_short(state, info, kernel, op, keys, stack);
  }
  if (short_of != nullptr) call_again(state, info, kernel, op, keys, stack, short_of);
}

void call_with_retry(ThreadState& state, UnboxedCall& call) {
  DeviceManager* short_of = nullptr;
  {
    const Repeatable repeatable(state, true);
    short_of = call_unless_short(state, call);
  }
  if (short_of == nullptr) return;
  c10::Stack stack;
  call.box(stack);
  call_again(state, call.info(), call.kernel(), call.op(), call.keys(), stack, short_of);
  call.take_results(stack);
}

void call_once(ThreadState& state, UnboxedCall& call) {
  try {
    const Kernel running(state, call.info());
    call.run();
  } catch (const Shortage& shortage) {
    c10::Stack arguments;
    call.box(arguments);
    name_whole_need(state, call.info(), call.op(), arguments, shortage);
    throw;
  }
}

void call_once(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
               const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack) {
  run_naming_need(state, info, op, stack, [&] {
    const Kernel running(state, info);
    kernel.callBoxed(op, keys, &stack);
  });
}

void name_whole_need(ThreadState& state, const OpInfo& info, const c10::OperatorHandle& op,
                     const c10::Stack& stack, const Shortage& shortage) {
  if (!shortage.below.empty()) return;
  DeviceManager* const manager = manager_under_pressure(info, stack);
  if (manager == nullptr) return;
  Bytes needed = 0;
  {
    const c10::impl::ExcludeDispatchKeyGuard below(above_kernels());
    const c10::impl::DisablePythonDispatcher no_python;
    const auto arguments = std::span(stack).last(info.argument_count);
    for (const Bytes bytes : result_bytes(op, arguments, manager->device())) {
      needed += manager->room_of(bytes);
    }
  }
  if (needed == 0) return;
  // What the call has made and lost is held until then; and what is to come must not be there.
  state.operator_pins.release();
  std::string full;  // which reclaim_everything() would not say
  try {
    EngineLock lock = manager->engine().lock();
    (void)manager->engine().reclaim(lock, INT64_MAX);
  } catch (const TierFull& error) {
    full = error.what();
  }
  manager->reclaim_everything();
  Bytes least = 0;
  {
    EngineLock lock = manager->engine().lock();
    needed += Pins::bytes_to_come(lock, *manager, state.arguments);
    least = manager->least_limit(manager->engine().immovable(lock) + needed, needed);
  }
  if (least > shortage.least_limit || !full.empty()) {
    throw_out_of_memory(*manager,
                        {.requested = needed, .reason = full, .written = shortage.written});
  }
}

}  // namespace lms::torch
