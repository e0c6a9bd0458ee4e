#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/node_allocator.h"
#include "engine/block.h"
#include "engine/mover.h"
#include "engine/outer_lock.h"
#include "engine/pin_holder.h"
#include "engine/policy.h"
#include "engine/stats.h"

namespace lms {

/// Proof that an engine's lock is held. Blocks erased while it is held are destroyed after it is
/// let go, because their destructors may call into the framework.
class EngineLock {
 public:
  explicit EngineLock(std::mutex& mutex, PinHolder* who = nullptr) : lock_(mutex), who_(who) {}
  ~EngineLock() {
    if (lock_.owns_lock()) unlock();
  }
  EngineLock(EngineLock&&) = delete;

  void unlock() {
    lock_.unlock();
    if (dead_ != nullptr) bury();
  }
  void lock() { lock_.lock(); }
  [[nodiscard]] bool owns() const { return lock_.owns_lock(); }

 private:
  friend class Engine;
  void bury() noexcept;

  std::unique_lock<std::mutex> lock_;
  PinHolder* const who_;
  Block* dead_ = nullptr;  ///< the first of those that are to be destroyed, linked by `older`
};

/// One use of a block by an operator.
struct Use {
  Block* block;
  bool writes;
};

/// The state of every block of one device, and the only place where it changes. Knows neither the
/// framework nor the device: a Mover moves, a Policy chooses.
///
/// Thread-safe. Functions that take an EngineLock expect it held and return with it held, but may
/// let it go in between (they say so); no call into the mover's page_out and page_in, or into the
/// framework's allocator, is made under it.
class Engine {
 public:
  struct Options {
    Bytes limit = 0;      ///< budget of device bytes
    bool verify = false;  ///< check every clean eviction against the copy
  };

  /// `meter` null: the engine counts its own blocks against the limit. Both must outlive it.
  Engine(Options options, Mover& mover, std::unique_ptr<Policy> policy, Meter* meter = nullptr);
  ~Engine();

  /// `who`: what is done under the lock is done on its behalf, and may wait for the operators of
  /// others; null: it waits for nobody's end.
  [[nodiscard]] EngineLock lock(PinHolder* who = nullptr) { return EngineLock(mutex_, who); }

  // Threads --------------------------------------------------------------------------------------

  /// The thread's operator is about to pin, or to allocate: from now on others that need its room
  /// wait for leave(). No effect if it is inside an engine already. Waits while another queues for
  /// room (what comes later must not take it away from him) or is alone; if it is contended, or
  /// wants to be alone where room is short, until it is alone itself. Who holds locks goes in
  /// without waiting. It must hold no pins. Lets the lock go.
  void enter(EngineLock& lock, PinHolder& holder);
  /// Its operator has ended, and has no pins. `to_try_again`: it was refused, and will enter again.
  /// No effect on who is not inside this engine. Never lets the lock go.
  void leave(EngineLock& lock, PinHolder& holder, bool to_try_again = false);
  /// Everything that may leave has left, and it does not suffice: waits until an operator of
  /// another thread has ended or let something go, and the caller may try again. False, and no more
  /// room, if there is none that ends without the caller: of several who wait for each other one is
  /// refused, if possible one that is repeatable. Until end_wait() no operator begins. Lets the
  /// lock go.
  bool wait_for_others(EngineLock& lock);
  /// Another number after anything that who waits for room may be waiting for. Needs no lock.
  [[nodiscard]] std::uint64_t changes() const noexcept {
    return changes_.load(std::memory_order_relaxed);
  }
  /// The caller has its room, or has given up.
  void end_wait(EngineLock& lock);
  /// Threads that wait for a move, or for room, on whose behalf is known.
  [[nodiscard]] std::size_t waiting(EngineLock& lock) const {
    (void)lock;
    return waiting_.size();
  }
  /// From now on a thread that waits for others lets `outer` go meanwhile (null: there is none). It
  /// must outlive the engine.
  void wait_without(EngineLock& lock, OuterLock* outer) {
    outer_ = outer;
    (void)lock;
  }
  /// In a child after fork(), where only this thread lives. No block may be moving.
  void in_child(EngineLock& lock);

  // Blocks -------------------------------------------------------------------------------------

