#include "pilot/script.h"

#include <algorithm>

#include "plan/producers.h"

namespace lms {

void Script::finish() {
  starts.assign(size() + 2, 0);
  std::size_t next = 0;
  for (std::size_t i = 0; i <= size() + 1; ++i) {
    while (next < plan.directives.size() && plan.directives[next].before < i) ++next;
    starts[i] = next;
  }
  find_recorded();
  leaves_between.assign(shape.trace.blocks.size(), false);
  for (const Directive& directive : plan.directives) {
    const bool out = directive.action == Action::kFinishOut || directive.action == Action::kDrop;
    if (out && turns && turns->between(directive.block, directive.before)) {
      leaves_between[directive.block] = true;
    }
  }
  planned = true;
}

void Script::take_standing(const Script& followed) {
  only_read = followed.only_read;
  ended_early = followed.ended_early;
  patience = followed.patience;
  shunned_until = followed.shunned_until;
  suspected = followed.suspected;
  left = followed.left;
  has_parts = followed.has_parts;
  is_part = followed.is_part;
  lengths = followed.lengths;
  refined = followed.refined;
}

void Script::find_recorded() {
  const Trace& trace = shape.trace;
  recorded.assign(size(), false);
  ghosts.assign(trace.blocks.size(), false);
  std::vector<std::size_t> death(trace.blocks.size(), size());
  for (std::size_t i = 0; i < size(); ++i) {
    for (const TraceBlockId block : trace.operators[i].frees) death[block] = i;
  }
  const Producers producers(trace);
  std::vector<TraceBlockId> wanted;
  for (const Directive& directive : plan.directives) {
    const TraceBlockId block = directive.block;
    if (directive.action == Action::kRematerialise && death[block] < directive.before) {
      ghosts[block] = true;
    }
    // Also what is dropped and never needed: somebody might need it after all.
    if (directive.action == Action::kDrop) wanted.push_back(block);
  }
  std::vector<bool> seen(trace.blocks.size(), false);
  while (!wanted.empty()) {
    const TraceBlockId block = wanted.back();
    wanted.pop_back();
    if (seen[block]) continue;
    seen[block] = true;
    for (const std::size_t maker : producers.at(block, size())) {
      recorded[maker] = true;
      for (const TraceBlockId input : trace.operators[maker].reads) {
        // It may be gone when the block is computed again.
        if (trace.blocks[input].born_in_step && death[input] < death[block]) {
          wanted.push_back(input);
        }
      }
    }
  }
}

namespace {

Bytes bytes_of(const StepShape& shape, BlockUid id) {
  return shape.trace.blocks[static_cast<std::size_t>(id)].bytes;
}

/// same_beginning(), perhaps whatever the sizes are.
bool begin_alike(const StepShape& a, const StepShape& b, std::size_t count, bool sizes) {
  if (a.operators.size() < count || b.operators.size() < count) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& left = a.operators[i];
    const auto& right = b.operators[i];
    const auto same_touch = [&](const auto& x, const auto& y) {
      return x.writes == y.writes && (!sizes || bytes_of(a, x.block) == bytes_of(b, y.block));
    };
    const auto same_allocation = [&](const auto& x, const auto& y) {
      return x.inside == y.inside && (!sizes || x.bytes == y.bytes);
    };
    const bool alike = left.key == right.key &&
                       std::ranges::equal(left.touches, right.touches, same_touch) &&
                       std::ranges::equal(left.allocations, right.allocations, same_allocation);
    if (!alike) return false;
  }
  return true;
}

/// The first uses and allocations of operator `i`, which may not have ended yet.
bool begin_operator_alike(const StepShape& a, const StepShape& b, std::size_t i,
                          std::size_t touches, std::size_t allocations, bool sizes) {
  const auto& left = a.operators[i];
  const auto& right = b.operators[i];
  if (right.touches.size() < touches || right.allocations.size() < allocations) return false;
  for (std::size_t k = 0; sizes && k < touches; ++k) {
    if (bytes_of(a, left.touches[k].block) != bytes_of(b, right.touches[k].block)) return false;
  }
  for (std::size_t k = 0; sizes && k < allocations; ++k) {
    if (left.allocations[k].bytes != right.allocations[k].bytes) return false;
  }
  return true;
}

}  // namespace

bool same_beginning(const StepShape& a, const StepShape& b, std::size_t count) {
  return begin_alike(a, b, count, /*sizes=*/true);
}

bool same_step(const StepShape& a, const StepShape& b) {
  return a.operators.size() == b.operators.size() && same_beginning(a, b, a.operators.size());
}

