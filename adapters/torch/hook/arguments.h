#pragma once

// The storages of an operator's arguments, and their pins.

#include <span>

#include "adapters/torch/operators/op_info.h"
#include "adapters/torch/thread_state.h"

namespace lms::torch {

/// Appends the storages of an operator's arguments, with which its stack ends: of those whose bytes
/// it looks at. `keep`: whoever has them may write them later.
void collect_arguments(const OpInfo& info, const c10::Stack& stack, bool keep,
                       c10::SmallVectorImpl<StorageUse>& storages);

/// Pins those of the outermost operator, which state.arguments names from then on.
void pin_arguments(ThreadState& state, const OpInfo& info, const c10::Stack& stack);

/// As pin_arguments(), as the first thing that an outermost operator does: nothing is lost if it
/// has to begin anew.
void pin_first(ThreadState& state, const OpInfo& info, const c10::Stack& stack);
/// Likewise of an operator that takes no stream, on a thread that keeps nothing, with
/// state.arguments as they are.
void pin_first(ThreadState& state);

/// Pins those of a part of an operator: what the whole holds already is held.
void pin_nested(ThreadState& state, const OpInfo& info, const c10::Stack& stack);
/// Likewise of one that takes no stream, on a thread that keeps nothing.
void pin_nested(ThreadState& state, std::span<const StorageUse> storages);

/// What lies within sparse tensors among the values stays on the device until it dies.
void keep_inside(ThreadState& state, std::span<const c10::IValue> values);

/// The operator lets everything go, and begins anew: alone, if it and others have waited for each
/// other.
void begin_anew(ThreadState& state);

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

}  // namespace lms::torch