  /// Takes a block whose bytes are on the device. It is not evicted before its first unpin.
  /// With a meter of its own the engine counts it at once; reserve() first.
  Block& add(EngineLock& lock, std::unique_ptr<Block> block);
  /// The storage is gone (or is no longer the adapter's). The block must not be used afterwards:
  /// it is erased now, or by whoever still moves or pins it.
  void remove(EngineLock& lock, Block& block);

  /// Makes all blocks resident and holds them there, as one: either all are pinned or, on an
  /// exception (OutOfMemory, TierFull), none. A block may occur several times. A use that writes
  /// makes the copy below stale. Lets the lock go while bytes move.
  void pin(EngineLock& lock, std::span<const Use> uses);
  /// Undoes one pin of each. Never lets the lock go.
  void unpin(EngineLock& lock, std::span<const Use> uses) noexcept;
  /// From now on the block stays resident until it dies; it must be pinned or resident.
  void keep(EngineLock& lock, Block& block);

  /// An outermost operator has ended (its blocks are unpinned): the policy's moment.
  void operator_ended(EngineLock& lock);

  // Blocks in pieces -----------------------------------------------------------------------------

  /// Sends the blocks below, as one, and lends them to the caller, who works on their bytes there:
  /// nobody else moves them, or sees them on the device, before give_back(). Each block once. Waits
  /// for operators that use one of them. False if one may not leave (it is kept, or in the use of
  /// somebody who does not end); then none is lent. Throws
  /// TierFull, or what computing a dropped one throws, likewise. Lets the lock go.
  bool lend(EngineLock& lock, std::span<const Use> uses);
  /// The blocks are kAbsent again. Never lets the lock go.
  void give_back(EngineLock& lock, std::span<const Use> uses) noexcept;
  /// Likewise of blocks that have only been moved below: whoever has found no room has none now.
  void give_back_as_it_was(EngineLock& lock, std::span<const Use> uses) noexcept;
  /// Takes a block that is born below, lent to the caller.
  Block& add_lent(EngineLock& lock, std::unique_ptr<Block> block);

  // Memory -------------------------------------------------------------------------------------

  /// Evicts until `bytes` more fit under the limit. False if they cannot: everything that may
  /// leave has left, and nobody else is about to let go. Throws TierFull if a lower tier is full.
  /// Lets the lock go.
  bool make_room(EngineLock& lock, Bytes bytes);
  /// make_room, and counts the bytes as used in the same moment (engines without a meter).
  bool reserve(EngineLock& lock, Bytes bytes);
  void unreserve(EngineLock& lock, Bytes bytes);
  /// Evicts blocks until at least `bytes` have left, or none may. Returns what left. Lets the lock
  /// go.
  Bytes reclaim(EngineLock& lock, Bytes bytes);
  /// Evicts one block of a size in [least, most], if there is one. Lets the lock go.
  Bytes reclaim_one(EngineLock& lock, Bytes least, Bytes most);
  /// Evicts this block if it may leave now. Lets the lock go.
  bool evict(EngineLock& lock, Block& block);
  /// Begins a copy below of a resident block, if it has none that is valid, so that evict() need
  /// not copy. No effect if it may not leave now. Throws TierFull. Lets the lock go.
  bool clean(EngineLock& lock, Block& block);
  /// Begins to bring an absent block back, before anybody needs it. No effect if it is not absent,
  /// or if it does not fit. Lets the lock go.
  bool fetch(EngineLock& lock, Block& block);
  /// Lets the bytes of a resident block go which the mover can have computed again. False if it may
  /// not leave now, or they cannot. Lets the lock go.
  bool drop(EngineLock& lock, Block& block);
  /// Where the tier below is full: drops one block that may leave, or absent ones, so that `bytes`
  /// more may fit below; if possible what takes little to be computed again. Returns the bytes that
  /// have left the device, which may be 0; nothing if nothing can be dropped. With no `bytes`
  /// absent blocks stay. Lets the lock go.
  std::optional<Bytes> give_way(EngineLock& lock, Bytes bytes);
  /// Drops absent blocks alone. False: there is none that can be computed again. Lets the lock go.
  bool make_room_below(EngineLock& lock, Bytes bytes);
  /// Has a dropped block computed again, before anybody needs it. No effect if it is not dropped.
  /// Throws whatever the mover throws; the block is still dropped then. Lets the lock go.
  bool rematerialise(EngineLock& lock, Block& block);
  /// Has every dropped block computed again; may evict others. Returns the bytes still dropped.
  /// Lets the lock go.
  Bytes rematerialise_all(EngineLock& lock);
  /// Has a block that stays on the device moved to where the mover wants it. False if it may not
  /// leave its place, or is there. Lets the lock go.
  bool relocate(EngineLock& lock, Block& block);
  /// True if the engine knows this block, which may have died.
  [[nodiscard]] bool knows(EngineLock& lock, const Block* block, std::uint64_t uid) const;
  /// True if evict() could take it now.
  [[nodiscard]] bool may_evict(EngineLock& lock, const Block& block) const;
  /// The block that the policy would have leave next, of those for which `may` is true, or null.
  [[nodiscard]] Block* next_victim(EngineLock& lock, const std::function<bool(const Block&)>& may);
  /// Every block that may leave, and what that costs (Policy::cost).
  void for_each_victim(EngineLock& lock, const std::function<void(Block&, double)>& visit);
  /// As Policy::cost().
  [[nodiscard]] double cost_of_leaving(EngineLock& lock, const Block& block) const {
    return policy_->cost(block, clock(lock));
  }
  /// Outermost operators so far.
  [[nodiscard]] std::uint64_t clock(EngineLock& lock) const {
    (void)lock;
    return static_cast<std::uint64_t>(stats_.operators);
  }
  /// Brings every absent or dropped block back, unless it does not fit: returns the bytes that are
  /// still away.
  Bytes return_all(EngineLock& lock);