bool same_blocks(const StepShape& a, const StepShape& b) {
  const auto alike = [](const TraceBlock& x, const TraceBlock& y) {
    // A plan counts nothing for what cannot move.
    return (x.bytes == y.bytes || !x.movable) && x.movable == y.movable;
  };
  return same_form(a, b) && same_allocations(a, b) &&
         std::ranges::equal(a.trace.blocks, b.trace.blocks, alike);
}

bool of_several_sizes(const std::vector<std::shared_ptr<Script>>& scripts, const Script& script) {
  // The same step of another model is of the same form, in the same sizes.
  return std::ranges::any_of(scripts, [&](const auto& one) {
    return one->form == script.form && one->needed != script.needed;
  });
}

Walk::Walk(const Script& script) : script_(&script) {
  bound_.resize(script.shape.trace.blocks.size());
  home_.assign(bound_.size(), kNoAddress);
  met_.assign(bound_.size(), 0);
  // Weights and their like were somebody when the step was recorded, and still are.
  for (TraceBlockId id = 0; id < bound_.size(); ++id) {
    const TraceBlock& block = script.shape.trace.blocks[id];
    if (script.turns && script.turns->turns(id)) continue;
    if (block.lasts() && id < script.shape.uids.size()) {
      bind(id, script.shape.uids[id], nullptr);
    }
  }
  start_step();
}

void Walk::start_step() {
  position_ = touches_ = allocations_ = allocated_ = 0;
  stand_ins_.clear();
  inside_ = jumped_ = false;
  left_out_ = 0;
  allow(Sizes::kEqual);
  ++step_;
  served_.clear();
  ghosts_.clear();
  const auto& blocks = script_->shape.trace.blocks;
  struct Carried {
    TraceBlockId id;
    Bound who;
    Bytes home;
  };
  std::vector<Carried> carried;
  for (TraceBlockId id = 0; id < blocks.size(); ++id) {
    if (blocks[id].carried_from == kNoBlock) continue;
    const auto from = static_cast<std::size_t>(blocks[id].carried_from);
    carried.push_back({id, bound_[from], home_[from]});
  }
  for (TraceBlockId id = 0; id < blocks.size(); ++id) {
    if (blocks[id].lasts()) continue;
    ids_.erase(bound_[id].uid);
    bound_[id] = {};
  }
  std::ranges::fill(home_, kNoAddress);
  for (const auto& [id, address] : script_->placement.at_start) home_[id] = address;
  for (const auto& [id, who, home] : carried) {
    if (who.uid == 0) continue;
    bind(id, who.uid, who.block);
    if (home != kNoAddress) home_[id] = home;
  }
}

void Walk::bind(TraceBlockId id, BlockUid uid, void* block) {
  bound_[id] = {uid, block};
  ids_[uid] = id;
  // Of one that is carried into the next step, the name in the step that made it is kept.
  if (names_) names_->try_emplace(uid, id);
}

void Walk::unbind(TraceBlockId id) {
  if (bound_[id].uid == 0) return;
  ids_.erase(bound_[id].uid);
  bound_[id] = {};
}

void Walk::expect(TraceBlockId id, BlockUid uid, void* block) {
  met_[id] = 0;  // whoever has been met there has served
  if (bound_[id].uid == uid) return;
  unbind(id);
  if (uid != 0 && !ids_.contains(uid)) bind(id, uid, block);
}

/// Another block than the one that is bound there, if there is one, serves at this place. False if
/// that cannot be.
bool Walk::serve(TraceBlockId id, BlockUid uid, void* block) {
  const auto elsewhere = ids_.find(uid);
  if (bound_[id].uid == 0 && elsewhere == ids_.end()) {
    bind(id, uid, block);
    return true;
  }
  const auto* turns = script_->turns.get();
  if (turns == nullptr || !turns->may_turn(id) || met(id)) return false;
  if (elsewhere == ids_.end()) {
    unbind(id);
    bind(id, uid, block);
    return true;
  }
  // It serves elsewhere, or did in the step before.
  const TraceBlockId other = elsewhere->second;
  if (!turns->may_turn(other) || met(other)) return false;
  const Bound old = bound_[id];
  unbind(other);
  unbind(id);
  bind(id, uid, block);
  // What nobody uses changes places with what nobody uses any more.
  if (old.uid != 0 && turns->idle(other)) bind(other, old.uid, old.block);
  return true;
}

BlockUid Walk::served(TraceBlockId id) const {
  const auto now = std::ranges::find(served_, id, &std::pair<TraceBlockId, BlockUid>::first);
  return now != served_.end() ? now->second : script_->turns->last(id);
}

void Walk::meet(TraceBlockId id) {
  if (met(id)) return;
  met_[id] = step_;
  if (script_->turns && script_->turns->may_turn(id)) served_.emplace_back(id, bound_[id].uid);
}

