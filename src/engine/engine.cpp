#include "engine/engine.h"

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

namespace lms {

void EngineLock::bury() noexcept {
  // Destructors may come back to this lock.
  for (Block* block = std::exchange(dead_, nullptr); block != nullptr;) {
    Block* const next = block->older;
    delete block;
    block = next;
  }
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
  if (block.pins > 0 || is_moving(block.state)) {
    policy_->withdraw(block);
    return;
  }
  erase(lock, block);
}

void Engine::erase(EngineLock& lock, Block& block) {
  policy_->withdraw(block);
  changed();
  if (block.state == BlockState::kAbsent) {
    stats_.below.sub(block.size);
  } else if (block.state == BlockState::kDropped) {
    stats_.dropped.sub(block.size);
  } else {
    stats_.device.sub(block.size);
  }
  if (block.kept) stats_.kept.sub(block.size);
  stats_.blocks.sub(1);
  block.forgotten();
  auto found = blocks_.find(&block);
  block.older = std::exchange(lock.dead_, found->second.release());
  blocks_.erase(found);
}

void Engine::pin(EngineLock& lock, std::span<const Use> uses) {
  compute_dropped(lock, uses);
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

void Engine::compute_dropped(EngineLock& lock, std::span<const Use> uses) {
  const auto is_dropped = [](const Use& use) { return use.block->state == BlockState::kDropped; };
  if (std::ranges::none_of(uses, is_dropped)) return;
  // Computing takes more memory than the block itself: while the others may still leave.
  std::vector<Use> held;
  try {
    for (const Use& use : uses) hold_absent(use, held);
    for (const Use& use : uses) {
      if (is_dropped(use)) bring_in_alone(lock, *use.block, /*ahead=*/false);
    }
  } catch (...) {
    release(lock, held, /*used=*/false);
    throw;
  }
  release(lock, held, /*used=*/false);
}

void Engine::hold_absent(const Use& use, std::vector<Use>& held) {
  if (use.block->state != BlockState::kAbsent) return;
  held.push_back({use.block, false});
  if (use.block->pins++ == 0) stats_.pinned.add(use.block->size);
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
    if (block.died && !is_moving(block.state)) {
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
    if (!blocks_.contains(block) || !may_leave(*block)) continue;
    if (policy_->drops() && drop(lock, *block)) continue;
    if (!blocks_.contains(block) || !may_leave(*block)) continue;
    try {
      send_out(lock, *block);
    } catch (const TierFull&) {
      // The operator has done its work: it stays where it is, and whoever needs its room hears of
      // it.
      return;
    }
  }
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
  changed();
}

Bytes Engine::in_use(EngineLock& lock) {
  if (meter_ == nullptr) return stats_.device.current;
  lock.unlock();
  const Bytes used = meter_->in_use();
  lock.lock();
  return used;
}

bool Engine::make_room_until(EngineLock& lock, Bytes bytes, bool take) {
  bool made = false;
  std::exception_ptr full;
  try {
    for (;;) {
      full = nullptr;
      const std::uint64_t before = changes();
      try {
        made = try_to_make_room(lock, bytes, take);
      } catch (const TierFull&) {
        full = std::current_exception();
      }
      // Whoever was in the way may have ended meanwhile: the lock is let go while blocks leave.
      if (made || (changes() == before && !wait_for_others(lock))) break;
    }
  } catch (...) {
    end_wait(lock);
    throw;
  }
  end_wait(lock);
  if (full != nullptr) std::rethrow_exception(full);
  return made;
}

bool Engine::try_to_make_room(EngineLock& lock, Bytes bytes, bool take) {
  for (;;) {
    const Bytes used = in_use(lock);
    if (used + bytes <= options_.limit) {
      if (take) stats_.device.add(bytes);
      return true;
    }
    Block* block = paused_ > 0 ? nullptr : policy_->victim(used + bytes - options_.limit);
    if (block != nullptr) {
      send_out_or_drop(lock, *block);
      continue;
    }
    // Another thread's eviction may be about to give its memory back. An arrival does not.
    const Block* leaving = nullptr;
    if (in_transit_ > 0) {
      for (const auto& [other, owned] : blocks_) {
        if (other->state == BlockState::kLeaving) leaving = other;
      }
    }
    if (leaving == nullptr) return false;
    wait_for_move(lock, *leaving);
  }
}

Bytes Engine::reclaim(EngineLock& lock, Bytes bytes) {
  Bytes left = 0;
  while (left < bytes && paused_ == 0) {
    Block* block = policy_->victim(bytes - left);
    if (block == nullptr) break;
    left += send_out_or_drop(lock, *block, /*everything=*/bytes == INT64_MAX);
  }
  return left;
}

Bytes Engine::send_out_or_drop(EngineLock& lock, Block& block, bool everything) {
  const Bytes size = block.size;
  try {
    return send_out(lock, block, /*may_drop=*/false);
  } catch (const TierFull&) {
    // The block may have died meanwhile. What is computed again takes more room than what comes
    // back: nothing is dropped before that is the only way.
    if (const Bytes sent = send_out_smaller(lock, size); sent > 0) return sent;
    if (const auto gone = give_way(lock, everything ? 0 : size)) return *gone;
    throw;
  }
}

Bytes Engine::send_out_smaller(EngineLock& lock, Bytes size) {
  std::vector<std::pair<Block*, std::uint64_t>> offered;
  policy_->for_each([&](Block& block) { offered.emplace_back(&block, block.id); });
  for (const auto& [block, id] : offered) {
    // The lock is let go while one is tried: the next may be gone, or in use.
    if (!blocks_.contains(block) || block->id != id || !may_leave(*block)) continue;
    if (block->size >= size && !block->copy_valid) continue;
    try {
      if (const Bytes left = send_out(lock, *block, /*may_drop=*/false); left > 0) return left;
    } catch (const TierFull&) {
      size = std::min(size, block->size);
    }
  }
  return 0;
}

std::optional<Bytes> Engine::give_way(EngineLock& lock, Bytes bytes) {
  for (const Bytes most : {unplanned(), Mover::kUnlimited}) {
    if (const Bytes dropped = drop_one(lock, most); dropped > 0) return dropped;
    if (drop_absent(lock, bytes, most) > 0) return 0;
  }
  return std::nullopt;
}

bool Engine::make_room_below(EngineLock& lock, Bytes bytes) {
  return drop_absent(lock, bytes, unplanned()) > 0 ||
         drop_absent(lock, bytes, Mover::kUnlimited) > 0;
}

Bytes Engine::drop_absent(EngineLock& lock, Bytes bytes, Bytes most) {
  if (bytes == 0 || !mover_.drops_absent()) return 0;
  std::vector<std::pair<Block*, std::uint64_t>> absent;
  for (const auto& [block, owned] : blocks_) {
    if (block->state == BlockState::kAbsent) absent.emplace_back(block, block->id);
  }
  // One that is large enough leaves room in one piece.
  const auto order = [&](const auto& one) {
    const Block& block = *one.first;
    return std::tuple(block.size < bytes, block.last_use, one.second);
  };
  std::ranges::sort(absent, {}, order);
  Bytes gone = 0;
  for (const auto& [block, id] : absent) {
    // The lock is let go while one is tried: the next may be gone, or in use.
    if (!blocks_.contains(block) || block->id != id) continue;
    const Bytes size = block->size;
    if (drop_absent(lock, *block, most)) gone += size;
    if (gone >= bytes) break;
  }
  return gone;
}

Bytes Engine::drop_one(EngineLock& lock, Bytes most) {
  std::vector<std::pair<Block*, std::uint64_t>> offered;
  policy_->for_each([&](Block& block) { offered.emplace_back(&block, block.id); });
  for (const auto& [block, id] : offered) {
    // The lock is let go while one is tried: the next may be gone, or in use.
    if (!blocks_.contains(block) || block->id != id) continue;
    const Bytes size = block->size;
    if (drop_up_to(lock, *block, most)) return size;
  }
  return 0;
}

Bytes Engine::reclaim_one(EngineLock& lock, Bytes least, Bytes most) {
  while (paused_ == 0) {
    Block* block = policy_->victim_of_size(least, most);
    if (block == nullptr) return 0;
    const Bytes size = block->size;
    try {
      if (const Bytes left = send_out(lock, *block); left > 0) return left;
    } catch (const TierFull&) {
      if (!give_way(lock, size)) throw;
    }
  }
  return 0;
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

void Engine::for_each_victim(EngineLock& lock, const std::function<void(Block&, double)>& visit) {
  if (paused_ > 0) return;
  const std::uint64_t now = clock(lock);
  policy_->for_each([&](Block& block) { visit(block, policy_->cost(block, now)); });
}

Block* Engine::next_victim(EngineLock& lock, const std::function<bool(const Block&)>& may) {
  Block* best = nullptr;
  double least = 0;
  for_each_victim(lock, [&](Block& block, double cost) {
    if ((best != nullptr && cost >= least) || !may(block)) return;
    best = &block;
    least = cost;
  });
  return best;
}

Bytes Engine::return_all(EngineLock& lock) {
  std::vector<std::pair<Block*, std::uint64_t>> absent;
  for (const auto& [block, owned] : blocks_) {
    if (is_away(block->state)) absent.emplace_back(block, block->id);
  }
  for (const auto& [block, id] : absent) {
    // Each at most once, and none at the cost of another: it must come to an end.
    const Bytes used = in_use(lock);
    const auto found = blocks_.find(block);
    if (found == blocks_.end() || block->id != id || !is_away(block->state)) continue;
    if (block->died || used + block->size > options_.limit) continue;
    const Use use{block, false};
    try {
      pin(lock, {&use, 1});
    } catch (const std::exception&) {
      continue;
    }
    unpin(lock, {&use, 1});
  }
  return stats_.below.current + stats_.dropped.current;
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
  if (freed > 0) changed();
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
  for (Counter* counter : {&stats_.device, &stats_.below, &stats_.dropped, &stats_.blocks,
                           &stats_.pinned, &stats_.kept}) {
    counter->reset_peak();
  }
}

Bytes Engine::immovable(EngineLock& lock) const {
  (void)lock;
  Bytes sum = 0;
  for (const auto& [block, owned] : blocks_) {
    const bool leaves = is_away(block->state) || block->state == BlockState::kLent ||
                        (block->state == BlockState::kLeaving && block->pins == 0);
    if (!leaves && !may_leave(*block)) sum += block->size;
  }
  return sum - uncounted_;
}

void Engine::for_each(EngineLock& lock, const std::function<void(Block&)>& visit) {
  (void)lock;
  for (const auto& [block, owned] : blocks_) visit(*block);
}

}  // namespace lms