  /// Gives clean copies of resident blocks back until `bytes` are free below. Returns the sum.
  Bytes drop_copies(EngineLock& lock, Bytes bytes);
  /// Erases the blocks whose storages have died unnoticed. Cost: linear in the number of blocks.
  void collect_dead(EngineLock& lock);

  /// Waits until no thread moves a block; none begins to while the lock is held. For forks.
  void settle(EngineLock& lock);

  /// While paused nothing is evicted (a graph capture is recording addresses). Counts.
  void pause(EngineLock& lock) {
    ++paused_;
    changed();
    (void)lock;
  }
  void resume(EngineLock& lock) {
    --paused_;
    changed();
    (void)lock;
  }
  [[nodiscard]] bool paused(EngineLock& lock) const {
    (void)lock;
    return paused_ > 0;
  }

  // Settings and facts -------------------------------------------------------------------------

  void set_policy(EngineLock& lock, std::unique_ptr<Policy> policy);
  void set_options(EngineLock& lock, Options options) {
    options_ = options;
    changed();
    (void)lock;
  }
  [[nodiscard]] Options options(EngineLock& lock) const {
    (void)lock;
    return options_;
  }
  [[nodiscard]] EngineStats stats(EngineLock& lock) const {
    (void)lock;
    return stats_;
  }
  void reset_peak(EngineLock& lock);
  /// Bytes on the device that cannot leave now: pinned, kept, or not yet used.
  [[nodiscard]] Bytes immovable(EngineLock& lock) const;
  void for_each(EngineLock& lock, const std::function<void(Block&)>& visit);

