#include "adapters/torch/hook/frame.h"

#include <algorithm>

namespace lms::torch {

std::span<const StorageUse> sort_out_made(ThreadState& state, const OpInfo& info) {
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

std::span<const StorageUse> collect_made(ThreadState& state, const OpInfo& info,
                                         const c10::Stack& stack, std::size_t base) {
  state.made.clear();
  for (std::size_t i = base; i < stack.size(); ++i) {
    collect_storages(stack[i], /*writes=*/true, /*inside=*/false, state.made);
  }
  return sort_out_made(state, info);
}

void track_made(ThreadState& state, std::span<const StorageUse> made) {
  if (state.keeps > 0) {
    Pins pins;
    pins.add(state, made);
    pins.keep();
  } else {
    state.operator_pins.add(state, made);
  }
}

}  // namespace lms::torch