Walk::Names Walk::take_names() { return std::exchange(names_, std::nullopt).value_or(Names{}); }

bool Walk::differs(std::string why) {
  why_ = "operator " + std::to_string(position_) + " of " + std::to_string(script_->size()) + " (" +
         script_->shape.trace.operators[position_].name + ") " + std::move(why);
  return false;
}

bool Walk::begin(OperatorKey key) {
  const auto& op = script_->shape.operators[position_];
  wrong_size_.reset();
  if (op.key != key) return differs("is another one");
  touches_ = 0;
  // What the plan has before the operator, the operator must not wait for within.
  inside_ = true;
  return true;
}

bool Walk::touch(BlockUid uid, Bytes bytes, bool writes, void* block) {
  if (!inside_) return true;  // an access from outside
  wrong_size_.reset();
  const auto& op = script_->shape.operators[position_];
  // What an operator makes for itself alone is no block of the trace.
  if (is_temporary(uid)) return true;
  const bool equal = sizes_ == Sizes::kEqual;
  const auto place = equal ? std::optional(touches_) : touch_of(uid, bytes, writes);
  if (place == kNowhere) return true;
  const std::size_t now = place.value_or(touches_);
  const auto fails = [&](const char* why) {
    const auto elsewhere = equal ? touch_of(uid, bytes, writes) : std::nullopt;
    return varies_here(why, elsewhere == touches_ ? std::nullopt : elsewhere);
  };
  if (now >= op.touches.size()) return fails("uses more tensors");
  const auto& expected = op.touches[now];
  const auto id = static_cast<TraceBlockId>(expected.block);
  const TraceBlock& known = script_->shape.trace.blocks[id];
  // What stays is left out of the room, and of the trace: whoever it is, it has its size.
  const bool stays = known.stays();
  if (expected.writes != writes) return fails("writes another tensor");
  if ((seen_ ? seen_->blocks[id] : known.bytes) != bytes && !stays &&
      !(is_elastic(id) && may_have(bytes, known.bytes, Of::kUses, now))) {
    return differs("has a tensor of another size");
  }
  if (bound_[id].uid != uid && !serve(id, uid, block) && !serve_after_jump(id, uid, block)) {
    return fails("uses another tensor");
  }
  bound_[id].block = block;
  if (!stays) see(id, bytes);
  meet(id);
  touches_ = now + 1;
  return true;
}

bool Walk::alloc(BlockUid uid, Bytes bytes, Bytes* address) {
  wrong_size_.reset();
  const auto& op = script_->shape.operators[position_];
  *address = kNoAddress;
  const bool equal = sizes_ == Sizes::kEqual;
  const auto place = equal ? std::optional(allocations_) : allocation_of(bytes);
  if (place == kNowhere) {
    const Bytes beyond = is_marginal(bytes) ? beyond_ : beyond_ + bytes;
    if (beyond > beyond_ && !may_have(beyond, op.beyond, Of::kBeyond, 0)) {
      // In another size of the step it is perhaps what is marginal here.
      const std::size_t next = allocations_;
      if (next < op.allocations.size()) wrong_size_ = {bytes, Of::kAllocations, next};
      return differs("takes more memory");
    }
    beyond_ = beyond;
    temporaries_.push_back({uid, bytes, kNowhere});
    return true;
  }
  const std::size_t now = place.value_or(allocations_);
  if (now >= op.allocations.size()) {
    return varies_here("takes more memory", equal ? allocation_of(bytes) : std::nullopt);
  }
  const auto& expected = op.allocations[now];
  if (expected.bytes != bytes && !may_have(bytes, expected.bytes, Of::kAllocations, now)) {
    return differs("takes memory of another size");
  }
  if (seen_) {
    note_unheard(allocations_, now);
    Bytes& seen = seen_->allocations[allocated_ + now];
    if (expected.block == kNoBlock) {
      excess_ += std::max<Bytes>(bytes - expected.bytes, 0);
      excess_ -= std::max<Bytes>(seen - expected.bytes, 0);
    }
    seen = bytes;
  }
  if (!script_->placement.allocations.empty() && bytes <= expected.bytes) {
    *address = script_->placement.allocations[position_][now];
  }
  if (expected.block != kNoBlock) {
    const auto id = static_cast<TraceBlockId>(expected.block);
    bind(id, uid, nullptr);
    see(id, bytes);
    // Two that take turns: the old one is still at one of two places.
    const auto& turns = script_->placement.taking_turns;
    const auto partner = std::ranges::find_if(turns, [&](TraceBlockId old) {
      return script_->shape.trace.blocks[old].carried_from == expected.block;
    });
    if (partner != turns.end() && home_[*partner] == *address) {
      for (const auto& [old, place] : script_->placement.at_start) {
        if (old == *partner) *address = place;
      }
    }
    home_[id] = *address;
  } else {
    temporaries_.push_back({uid, bytes, now});
  }
  allocations_ = now + 1;
  return true;
}

