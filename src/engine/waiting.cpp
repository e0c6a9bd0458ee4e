// Threads that wait for each other: for a move to end, or for the room that another's operator
// takes.

#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace lms {

void Engine::wake() {
  if (sleepers_ > 0) moved_->notify_all();
}

void Engine::changed() {
  changes_.store(changes() + 1, std::memory_order_relaxed);
  wake();
}

void Engine::wait(EngineLock& lock) {
  void* const released = outer_ != nullptr ? outer_->release() : nullptr;
  ++sleepers_;
  moved_->wait(lock.lock_);
  --sleepers_;
  if (released == nullptr) return;
  // Who holds the outer lock may want the engine's.
  lock.lock_.unlock();
  outer_->acquire(released);
  lock.lock_.lock();
}

void Engine::settle(EngineLock& lock) {
  while (in_transit_ > 0) wait(lock);
}

/// True if it waits, and nothing has changed since, nor will before somebody else gives up or ends.
bool Engine::stuck(const PinHolder& holder) const {
  const PinHolder* at = &holder;
  for (std::size_t links = 0; links <= waiting_.size(); ++links) {
    if (at->waits_ == Waits::kNo || at->seen_ != changes() || at->refused_) return false;
    if (at->waits_ == Waits::kRoom) return true;
    at = at->waits_for_->arrives_for;
    if (at == nullptr) return false;
  }
  return true;
}

bool Engine::others_go_on(const PinHolder& who) const {
  return std::ranges::any_of(inside_, [&](const PinHolder* holder) {
    return holder != &who && holder->ends && !stuck(*holder);
  });
}

bool Engine::others_inside(const PinHolder& who) const {
  return std::ranges::any_of(
      inside_, [&](const PinHolder* holder) { return holder != &who && holder->ends; });
}

/// Something has had to leave, or two operators of a kind may not find room side by side.
bool Engine::short_of_room() const {
  return stats_.evictions > 0 || stats_.drops > 0 || stats_.device.current > options_.limit / 2;
}

/// Of those who wait for room, one that holds some, and knows how to begin anew.
PinHolder* Engine::whom_to_refuse(const PinHolder& who) const {
  const auto found = std::ranges::find_if(waiting_, [&](const PinHolder* holder) {
    return holder != &who && holder->waits_ == Waits::kRoom && holder->engine_ == this &&
           holder->repeatable;
  });
  return found == waiting_.end() ? nullptr : *found;
}

void Engine::refuse(PinHolder& holder) {
  holder.refused_ = true;
  changed();
}

void Engine::begin_wait(PinHolder& who, Waits what, const Block* block) {
  who.waits_ = what;
  who.waits_for_ = block;
  who.seen_ = changes();
  waiting_.push_back(&who);
}

void Engine::finish_wait(PinHolder& who) {
  std::erase(waiting_, &who);
  who.waits_ = Waits::kNo;
}

void Engine::wait_for_move(EngineLock& lock, const Block& block) {
  PinHolder* const who = lock.who_;
  // Who is inside another engine is guarded by that one's lock.
  if (who == nullptr || (who->engine_ != nullptr && who->engine_ != this)) {
    wait(lock);
    return;
  }
  begin_wait(*who, Waits::kMove, &block);
  // Whoever moves the block may be waiting for room, and everybody who could make some for him.
  if (stuck(*who) && !others_go_on(*who)) {
    PinHolder* mover = block.arrives_for;
    for (std::size_t links = waiting_.size(); links > 0 && mover->waits_ == Waits::kMove; --links) {
      mover = mover->waits_for_->arrives_for;
    }
    refuse(*mover);
    who->seen_ = changes();
  }
  wait(lock);
  finish_wait(*who);
}

bool Engine::wait_for_others(EngineLock& lock) {
  PinHolder* const who = lock.who_;
  // Who is inside another engine may be waited for there.
  if (who == nullptr || paused_ > 0 || (who->engine_ != nullptr && who->engine_ != this)) {
    return false;
  }
  const bool inside = who->engine_ == this;
  if (who->holds_locks) {
    who->contended_ = who->contended_ || (inside && others_inside(*who));
    return false;
  }
  begin_wait(*who, Waits::kRoom, nullptr);
  if (!others_go_on(*who)) {
    const bool others = others_inside(*who);
    // Each waits for the others: one must give up.
    PinHolder* const other = others && !who->repeatable ? whom_to_refuse(*who) : nullptr;
    if (other == nullptr) {
      finish_wait(*who);
      who->contended_ = who->contended_ || (others && inside);
      return false;
    }
    refuse(*other);
    who->seen_ = changes();
  }
  who->queues_ = true;
  open_or_close(*who);
  wait(lock);
  finish_wait(*who);
  if (!std::exchange(who->refused_, false)) return true;
  who->contended_ = who->contended_ || inside;
  return false;
}

void Engine::end_wait(EngineLock& lock) {
  if (lock.who_ == nullptr || !lock.who_->queues_) return;
  lock.who_->queues_ = false;
  open_or_close(*lock.who_);
}

void Engine::enter(EngineLock& lock, PinHolder& holder) {
  if (holder.engine_ != nullptr) return;
  // Whoever waits for an entrance holds nothing, so those inside end, and the wait does.
  if (holder.holds_locks) {
    // They may want its locks.
  } else if (holder.contended_ || (holder.wants_alone && short_of_room())) {
    holder.alone_ = true;
    open_or_close(holder);
    while (others_inside(holder)) wait(lock);
  } else {
    while (closed_ > 0) wait(lock);
  }
  holder.engine_ = this;
  holder.crowded_ = !inside_.empty();
  inside_.push_back(&holder);
}

void Engine::leave(EngineLock& lock, PinHolder& holder, bool to_try_again) {
  (void)lock;
  if (holder.engine_ != this) return;
  holder.engine_ = nullptr;
  holder.crowded_ = false;
  holder.refused_ = holder.queues_ = holder.alone_ = false;
  holder.contended_ = holder.contended_ && to_try_again;
  std::erase(inside_, &holder);
  open_or_close(holder);
  changed();
}

void Engine::open_or_close(PinHolder& holder) {
  const bool closes = holder.queues_ || holder.alone_;
  if (std::exchange(holder.closes_, closes) == closes) return;
  closed_ += closes ? 1 : -1;
  if (closed_ == 0) changed();
}

void Engine::in_child(EngineLock& lock) {
  (void)lock;
  inside_.clear();
  waiting_.clear();
  closed_ = 0;
  in_transit_ = paused_ = 0;
  sleepers_ = 0;
  (void)moved_.release();
  moved_ = std::make_unique<std::condition_variable>();
}

}  // namespace lms
