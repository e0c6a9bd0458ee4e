#pragma once

// Kernels that run out of memory: what is in the way leaves, and they are called again.

#include "adapters/torch/errors.h"
#include "adapters/torch/hook/unboxed_call.h"
#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

/// The kernel runs, of an outermost operator.
class Kernel {
 public:
  Kernel(ThreadState& state, const OpInfo& info) : state_(state) {
    state_.holder.holds_locks = info.locks;
    state_.kernel_runs = true;
  }
  ~Kernel() {
    state_.holder.holds_locks = false;
    state_.kernel_runs = false;
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

 private:
  ThreadState& state_;
};

/// While it lives the thread's kernel may go on with other algorithms.
class WorkspaceRetryScope {
 public:
  WorkspaceRetryScope(ThreadState& state, WorkspaceRetry* workspace_retry) : state_(state) {
    state_.workspace_retry = workspace_retry;
  }
  ~WorkspaceRetryScope() { state_.workspace_retry = nullptr; }
  WorkspaceRetryScope(const WorkspaceRetryScope&) = delete;
  WorkspaceRetryScope& operator=(const WorkspaceRetryScope&) = delete;

 private:
  ThreadState& state_;
};

/// Calls the kernel of an outermost operator whose arguments are pinned; again, with more and more
/// room, where it runs out of memory. Throws what the kernel throws with all the room there is, or
/// what name_whole_need() says of it.
void call_with_retry(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                     const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack);

void call_with_retry(ThreadState& state, UnboxedCall& call);

/// Calls the kernel of one that may not be run again. Throws what it throws, or what
/// name_whole_need() says of it.
void call_once(ThreadState& state, const OpInfo& info, const c10::SafeKernelFunction& kernel,
               const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack& stack);
void call_once(ThreadState& state, UnboxedCall& call);

/// After the call has found no room, with all its arguments at hand: throws an error whose figure
/// has room for all of its results, where they are known, and not only for the first that was
/// refused. Returns where that is no more. The thread's pins are gone.
void name_whole_need(ThreadState& state, const OpInfo& info, const c10::OperatorHandle& op,
                     const c10::Stack& stack, const Shortage& shortage);

}  // namespace lms::torch
