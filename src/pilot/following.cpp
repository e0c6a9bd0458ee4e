// What a plan has before an operator, or what is foretold without one, carried out.

#include <algorithm>
#include <ranges>
#include <string>
#include <unordered_set>
#include <utility>

#include "pilot/pilot.h"

namespace lms {

void Pilot::collect_orders(std::size_t moment, std::vector<Order>& orders) {
  const Plan& plan = script_->plan;
  const Turns& turns = *script_->turns;
  for (std::size_t i = script_->starts[moment]; i < script_->starts[moment + 1]; ++i) {
    const Directive& directive = plan.directives[i];
    const Walk::Bound& who = walk_->bound(directive.block);
    const bool out =
        directive.action != Action::kStartIn && directive.action != Action::kRematerialise;
    // Who has served there leaves by itself, and who serves next is to stay: see collect_turns().
    if (out && turns.turns(directive.block) && turns.between(directive.block, moment)) continue;
    if (directive.action == Action::kStartIn && !script_->placement.arrivals.empty()) {
      walk_->set_home(directive.block, script_->placement.arrivals[i]);
    }
    const auto known = blocks_.find(who.uid);
    Block* const block = who.uid == 0 || known == blocks_.end() ? nullptr : known->second;
    switch (directive.action) {
      case Action::kStartOut:
        if (block != nullptr) orders.push_back({Task::kClean, block, who.uid});
        break;
      case Action::kFinishOut:
        if (block != nullptr) orders.push_back({Task::kEvict, block, who.uid});
        break;
      case Action::kStartIn:
        if (block != nullptr) orders.push_back({Task::kFetch, block, who.uid});
        break;
      case Action::kDrop:
      case Action::kRematerialise: {
        const bool drops = directive.action == Action::kDrop;
        const BlockUid uid = block != nullptr ? who.uid : walk_->ghost(directive.block);
        if (uid == 0) break;
        if (!drops) walk_->set_home(directive.block, kNoAddress);
        orders.push_back({drops ? Task::kDrop : Task::kRemake, block, uid});
        // What is larger than planned would not fit there.
        const bool fits = walk_->sizes() != Walk::Sizes::kAny;
        if (!drops && fits && !script_->placement.remakes.empty()) {
          orders.back().addresses = &script_->placement.remakes[i];
        }
        break;
      }
      case Action::kKeep:
        break;
    }
  }
}

/// What the plan had before the operators that have been left out, in sum.
void Pilot::collect_left_out(std::vector<Order>& orders) {
  const auto from = std::exchange(left_out_from_, std::nullopt);
  if (!from) return;
  std::vector<Order> all;
  for (std::size_t moment = *from; moment < walk_->position(); ++moment) {
    collect_orders(moment, all);
    collect_turns(moment, all);
  }
  // Of what leaves, comes back and leaves, only the last counts.
  std::unordered_set<BlockUid> met;
  std::vector<Order> last;
  for (const Order& order : all | std::views::reverse) {
    if (met.insert(order.uid).second) last.push_back(order);
  }
  orders.insert(orders.end(), last.rbegin(), last.rend());
}

/// At places where other blocks take their turn: who has served leaves, since it is not needed
/// before all others have been, and who is expected next comes, unless the plan has a later moment
/// for that.
void Pilot::collect_turns(std::size_t moment, std::vector<Order>& orders) {
  const Turns& turns = *script_->turns;
  if (turns.all().empty()) return;
  const auto alive = [&](BlockUid uid) -> Block* {
    const auto known = blocks_.find(uid);
    return known == blocks_.end() ? nullptr : known->second;
  };
  for (const TraceBlockId place : turns.done(moment)) {
    const BlockUid uid = walk_->bound(place).uid;
    Block* const block = alive(uid);
    BlockUid next = turns.next(place, uid);
    Block* const successor = alive(next);
    if (successor == nullptr) next = 0;
    const bool ended = moment == script_->size();
    const BlockUid last = ended ? turns.last_but_one(place) : turns.last(place);
    // What lives for one step only is about to die.
    const bool others_stay = last != uid && alive(last) != nullptr;
    const bool leaves = next == uid ? script_->leaves_between[place]
                                    : next != 0 || others_stay || script_->leaves_between[place];
    constexpr std::size_t kFew = 64;  // of many, some other model has come
    const bool elsewhere =
        turns.all().size() <= kFew && std::ranges::any_of(turns.all(), [&](TraceBlockId other) {
          return other != place && turns.next(other, walk_->served(other)) == uid;
        });
    if (block != nullptr && leaves && !elsewhere) orders.push_back({Task::kEvict, block, uid});
    if (!leaves || next == uid) continue;
    walk_->expect(place, next, successor);
    if (next != 0 && !script_->leaves_between[place])
      orders.push_back({Task::kFetch, successor, next});
  }
}

/// What the step that has ended has left elsewhere.
void Pilot::collect_moves(std::vector<Order>& orders) {
  const auto& at_start = script_->placement.at_start;
  for (const TraceBlockId id : script_->placement.moved) {
    const auto found =
        std::ranges::lower_bound(at_start, id, {}, &std::pair<TraceBlockId, Bytes>::first);
    walk_->set_home(id, found->second);
    const Walk::Bound& who = walk_->bound(id);
    const auto known = blocks_.find(who.uid);
    if (known != blocks_.end()) orders.push_back({Task::kRelocate, known->second, who.uid});
  }
}

/// What lies on the device elsewhere than the plan wants it when a step begins (since another plan
/// has put it there) may be in the way of others in every step, and if it is always in use when
/// they come, nobody ever moves it. All of it leaves before the first comes back. Where all has
/// room at once it may lie anywhere, and what a larger step has left below comes back ahead of its
/// use.
void Pilot::collect_strays(std::vector<Order>& orders) {
  constexpr int kMostPatience = 64;
  if (!script_->addresses && script_->plan.directives.empty()) {
    if (followed_ > 0) return;
    const auto& blocks = script_->shape.trace.blocks;
    for (TraceBlockId id = 0; id < blocks.size(); ++id) {
      const Walk::Bound& who = walk_->bound(id);
      const auto known = blocks_.find(who.uid);
      if (blocks[id].born_in_step || who.uid == 0 || known == blocks_.end()) continue;
      orders.push_back({Task::kFetch, known->second, who.uid});
    }
    return;
  }
  const std::int64_t misplaced = device_.misplaced();
  const bool new_plan = followed_ == 0;
  if (!new_plan && (misplaced == misplaced_ || followed_ < settle_after_)) return;
  misplaced_ = misplaced;
  // What does not help at once is not tried in every step.
  settle_after_ = std::min(2 * followed_ + 1, followed_ + kMostPatience);
  if (!new_plan) see_to_the_way();
  const auto& turns = script_->placement.taking_turns;
  std::vector<Order> returning;
  for (const auto& [id, address] : script_->placement.at_start) {
    if (std::ranges::find(turns, id) != turns.end()) continue;
    const Walk::Bound& who = walk_->bound(id);
    const auto known = blocks_.find(who.uid);
    if (who.uid == 0 || known == blocks_.end()) continue;
    orders.push_back({Task::kSettle, known->second, who.uid});
    returning.push_back({Task::kFetch, known->second, who.uid});
  }
  orders.insert(orders.end(), returning.begin(), returning.end());
}

/// Something has not got its place.
void Pilot::see_to_the_way() {
  if (!script_->addresses || script_->hopeless || stats_.steps < clear_from_) return;
  if (!device_.obstructed(script_->placement.bytes)) return;
  // Whoever takes something anew in each step is not run after.
  clear_from_ = stats_.steps + clear_patience_;
  clear_patience_ *= 2;
  way_due_ = true;
  script_->refined = script_->measured = false;  // planned again, in what is left of the room
}

void Pilot::carry_out(const std::vector<Order>& orders, HostTimes* host) {
  const ShownStage shown(device_, PilotDevice::Stage::kOrders);
  EngineLock lock = engine_.lock();
  for (const Order& order : orders) {
    const auto begun = host != nullptr ? HostClock::Clock::now() : HostClock::Clock::time_point();
    if (order.block == nullptr) {
      lock.unlock();
      carry_out_on_ghost(order);
      lock.lock();
    } else if (engine_.knows(lock, order.block, order.uid)) {
      // Otherwise everything has changed while the lock was let go.
      try {
        carry_out(lock, order);
      } catch (const TierFull&) {
        // Whoever needs the memory hears of it.
      }
    }
    if (host == nullptr) continue;
    times_of(order.task, *host).push_back(HostClock::since(begun));
  }
}

std::vector<double>& Pilot::times_of(Task task, HostTimes& host) {
  switch (task) {
    case Task::kClean:
    case Task::kFetch:
    case Task::kRelocate:
      return host.copies_ms;
    case Task::kRemake:
      return host.remakes_ms;
    case Task::kEvict:
    case Task::kSettle:
    case Task::kDrop:
      break;
  }
  return host.leaves_ms;
}

void Pilot::carry_out(EngineLock& lock, const Order& order) {
  switch (order.task) {
    case Task::kClean:
      (void)engine_.clean(lock, *order.block);
      break;
    case Task::kEvict:
      (void)engine_.evict(lock, *order.block);
      break;
    case Task::kFetch:
      (void)engine_.fetch(lock, *order.block);
      break;
    case Task::kSettle:
      if (!device_.at_home(*order.block)) (void)engine_.evict(lock, *order.block);
      break;
    case Task::kRelocate:
      (void)engine_.relocate(lock, *order.block);
      break;
    case Task::kDrop:
      drop_or_evict(lock, order);
      break;
    case Task::kRemake:
      remake(lock, order);
      break;
  }
}

void Pilot::find_wanted(std::vector<Ahead::Wanted>& wanted) {
  wanted.clear();
  outlook_.collect(wanted);
  for (Ahead::Wanted& one : wanted) {
    const auto known = blocks_.find(one.uid);
    one.block = known == blocks_.end() ? nullptr : known->second;
  }
}

void Pilot::look_ahead(bool look, bool foresees, const std::vector<Ahead::Wanted>& wanted) {
  EngineLock lock = engine_.lock();
  if (look) {
    const Guard guard(mutex_);
    outlook_.look(engine_.stats(lock), engine_.options(lock).limit);
  }
  if (!foresees) return;
  try {
    const auto make_room = [this](EngineLock& held, Bytes bytes, const auto& spare) {
      return device_.make_room_ahead(held, engine_, bytes, spare);
    };
    outlook_.ahead().act(lock, outlook_.now(), wanted, engine_.options(lock).limit, make_room);
  } catch (const TierFull&) {
    // Whoever needs the memory hears of it.
  }
}

void Pilot::drop_or_evict(EngineLock& lock, const Order& order) {
  if (engine_.drop(lock, *order.block)) return;
  if (!engine_.knows(lock, order.block, order.uid) || !engine_.may_evict(lock, *order.block))
    return;
  // How it came about has not been recorded: its memory is wanted all the same.
  {
    const Guard guard(mutex_);
    ++stats_.refused;
  }
  (void)engine_.evict(lock, *order.block);
}

void Pilot::note_failure(const std::exception& error) {
  // Whoever needs the block computes it then, or says why that cannot be.
  const Guard guard(mutex_);
  if (stats_.failed++ > 0 || said_++ >= kMostLines) return;
  std::string why = error.what();
  device_.say("a tensor could not be computed again when it was planned: " +
              why.substr(0, why.find('\n')));
}

void Pilot::remake(EngineLock& lock, const Order& order) {
  if (order.block->state == BlockState::kAbsent) {
    (void)engine_.fetch(lock, *order.block);
    return;
  }
  const auto note = [&](const std::vector<Bytes>* addresses) {
    const Guard guard(mutex_);
    if (addresses != nullptr) {
      remaking_[order.uid] = addresses;
    } else {
      remaking_.erase(order.uid);
    }
  };
  if (order.addresses != nullptr) note(order.addresses);
  try {
    (void)engine_.rematerialise(lock, *order.block);
  } catch (const std::exception& error) {
    note_failure(error);
  }
  if (order.addresses != nullptr) note(nullptr);
}

void Pilot::carry_out_on_ghost(const Order& order) {
  static const std::vector<Bytes> kAnywhere;
  try {
    if (order.task == Task::kDrop) {
      device_.drop_ghost(order.uid);
    } else {
      device_.remake_ghost(order.uid, order.addresses != nullptr ? *order.addresses : kAnywhere);
    }
  } catch (const std::exception& error) {
    note_failure(error);
  }
}

std::vector<Bytes> Pilot::addresses_for(const Block& block) {
  if (!awake()) return {};
  const Guard guard(mutex_);
  const auto found = remaking_.find(block.uid);
  return found == remaking_.end() ? std::vector<Bytes>() : *found->second;
}

}  // namespace lms
