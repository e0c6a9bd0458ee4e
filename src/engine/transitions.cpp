// Every change of a block's state but its first.

#include <utility>

#include "engine/engine.h"

namespace lms {

bool Engine::may_leave(const Block& block) const {
  return block.state == BlockState::kResident && block.pins == 0 && !block.kept && !block.died &&
         !block.ending;
}

void Engine::offer_if_free(Block& block) {
  if (!may_leave(block)) return;
  policy_->offer(block);
  changed();
}

void Engine::end_transit(Block& block, BlockState state) {
  block.state = state;
  block.arrives_for = nullptr;
  --in_transit_;
}

void Engine::finish_transition(EngineLock& lock, Block& block, BlockState state) {
  end_transit(block, state);
  if (block.died && block.pins == 0) {
    erase(lock, block);
  } else {
    offer_if_free(block);
  }
  changed();
}

void Engine::come_back(EngineLock& lock, Block& block) {
  if (block.died) {
    finish_transition(lock, block, BlockState::kResident);
    return;
  }
  end_transit(block, BlockState::kResident);
  if (may_leave(block)) policy_->offer(block);
  wake();
}

bool Engine::take_room_for(EngineLock& lock, Block& block, bool ahead, bool dropped) {
  // What nobody needs yet drives nothing else out.
  bool fits = ahead && stats_.device.current + block.size <= options_.limit;
  bool stays_below = false;
  try {
    if (!ahead) fits = make_room_until(lock, block.size, /*take=*/true);
  } catch (const TierFull&) {
    // A full tier below is no reason why what lies there could not be read.
    if (dropped || !mover_.usable_below(block)) throw;
    fits = stays_below = true;
  }
  if (fits && (ahead || stays_below)) stats_.device.add(block.size);
  if (!fits) {
    throw OutOfMemory("a block of " + format_bytes(block.size) +
                      " does not fit under the limit of " + format_bytes(options_.limit) +
                      " beside the " + format_bytes(stats_.device.current) +
                      " that cannot leave; a limit of at least " +
                      format_bytes(stats_.device.current + block.size) + " would work");
  }
  return stays_below;
}

bool Engine::compute_again(EngineLock& lock, Block& block, const std::function<void()>& take) {
  lock.unlock();
  const auto take_now = [&] {
    lock.lock();
    try {
      take();
    } catch (...) {
      if (lock.owns()) lock.unlock();  // what the mover has made wants it when it goes
      throw;
    }
    lock.unlock();
  };
  const bool computed = mover_.rematerialise(block, take_now);
  lock.lock();
  return computed;
}

void Engine::bring_in(EngineLock& lock, Block& block, bool ahead) {
  while (is_moving(block.state)) wait_for_move(lock, block);
  const BlockState before = block.state;
  if (!is_away(before)) return;
  const bool dropped = before == BlockState::kDropped;

  block.state = BlockState::kArriving;
  block.arrives_for = lock.who_;
  ++in_transit_;
  bool counted = false;
  bool stays_below = false;
  std::optional<Bytes> moved;
  // What computes it again has memory of its own for the bytes until then.
  Bytes uncounted = dropped ? block.size : 0;
  uncounted_ += uncounted;
  const auto take = [&] {
    if (meter_ != nullptr) return;
    stays_below = take_room_for(lock, block, ahead, dropped);
    counted = true;
    uncounted_ -= std::exchange(uncounted, 0);
  };
  try {
    if (dropped) {
      if (compute_again(lock, block, take)) moved = block.size;
    } else {
      take();
      if (stays_below) {
        block.has_copy = false;  // whoever writes, writes there
        moved = 0;
      } else {
        lock.unlock();
        moved = mover_.page_in(block, ahead);
        lock.lock();
      }
    }
  } catch (...) {
    if (!lock.owns()) lock.lock();
    uncounted_ -= uncounted;
    if (counted) stats_.device.sub(block.size);
    finish_transition(lock, block, before);
    throw;
  }
  uncounted_ -= uncounted;
  block.ending = !moved && !block.died && block.end_comes();
  if (block.ending) {
    if (counted) stats_.device.sub(block.size);
    finish_transition(lock, block, before);
    return;
  }
  if (!counted) stats_.device.add(block.size);
  (dropped ? stats_.dropped : stats_.below).sub(block.size);
  block.copy_valid = block.has_copy;
  if (!moved) {
    block.died = true;
  } else if (dropped) {
    ++stats_.remakes;
    stats_.bytes_remade += *moved;
  } else {
    ++stats_.page_ins;
    stats_.bytes_in += *moved;
  }
  finish_transition(lock, block, BlockState::kResident);
}

void Engine::bring_in_alone(EngineLock& lock, Block& block, bool ahead) {
  ++block.pins;  // nobody else takes it out again in between
  stats_.pinned.add(block.pins == 1 ? block.size : 0);
  const Use use{&block, false};
  try {
    bring_in(lock, block, ahead);
  } catch (...) {
    release(lock, {&use, 1}, /*used=*/false);
    throw;
  }
  release(lock, {&use, 1}, /*used=*/false);
}

Bytes Engine::send_out(EngineLock& lock, Block& block, bool may_drop) {
  if (!block.alive()) {
    erase(lock, block);
    return 0;
  }
  policy_->withdraw(block);
  block.state = BlockState::kLeaving;
  ++in_transit_;
  const bool clean = block.copy_valid;
  const bool verify = clean && options_.verify;
  const Bytes size = block.size;
  std::optional<Bytes> copied;
  const std::uint64_t id = block.id;
  for (bool gave_up = false;;) {
    try {
      lock.unlock();
      if (verify && !mover_.copy_matches(block)) {
        throw Error("a block of " + format_bytes(size) +
                    " was written by an operator that does not declare it: its copy is stale");
      }
      copied = mover_.page_out(block, clean);
      lock.lock();
      break;
    } catch (const TierFull&) {
      if (!lock.owns()) lock.lock();
      const std::size_t known = blocks_.size();
      collect_dead(lock);
      // The dead may have had copies, given back when the lock is let go. What is free may be in
      // pieces: as long as there are copies, giving one back may join some. But no more than as
      // much as is needed, where the block can be computed again.
      if (!gave_up || !may_drop) {
        gave_up = drop_copies(lock, size) > 0 || blocks_.size() < known;
        if (gave_up) continue;
      }
      if (!may_drop) {
        come_back(lock, block);
        throw;
      }
      // What can be computed again needs no room below.
      if (finish_drop(lock, block, unplanned())) return size;
      if (!gave_up || !blocks_.contains(&block) || block.id != id || !may_leave(block)) throw;
      return send_out(lock, block, /*may_drop=*/false);
    } catch (...) {
      if (!lock.owns()) lock.lock();
      finish_transition(lock, block, BlockState::kResident);
      throw;
    }
  }
  if (!copied) {
    block.ending = !block.died && block.end_comes();
    block.died = !block.ending;
    finish_transition(lock, block, BlockState::kResident);
    return 0;
  }
  stats_.device.sub(size);
  stats_.below.add(size);
  block.has_copy = block.copy_valid = true;
  ++stats_.evictions;
  if (*copied == 0) ++stats_.clean_evictions;
  stats_.bytes_out += *copied;
  finish_transition(lock, block, BlockState::kAbsent);
  return size;
}

bool Engine::evict(EngineLock& lock, Block& block) {
  return may_evict(lock, block) && send_out(lock, block) > 0;
}

bool Engine::move_beside(EngineLock& lock, Block& block, const std::function<bool()>& move,
                         const std::function<void()>& note) {
  if (!may_evict(lock, block)) return false;
  if (!block.alive()) {
    erase(lock, block);
    return false;
  }
  policy_->withdraw(block);
  block.state = BlockState::kLeaving;
  ++in_transit_;
  bool moved = false;
  try {
    lock.unlock();
    moved = move();
    lock.lock();
  } catch (...) {
    if (!lock.owns()) lock.lock();
    finish_transition(lock, block, BlockState::kResident);
    throw;
  }
  if (moved) note();
  finish_transition(lock, block, BlockState::kResident);
  return moved;
}

bool Engine::clean(EngineLock& lock, Block& block) {
  if (block.copy_valid) return false;
  std::optional<Bytes> copied;
  const auto move = [&] {
    copied = mover_.copy_below(block);
    return copied.has_value();
  };
  return move_beside(lock, block, move, [&] {
    block.has_copy = block.copy_valid = true;
    stats_.bytes_out += *copied;
  });
}

bool Engine::fetch(EngineLock& lock, Block& block) {
  if (block.state != BlockState::kAbsent || paused_ > 0) return false;
  try {
    bring_in_alone(lock, block, /*ahead=*/true);
    return true;
  } catch (const OutOfMemory&) {
    // Whoever needs it makes room.
  } catch (const TierFull&) {
    // Likewise.
  }
  return false;
}

bool Engine::drop(EngineLock& lock, Block& block) {
  return drop_up_to(lock, block, Mover::kUnlimited);
}

bool Engine::drop_up_to(EngineLock& lock, Block& block, Bytes most) {
  if (!may_evict(lock, block)) return false;
  if (!block.alive()) {
    erase(lock, block);
    return false;
  }
  policy_->withdraw(block);
  block.state = BlockState::kLeaving;
  ++in_transit_;
  return finish_drop(lock, block, most);
}

bool Engine::finish_drop(EngineLock& lock, Block& block, Bytes most) {
  bool dropped = false;
  try {
    lock.unlock();
    dropped = mover_.drop(block, most);
    lock.lock();
  } catch (...) {
    if (!lock.owns()) lock.lock();
    finish_transition(lock, block, BlockState::kResident);
    throw;
  }
  if (!dropped) {
    come_back(lock, block);
    return false;
  }
  stats_.device.sub(block.size);
  stats_.dropped.add(block.size);
  ++stats_.drops;
  block.has_copy = block.copy_valid = false;
  finish_transition(lock, block, BlockState::kDropped);
  return true;
}

bool Engine::drop_absent(EngineLock& lock, Block& block, Bytes most) {
  const bool free = block.state == BlockState::kAbsent && block.pins == 0 && !block.died;
  if (!free || paused_ > 0) return false;
  const Use use{&block, false};
  block.state = BlockState::kLent;
  block.arrives_for = lock.who_;
  ++in_transit_;
  bool dropped = false;
  try {
    lock.unlock();
    dropped = mover_.drop_absent(block, most);
    lock.lock();
  } catch (...) {
    if (!lock.owns()) lock.lock();
    give_back_as_it_was(lock, {&use, 1});
    throw;
  }
  if (!dropped) {
    give_back_as_it_was(lock, {&use, 1});
    return false;
  }
  stats_.below.sub(block.size);
  stats_.dropped.add(block.size);
  ++stats_.drops;
  block.has_copy = block.copy_valid = false;
  finish_transition(lock, block, BlockState::kDropped);
  return true;
}

bool Engine::rematerialise(EngineLock& lock, Block& block) {
  if (block.state != BlockState::kDropped || paused_ > 0) return false;
  bring_in_alone(lock, block, /*ahead=*/false);
  return true;
}

Bytes Engine::rematerialise_all(EngineLock& lock) {
  std::vector<std::pair<Block*, std::uint64_t>> dropped;
  for (const auto& [block, owned] : blocks_) {
    if (block->state == BlockState::kDropped) dropped.emplace_back(block, block->id);
  }
  for (const auto& [block, id] : dropped) {
    const auto found = blocks_.find(block);
    if (found == blocks_.end() || block->id != id || block->state != BlockState::kDropped) continue;
    try {
      bring_in_alone(lock, *block, /*ahead=*/false);
    } catch (const std::exception&) {
      // It stays as it is; the others may do better.
    }
  }
  return stats_.dropped.current;
}

bool Engine::relocate(EngineLock& lock, Block& block) {
  const auto move = [&] { return mover_.relocate(block); };
  return move_beside(lock, block, move, [&] { ++stats_.relocations; });
}

}  // namespace lms