 private:
  bool make_room_until(EngineLock& lock, Bytes bytes, bool take);
  bool try_to_make_room(EngineLock& lock, Bytes bytes, bool take);
  void bring_in(EngineLock& lock, Block& block, bool ahead);
  /// bring_in's room under the limit, counted as used; true: the tier below is full, and the block
  /// is used where it lies. Throws OutOfMemory, and TierFull.
  bool take_room_for(EngineLock& lock, Block& block, bool ahead, bool dropped);
  /// `take` is called under the lock once the block has been computed: that takes memory of its
  /// own. False: its storage has died.
  bool compute_again(EngineLock& lock, Block& block, const std::function<void()>& take);
  void bring_in_alone(EngineLock& lock, Block& block, bool ahead);
  /// One of lend()'s. False: it may not leave. It may be back when the next has left.
  bool send_below(EngineLock& lock, Block& block);
  /// One round of them. What is absent by then is `held`, so that it is not dropped for the others.
  bool send_all_below(EngineLock& lock, std::span<const Use> uses, std::vector<Use>& held);
  /// Pins an absent block, which takes no room.
  void hold_absent(const Use& use, std::vector<Use>& held);
  /// What pin() does first.
  void compute_dropped(EngineLock& lock, std::span<const Use> uses);
  /// Returns the bytes that left the device (0: the block may not leave, or has died). Where the
  /// tier below is full the block is dropped, if it may and can be computed again; else throws
  /// TierFull.
  Bytes send_out(EngineLock& lock, Block& block, bool may_drop = true);
  /// Likewise; where the tier below is full for it, a smaller block leaves instead, or any block is
  /// dropped: where everything is to leave, no absent one.
  Bytes send_out_or_drop(EngineLock& lock, Block& block, bool everything = false);
  Bytes send_out_smaller(EngineLock& lock, Bytes size);
  Bytes drop_one(EngineLock& lock, Bytes most);
  bool drop_up_to(EngineLock& lock, Block& block, Bytes most);
  /// Drops absent blocks until one of at least `bytes` has gone, or as many altogether; those first
  /// that were used longest ago. Returns what has gone. `most`: see Mover::drop().
  Bytes drop_absent(EngineLock& lock, Bytes bytes, Bytes most);
  bool drop_absent(EngineLock& lock, Block& block, Bytes most);
  /// Lets the bytes of a block go that is kLeaving, if they can be computed again: see
  /// Mover::drop().
  bool finish_drop(EngineLock& lock, Block& block, Bytes most);
  /// What a block that nobody planned to drop may take at once when it is computed again: half of
  /// the limit leaves room for the operator that wants it.
  [[nodiscard]] Bytes unplanned() const { return options_.limit / 2; }
  /// Has a resident block's bytes moved, or copied, by `move` (without the lock) while it belongs
  /// to this thread; then, if that returned true, `note` takes note under the lock.
  bool move_beside(EngineLock& lock, Block& block, const std::function<bool()>& move,
                   const std::function<void()>& note);
  [[nodiscard]] bool may_leave(const Block& block) const;
  void end_transit(Block& block, BlockState state);
  void finish_transition(EngineLock& lock, Block& block, BlockState state);
  /// It could not leave. Nothing has changed for who waits for room: two threads that tried in turn
  /// would each see the other's vain attempt for a change, for ever.
  void come_back(EngineLock& lock, Block& block);
  void offer_if_free(Block& block);
  void erase(EngineLock& lock, Block& block);
  void release(EngineLock& lock, std::span<const Use> uses, bool used) noexcept;
  /// Lets the lock go if there is a meter.
  Bytes in_use(EngineLock& lock);

  /// Who waits may find now what it waits for.
  void changed();
  /// Who waits looks again.
  void wake();
  /// Until something changes, or for no reason. Lets go of the lock, and of the outer one.
  void wait(EngineLock& lock);
  void wait_for_move(EngineLock& lock, const Block& block);
  using Waits = PinHolder::Waits;
  void begin_wait(PinHolder& who, Waits what, const Block* block);
  void finish_wait(PinHolder& who);
  [[nodiscard]] bool stuck(const PinHolder& holder) const;
  [[nodiscard]] bool others_go_on(const PinHolder& who) const;
  [[nodiscard]] bool others_inside(const PinHolder& who) const;
  [[nodiscard]] bool short_of_room() const;
  [[nodiscard]] PinHolder* whom_to_refuse(const PinHolder& who) const;
  void refuse(PinHolder& holder);
  void open_or_close(PinHolder& holder);

  Options options_;
  Mover& mover_;
  Meter* meter_;
  std::unique_ptr<Policy> policy_;
  OuterLock* outer_ = nullptr;

  std::mutex mutex_;
  /// Something has changed that a thread may wait for. Never destroyed in a forked child.
  std::unique_ptr<std::condition_variable> moved_ = std::make_unique<std::condition_variable>();
  std::atomic<std::uint64_t> changes_{0};  ///< of that kind, so far; written under the lock
  int sleepers_ = 0;                       ///< threads that wait for it
  std::vector<PinHolder*> inside_;         ///< threads whose operators take room
  std::vector<PinHolder*> waiting_;        ///< threads that wait for a move, or for room
  std::int64_t closed_ = 0;                ///< threads for whom others do not begin
  PooledMap<Block*, std::unique_ptr<Block>> blocks_;
  std::uint64_t next_id_ = 1;
  std::int64_t in_transit_ = 0;
  Bytes uncounted_ = 0;  ///< of blocks that are being computed again, and have no room yet
  std::int64_t paused_ = 0;
  EngineStats stats_;
};

}  // namespace lms
