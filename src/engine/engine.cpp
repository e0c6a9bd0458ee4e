#include "engine/engine.h"

#include <utility>

namespace lms {

EngineLock::~EngineLock() {
  if (lock_.owns_lock()) unlock();
  dead_.clear();
}

void EngineLock::unlock() {
  auto dead = std::exchange(dead_, {});
  lock_.unlock();
}

Engine::Engine(Options options, Mover& mover, std::unique_ptr<Policy> policy, Meter* meter)
    : options_(options), mover_(mover), meter_(meter), policy_(std::move(policy)) {}

Engine::~Engine() = default;

// Blocks

Block& Engine::add(EngineLock& lock, std::unique_ptr<Block> block) {
  (void)lock;
  Block& added = *block;
  added.id = next_id_++;
  added.engine = this;
  blocks_.emplace(&added, std::move(block));
  stats_.blocks.add(1);
  // Without a meter the bytes were counted by reserve().
  if (meter_ != nullptr) stats_.device.add(added.size);
  return added;
}

void Engine::remove(EngineLock& lock, Block& block) {
  block.died = true;
  if (block.pins > 0 || block.state == BlockState::kLeaving ||
      block.state == BlockState::kArriving) {
    policy_->withdraw(block);
    return;
  }
  erase(lock, block);
}

void Engine::erase(EngineLock& lock, Block& block) {
  policy_->withdraw(block);
  if (block.state == BlockState::kAbsent) {
    stats_.below.sub(block.size);
  } else {
    stats_.device.sub(block.size);
  }
  if (block.kept) stats_.kept.sub(block.size);
  stats_.blocks.sub(1);
  block.forgotten();
  auto found = blocks_.find(&block);
  lock.dead_.push_back(std::move(found->second));
  blocks_.erase(found);
}

void Engine::pin(EngineLock& lock, std::span<const Use> uses) {
  bool all_here = true;
  for (const Use& use : uses) {
    Block& block = *use.block;
    if (block.pins++ == 0) {
      policy_->withdraw(block);
      stats_.pinned.add(block.size);
    }
    all_here =
        all_here && (block.state == BlockState::kResident || block.state == BlockState::kFresh);
  }
  if (!all_here) {
    try {
      for (const Use& use : uses) bring_in(lock, *use.block, /*ahead=*/false);
    } catch (...) {
      // No operator has used them: what is fresh stays so.
      release(lock, uses, /*used=*/false);
      throw;
    }
  }
  for (const Use& use : uses) {
    Block& block = *use.block;
    if (use.writes && block.has_copy) {
      mover_.drop_copy(block);
      block.has_copy = block.copy_valid = false;
    }
  }
}

void Engine::unpin(EngineLock& lock, std::span<const Use> uses) noexcept {
  release(lock, uses, /*used=*/true);
}

void Engine::release(EngineLock& lock, std::span<const Use> uses, bool used) noexcept {
  for (const Use& use : uses) {
    Block& block = *use.block;
    if (used && block.state == BlockState::kFresh) block.state = BlockState::kResident;
    if (--block.pins > 0) continue;
    block.last_use = static_cast<std::uint64_t>(stats_.operators);
    stats_.pinned.sub(block.size);
    const bool moving = block.state == BlockState::kLeaving || block.state == BlockState::kArriving;
    if (block.died && !moving) {
      erase(lock, block);
    } else {
      offer_if_free(block);
    }
  }
}

void Engine::keep(EngineLock& lock, Block& block) {
  (void)lock;
  if (block.kept) return;
  block.kept = true;
  policy_->withdraw(block);
  stats_.kept.add(block.size);
  if (block.has_copy) mover_.drop_copy(block);
  block.has_copy = block.copy_valid = false;
}

void Engine::operator_ended(EngineLock& lock) {
  // Deaths that nobody announces are found in passing, at little cost.
  constexpr std::int64_t kSweepEvery = 256;
  if (++stats_.operators % kSweepEvery == 0) collect_dead(lock);
  for (Block* block : policy_->after_operator()) {
    // The lock is let go while a block moves: the next may have died or been pinned meanwhile.
    if (paused_ > 0) return;
    if (blocks_.contains(block) && may_leave(*block)) send_out(lock, *block);
  }
}

// Transitions

bool Engine::may_leave(const Block& block) const {
  return block.state == BlockState::kResident && block.pins == 0 && !block.kept && !block.died;
}

void Engine::offer_if_free(Block& block) {
  if (may_leave(block)) policy_->offer(block);
}

void Engine::finish_transition(EngineLock& lock, Block& block, BlockState state) {
  block.state = state;
  --in_transit_;
  if (block.died && block.pins == 0) {
    erase(lock, block);
  } else {
    offer_if_free(block);
  }
  moved_.notify_all();
}

void Engine::bring_in(EngineLock& lock, Block& block, bool ahead) {
  while (block.state == BlockState::kLeaving || block.state == BlockState::kArriving) {
    moved_.wait(lock.lock_);
  }
  if (block.state != BlockState::kAbsent) return;

  block.state = BlockState::kArriving;
  ++in_transit_;
  bool counted = false;
  std::optional<Bytes> copied;
  try {
    if (meter_ == nullptr) {
      // What nobody needs yet drives nothing else out.
      const bool fits = ahead ? stats_.device.current + block.size <= options_.limit
                              : make_room_until(lock, block.size, /*take=*/true);
      if (ahead && fits) stats_.device.add(block.size);
      if (!fits) {
        throw OutOfMemory("a block of " + format_bytes(block.size) +
                          " does not fit under the limit of " + format_bytes(options_.limit) +
                          " beside the " + format_bytes(stats_.device.current) +
                          " that cannot leave; a limit of at least " +
                          format_bytes(stats_.device.current + block.size) + " would work");
      }
      counted = true;
    }
    lock.unlock();
    copied = mover_.page_in(block, ahead);
    lock.lock();
  } catch (...) {
    if (!lock.owns()) lock.lock();
    if (counted) stats_.device.sub(block.size);
    finish_transition(lock, block, BlockState::kAbsent);
    throw;
  }
  if (meter_ != nullptr) stats_.device.add(block.size);
  stats_.below.sub(block.size);
  block.copy_valid = block.has_copy;
  if (copied) {
    ++stats_.page_ins;
    stats_.bytes_in += *copied;
  } else {
    block.died = true;
  }
  finish_transition(lock, block, BlockState::kResident);
}

Bytes Engine::send_out(EngineLock& lock, Block& block) {
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
  for (bool retried = false;;) {
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
      // The dead may have had copies, given back when the lock is let go.
      const bool freed = blocks_.size() < known;
      if (!retried && (drop_copies(lock, size) > 0 || freed)) {
        retried = true;
        continue;
      }
      finish_transition(lock, block, BlockState::kResident);
      throw;
    } catch (...) {
      if (!lock.owns()) lock.lock();
      finish_transition(lock, block, BlockState::kResident);
      throw;
    }
  }
  if (!copied) {
    block.died = true;
    finish_transition(lock, block, BlockState::kResident);
    return 0;
  }
  stats_.device.sub(size);
  stats_.below.add(size);
  block.has_copy = block.copy_valid = true;
  ++stats_.evictions;
  if (clean) ++stats_.clean_evictions;
  stats_.bytes_out += *copied;
  finish_transition(lock, block, BlockState::kAbsent);
  return size;
}

