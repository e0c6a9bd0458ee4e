// Blocks whose bytes are worked on where they lie below, in pieces, while the device has none of
// them.

#include <algorithm>

#include "engine/engine.h"

namespace lms {

bool Engine::lend(EngineLock& lock, std::span<const Use> uses) {
  const auto is_absent = [](const Use& use) { return use.block->state == BlockState::kAbsent; };
  std::vector<Use> held;
  const auto let_go = [&] {
    release(lock, held, /*used=*/false);
    held.clear();
  };
  bool sent = true;
  try {
    // Others may bring back, while one leaves, what has left before it.
    constexpr int kMostRounds = 1024;
    for (int round = 0; sent && !std::ranges::all_of(uses, is_absent); ++round) {
      sent = round < kMostRounds && send_all_below(lock, uses, held);
      let_go();
    }
    end_wait(lock);
  } catch (...) {
    let_go();
    end_wait(lock);
    throw;
  }
  if (!sent) return false;
  for (const Use& use : uses) {
    use.block->state = BlockState::kLent;
    use.block->arrives_for = lock.who_;
    ++in_transit_;
  }
  return true;
}

bool Engine::send_all_below(EngineLock& lock, std::span<const Use> uses, std::vector<Use>& held) {
  for (const Use& use : uses) {
    // Of a block that occurs twice the pin is our own: nobody would let go of it.
    if (std::ranges::find(held, use.block, &Use::block) != held.end()) continue;
    if (!send_below(lock, *use.block)) return false;
    hold_absent(use, held);
  }
  return true;
}

bool Engine::send_below(EngineLock& lock, Block& block) {
  while (is_moving(block.state)) wait_for_move(lock, block);
  if (block.state == BlockState::kAbsent) return true;
  if (paused_ > 0 || block.died) return false;
  if (block.state == BlockState::kDropped) bring_in_alone(lock, block, /*ahead=*/false);
  // It is an operator's input, as when it is pinned: its maker has done with it.
  if (block.state == BlockState::kFresh && block.pins == 0) block.state = BlockState::kResident;
  if (is_moving(block.state)) return true;  // the next round sees what has become of it
  if (block.state == BlockState::kAbsent) return true;
  // Another's operator uses it, and will end.
  if (block.pins > 0 && !block.kept) return wait_for_others(lock);
  const Bytes size = block.size;
  try {
    return may_leave(block) && send_out(lock, block, /*may_drop=*/false) > 0;
  } catch (const TierFull&) {
    if (make_room_below(lock, size)) return true;  // the next round tries again
    throw;
  }
}

void Engine::give_back(EngineLock& lock, std::span<const Use> uses) noexcept {
  for (const Use& use : uses) finish_transition(lock, *use.block, BlockState::kAbsent);
}

void Engine::give_back_as_it_was(EngineLock& lock, std::span<const Use> uses) noexcept {
  for (const Use& use : uses) {
    if (use.block->died) {
      finish_transition(lock, *use.block, BlockState::kAbsent);
    } else {
      end_transit(*use.block, BlockState::kAbsent);
    }
  }
  wake();
}

Block& Engine::add_lent(EngineLock& lock, std::unique_ptr<Block> block) {
  Block& added = *block;
  added.id = next_id_++;
  added.engine = this;
  added.state = BlockState::kLent;
  added.arrives_for = lock.who_;
  added.has_copy = added.copy_valid = true;
  ++in_transit_;
  blocks_.emplace(&added, std::move(block));
  stats_.blocks.add(1);
  stats_.below.add(added.size);
  return added;
}

}  // namespace lms