void Walk::release(BlockUid uid) {
  for (Temporary& one : temporaries_) one.alive = one.alive && one.uid != uid;
  const auto found = ids_.find(uid);
  if (found == ids_.end()) return;
  const TraceBlockId id = found->second;
  if (id < script_->ghosts.size() && script_->ghosts[id]) ghosts_[id] = uid;
  bound_[id] = {};
  ids_.erase(found);
}

void Walk::restart() {
  const auto& allocations = script_->shape.operators[position_].allocations;
  touches_ = allocations_ = 0;
  temporaries_.clear();
  beyond_ = 0;
  while (allocations_ < allocations.size() && !allocations[allocations_].inside) ++allocations_;
}

bool Walk::end() {
  inside_ = false;
  if (seen_) {
    note_unheard(allocations_, script_->shape.operators[position_].allocations.size());
    settle_results();
    settle_beyond();
  }
  temporaries_.clear();
  beyond_ = 0;
  touches_ = allocations_ = 0;
  allocated_ += script_->shape.operators[position_].allocations.size();
  if (++position_ < script_->size()) return false;
  // Only a step that was this one to its end tells who serves.
  if (!jumped_) {
    for (const auto& [id, uid] : served_) script_->turns->serves(id, uid);
  }
  start_step();
  return true;
}

Bytes Walk::home(BlockUid uid) const {
  const auto found = ids_.find(uid);
  return found == ids_.end() || !fits(found->second) ? kNoAddress : home_[found->second];
}

std::optional<Walk> Walk::change_to(const Script& other) const {
  if (&other == script_ || other.size() <= position_ || position_ >= script_->size()) {
    return std::nullopt;
  }
  const bool equal = sizes_ == Sizes::kEqual;
  if (jumped_ || !begin_alike(script_->shape, other.shape, position_, equal) ||
      !begin_operator_alike(script_->shape, other.shape, position_, touches_, allocations_,
                            equal)) {
    return std::nullopt;
  }
  Walk walk(other);
  if (!equal) walk.allow(Sizes::kAny);
  bool same = true;
  const auto adopt = [&](BlockUid mine, BlockUid theirs) {
    const Bound& who = bound_[static_cast<std::size_t>(mine)];
    if (who.uid == 0) return;
    const auto id = static_cast<TraceBlockId>(theirs);
    // Somebody else may have served there when that walk began. But no weight is another's.
    const auto elsewhere = walk.ids_.find(who.uid);
    if (elsewhere != walk.ids_.end() && elsewhere->second != id) {
      same = same && (walk.is_elastic(id) || walk.is_elastic(elsewhere->second));
      walk.unbind(elsewhere->second);
    }
    if (walk.bound_[id].uid != who.uid) walk.unbind(id);
    walk.bind(id, who.uid, who.block);
    walk.meet(id);
    if (!equal) walk.see(id, seen_->blocks[static_cast<std::size_t>(mine)]);
  };
  for (std::size_t i = 0; i <= position_; ++i) {
    const auto& from = script_->shape.operators[i];
    const auto& to = other.shape.operators[i];
    const bool whole = i < position_;
    for (std::size_t k = 0; k < (whole ? from.touches.size() : touches_); ++k) {
      adopt(from.touches[k].block, to.touches[k].block);
    }
    for (std::size_t k = 0; k < (whole ? from.allocations.size() : allocations_); ++k) {
      if (from.allocations[k].block == kNoBlock || to.allocations[k].block == kNoBlock) continue;
      adopt(static_cast<BlockUid>(from.allocations[k].block),
            static_cast<BlockUid>(to.allocations[k].block));
    }
  }
  if (!same) return std::nullopt;
  walk.position_ = position_;
  walk.temporaries_ = temporaries_;
  walk.beyond_ = beyond_;
  walk.touches_ = touches_;
  walk.allocations_ = allocations_;
  for (std::size_t i = 0; i < position_; ++i) {
    walk.allocated_ += other.shape.operators[i].allocations.size();
  }
  if (!equal) {
    std::copy_n(seen_->allocations.begin(), allocated_ + allocations_,
                walk.seen_->allocations.begin());
    std::copy_n(seen_->beyond.begin(), position_, walk.seen_->beyond.begin());
  }
  walk.inside_ = inside_;
  return walk;
}

}  // namespace lms