// Memory

bool Engine::make_room(EngineLock& lock, Bytes bytes) {
  return make_room_until(lock, bytes, /*take=*/false);
}

bool Engine::reserve(EngineLock& lock, Bytes bytes) {
  return make_room_until(lock, bytes, /*take=*/true);
}

void Engine::unreserve(EngineLock& lock, Bytes bytes) {
  (void)lock;
  stats_.device.sub(bytes);
}

Bytes Engine::in_use(EngineLock& lock) {
  if (meter_ == nullptr) return stats_.device.current;
  lock.unlock();
  const Bytes used = meter_->in_use();
  lock.lock();
  return used;
}

bool Engine::make_room_until(EngineLock& lock, Bytes bytes, bool take) {
  for (;;) {
    const Bytes used = in_use(lock);
    if (used + bytes <= options_.limit) {
      if (take) stats_.device.add(bytes);
      return true;
    }
    Block* block = paused_ > 0 ? nullptr : policy_->victim(used + bytes - options_.limit);
    if (block != nullptr) {
      send_out(lock, *block);
      continue;
    }
    // Another thread's eviction may be about to give its memory back. An arrival does not.
    bool leaving = false;
    if (in_transit_ > 0) {
      for (const auto& [other, owned] : blocks_) {
        leaving = leaving || other->state == BlockState::kLeaving;
      }
    }
    if (!leaving) return false;
    moved_.wait(lock.lock_);
  }
}

Bytes Engine::reclaim(EngineLock& lock, Bytes bytes) {
  Bytes left = 0;
  while (left < bytes && paused_ == 0) {
    Block* block = policy_->victim(bytes - left);
    if (block == nullptr) break;
    left += send_out(lock, *block);
  }
  return left;
}

