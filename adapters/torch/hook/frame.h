#pragma once

// The frame of an operator that runs: how deep it lies, when its pins end, and what it has made.

#include <ATen/core/stack.h>

#include <cstddef>
#include <span>

#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

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
    state_.allocations = 0;
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

/// What the operator made, of the storages in `state.made`, may leave from now on, though nobody
/// has read it yet. Not views of its arguments: it has made nothing there, unless it has given an
/// `out=` other memory.
std::span<const StorageUse> sort_out_made(ThreadState& state, const OpInfo& info);

/// The same of the results on its stack, from `base` on.
std::span<const StorageUse> collect_made(ThreadState& state, const OpInfo& info,
                                         const c10::Stack& stack, std::size_t base);

/// What it has made is the engine's from now on, pinned until the operator ends; on a thread that
/// keeps what it touches, for good.
void track_made(ThreadState& state, std::span<const StorageUse> made);

}  // namespace lms::torch
