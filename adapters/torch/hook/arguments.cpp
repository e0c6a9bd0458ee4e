#include "adapters/torch/hook/arguments.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <span>

namespace lms::torch {
namespace {

void pin_storages(ThreadState& state, const OpInfo& info, const c10::Stack& stack, bool keep,
                  std::span<const StorageUse> storages) {
  std::optional<c10::Stream> stream;
  if (info.takes_stream) {
    for (std::size_t i = stack.size() - info.argument_count; i < stack.size(); ++i) {
      if (stack[i].isStream()) stream = stack[i].toStream();
    }
  }
  if (keep) {
    // Its own pins, so that only what it touches is kept.
    Pins pins;
    pins.add(state, storages, stream);
    pins.keep();
  } else {
    state.operator_pins.add(state, storages, stream);
  }
}

std::span<const c10::IValue> arguments_of(const OpInfo& info, const c10::Stack& stack) {
  return std::span(stack).last(info.argument_count);
}

bool is_kept(const ThreadState& state, const OpInfo& info) {
  return (info.kind == OpKind::kKeep && !info.keeps_inside) || state.keeps > 0;
}

}  // namespace

void collect_arguments(const OpInfo& info, const c10::Stack& stack, bool keep,
                       c10::SmallVectorImpl<StorageUse>& storages) {
  if (info.reads_geometry) return;
  const std::size_t first = stack.size() - info.argument_count;
  for (const auto& argument : info.arguments) {
    collect_storages(stack[first + argument.index], argument.writes || keep, keep, storages);
  }
}

void keep_inside(ThreadState& state, std::span<const c10::IValue> values) {
  StorageUses all;
  StorageUses dense;
  for (const c10::IValue& value : values) {
    collect_storages(value, /*writes=*/true, /*inside=*/true, all);
    collect_storages(value, /*writes=*/true, /*inside=*/false, dense);
  }
  if (all.size() == dense.size()) return;
  StorageUses inside;
  // Of the same tensors, in the same order, but for those within.
  for (std::size_t i = 0, next = 0; i < all.size(); ++i) {
    if (next < dense.size() && all[i].storage == dense[next].storage) {
      ++next;
    } else {
      inside.push_back(all[i]);
    }
  }
  Pins pins;
  pins.add(state, inside);
  pins.keep();
}

void pin_arguments(ThreadState& state, const OpInfo& info, const c10::Stack& stack) {
  if (info.keeps_inside) keep_inside(state, arguments_of(info, stack));
  const bool keep = is_kept(state, info);
  state.arguments.clear();
  collect_arguments(info, stack, keep, state.arguments);
  pin_storages(state, info, stack, keep, state.arguments);
}

void pin_nested(ThreadState& state, const OpInfo& info, const c10::Stack& stack) {
  if (info.keeps_inside) keep_inside(state, arguments_of(info, stack));
  StorageUses storages;
  const bool keep = is_kept(state, info);
  collect_arguments(info, stack, keep, storages);
  if (!keep && !info.takes_stream) {
    pin_nested(state, storages);
  } else {
    pin_storages(state, info, stack, keep, storages);
  }
}

void pin_nested(ThreadState& state, std::span<const StorageUse> storages) {
  constexpr std::size_t kFew = 16;  // of a list's the engine knows sooner
  if (state.replay != nullptr || state.arguments.size() > kFew) {
    state.operator_pins.add(state, storages);
    return;
  }
  const auto is_held = [&](const StorageUse& use) {
    return std::ranges::any_of(state.arguments, [&](const StorageUse& held) {
      return held.storage == use.storage && (held.writes || !use.writes);
    });
  };
  // PyTorch's own kernels alone make nothing but results and what they need meanwhile, of which
  // nobody else knows, on the stream that they are called on. What no block stands for stays where
  // it is, and results become blocks when the operator ends.
  const bool knows_new = state.outermost != nullptr && state.outermost->completes_results &&
                         state.in_place == nullptr && state.access_scopes.empty();
  StorageUses others;
  for (const StorageUse& use : storages) {
    if (is_held(use) || (knows_new && state.has_made(*use.storage))) continue;
    others.push_back(use);
  }
  if (!others.empty()) state.operator_pins.add(state, others);
}

void begin_anew(ThreadState& state) {
  state.operator_pins.release();
  leave_engine(state, /*to_try_again=*/true);
}

namespace {

template <typename Pin>
void pin_or_begin_anew(ThreadState& state, Pin&& pin) {
  const Repeatable repeatable(state, true);
  try {
    pin();
  } catch (const c10::Error&) {
    if (!state.holder.contended()) throw;
    begin_anew(state);
    pin();
  }
}

}  // namespace

void pin_first(ThreadState& state, const OpInfo& info, const c10::Stack& stack) {
  pin_or_begin_anew(state, [&] { pin_arguments(state, info, stack); });
}

void pin_first(ThreadState& state) {
  pin_or_begin_anew(state, [&] { state.operator_pins.add(state, state.arguments); });
}

}  // namespace lms::torch