Bytes Engine::reclaim_one(EngineLock& lock, Bytes least, Bytes most) {
  while (paused_ == 0) {
    Block* block = policy_->victim_of_size(least, most);
    if (block == nullptr) return 0;
    if (const Bytes left = send_out(lock, *block); left > 0) return left;
  }
  return 0;
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
  ++block.pins;  // nobody else takes it out again in between
  stats_.pinned.add(block.size);
  bool here = false;
  try {
    bring_in(lock, block, /*ahead=*/true);
    here = true;
  } catch (const OutOfMemory&) {
    // Whoever needs it makes room.
  } catch (const TierFull&) {
    // Likewise.
  }
  const Use use{&block, false};
  release(lock, {&use, 1}, /*used=*/false);
  return here;
}

bool Engine::relocate(EngineLock& lock, Block& block) {
  const auto move = [&] { return mover_.relocate(block); };
  return move_beside(lock, block, move, [&] { ++stats_.relocations; });
}

bool Engine::knows(EngineLock& lock, const Block* block, std::uint64_t uid) const {
  (void)lock;
  const auto found = blocks_.find(const_cast<Block*>(block));
  return found != blocks_.end() && block->uid == uid && !block->died;
}

bool Engine::may_evict(EngineLock& lock, const Block& block) const {
  (void)lock;
  return paused_ == 0 && may_leave(block);
}

Bytes Engine::return_all(EngineLock& lock) {
  std::vector<std::pair<Block*, std::uint64_t>> absent;
  for (const auto& [block, owned] : blocks_) {
    if (block->state == BlockState::kAbsent) absent.emplace_back(block, block->id);
  }
  for (const auto& [block, id] : absent) {
    // Each at most once, and none at the cost of another: it must come to an end.
    const Bytes used = in_use(lock);
    const auto found = blocks_.find(block);
    if (found == blocks_.end() || block->id != id || block->state != BlockState::kAbsent) continue;
    if (block->died || used + block->size > options_.limit) continue;
    const Use use{block, false};
    try {
      pin(lock, {&use, 1});
    } catch (const std::exception&) {
      continue;
    }
    unpin(lock, {&use, 1});
  }
  return stats_.below.current;
}

Bytes Engine::drop_copies(EngineLock& lock, Bytes bytes) {
  (void)lock;
  Bytes freed = 0;
  for (const auto& [block, owned] : blocks_) {
    if (freed >= bytes) break;
    if (block->state != BlockState::kResident || !block->has_copy) continue;
    mover_.drop_copy(*block);
    block->has_copy = block->copy_valid = false;
    freed += block->size;
  }
  return freed;
}

void Engine::collect_dead(EngineLock& lock) {
  std::vector<Block*> dead;
  for (const auto& [block, owned] : blocks_) {
    const bool still = block->state == BlockState::kResident || block->state == BlockState::kFresh;
    if (still && block->pins == 0 && !block->alive()) dead.push_back(block);
  }
  for (Block* block : dead) erase(lock, *block);
}

void Engine::settle(EngineLock& lock) {
  while (in_transit_ > 0) moved_.wait(lock.lock_);
}

// Settings and facts

void Engine::set_policy(EngineLock& lock, std::unique_ptr<Policy> policy) {
  (void)lock;
  std::vector<Block*> offered;
  policy_->for_each([&](Block& block) { offered.push_back(&block); });
  for (Block* block : offered) policy_->withdraw(*block);
  policy_ = std::move(policy);
  for (Block* block : offered) policy_->offer(*block);
}

void Engine::reset_peak(EngineLock& lock) {
  (void)lock;
  for (Counter* counter :
       {&stats_.device, &stats_.below, &stats_.blocks, &stats_.pinned, &stats_.kept}) {
    counter->reset_peak();
  }
}

Bytes Engine::immovable(EngineLock& lock) const {
  (void)lock;
  Bytes sum = 0;
  for (const auto& [block, owned] : blocks_) {
    const bool leaves = block->state == BlockState::kAbsent ||
                        (block->state == BlockState::kLeaving && block->pins == 0);
    if (!leaves && !may_leave(*block)) sum += block->size;
  }
  return sum;
}

void Engine::for_each(EngineLock& lock, const std::function<void(Block&)>& visit) {
  (void)lock;
  for (const auto& [block, owned] : blocks_) visit(*block);
}

}  // namespace lms
