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
  planned = true;
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

bool same_beginning(const StepShape& a, const StepShape& b, std::size_t count) {
  if (a.operators.size() < count || b.operators.size() < count) return false;
  const auto bytes = [](const StepShape& shape, BlockUid id) {
    return shape.trace.blocks[static_cast<std::size_t>(id)].bytes;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const auto& left = a.operators[i];
    const auto& right = b.operators[i];
    const bool alike =
        left.key == right.key &&
        std::ranges::equal(left.touches, right.touches,
                           [&](const auto& x, const auto& y) {
                             return x.writes == y.writes && bytes(a, x.block) == bytes(b, y.block);
                           }) &&
        std::ranges::equal(left.allocations, right.allocations, [](const auto& x, const auto& y) {
          return x.bytes == y.bytes && x.inside == y.inside;
        });
    if (!alike) return false;
  }
  return true;
}

namespace {

/// The first uses and allocations of operator `i`, which may not have ended yet.
bool same_start_of_operator(const StepShape& a, const StepShape& b, std::size_t i,
                            std::size_t touches, std::size_t allocations) {
  const auto& left = a.operators[i];
  const auto& right = b.operators[i];
  if (right.touches.size() < touches || right.allocations.size() < allocations) return false;
  const auto bytes = [](const StepShape& shape, BlockUid id) {
    return shape.trace.blocks[static_cast<std::size_t>(id)].bytes;
  };
  for (std::size_t k = 0; k < touches; ++k) {
    if (bytes(a, left.touches[k].block) != bytes(b, right.touches[k].block)) return false;
  }
  for (std::size_t k = 0; k < allocations; ++k) {
    if (left.allocations[k].bytes != right.allocations[k].bytes) return false;
  }
  return true;
}

}  // namespace

bool same_step(const StepShape& a, const StepShape& b) {
  return a.operators.size() == b.operators.size() && same_beginning(a, b, a.operators.size());
}

Walk::Walk(const Script& script) : script_(&script) {
  bound_.resize(script.shape.trace.blocks.size());
  home_.assign(bound_.size(), kNoAddress);
  // Weights and their like were somebody when the step was recorded, and still are.
  for (TraceBlockId id = 0; id < bound_.size(); ++id) {
    const TraceBlock& block = script.shape.trace.blocks[id];
    if (!block.born_in_step && block.carried_from == kNoBlock && id < script.shape.uids.size()) {
      bind(id, script.shape.uids[id], nullptr);
    }
  }
  start_step();
}

void Walk::start_step() {
  position_ = touches_ = allocations_ = 0;
  inside_ = false;
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
    if (!blocks[id].born_in_step && blocks[id].carried_from == kNoBlock) continue;
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

Walk::Names Walk::take_names() { return std::exchange(names_, std::nullopt).value_or(Names{}); }

bool Walk::differs(std::string why) {
  why_ = "operator " + std::to_string(position_) + " of " + std::to_string(script_->size()) + " (" +
         script_->shape.trace.operators[position_].name + ") " + std::move(why);
  return false;
}

bool Walk::begin(OperatorKey key) {
  const auto& op = script_->shape.operators[position_];
  if (op.key != key) return differs("is another one");
  touches_ = 0;
  // What the plan has before the operator, the operator must not wait for within.
  inside_ = true;
  return true;
}

bool Walk::touch(BlockUid uid, Bytes bytes, bool writes, void* block) {
  if (!inside_) return true;  // an access from outside
  const auto& op = script_->shape.operators[position_];
  // What an operator makes for itself alone is no block of the trace.
  if (std::ranges::find(temporaries_, uid) != temporaries_.end()) return true;
  if (touches_ >= op.touches.size()) return differs("uses more tensors");
  const auto& expected = op.touches[touches_];
  const auto id = static_cast<TraceBlockId>(expected.block);
  if (script_->shape.trace.blocks[id].bytes != bytes) {
    return differs("has a tensor of another size");
  }
  if (expected.writes != writes) return differs("writes another tensor");
  Bound& bound = bound_[id];
  if (bound.uid == 0) {
    if (ids_.contains(uid)) return differs("uses another tensor");
    bind(id, uid, block);
  } else if (bound.uid != uid) {
    return differs("uses another tensor");
  }
  bound.block = block;
  ++touches_;
  return true;
}

bool Walk::alloc(BlockUid uid, Bytes bytes, Bytes* address) {
  const auto& op = script_->shape.operators[position_];
  if (allocations_ >= op.allocations.size()) return differs("takes more memory");
  const auto& expected = op.allocations[allocations_];
  if (expected.bytes != bytes) return differs("takes memory of another size");
  *address = kNoAddress;
  if (!script_->placement.allocations.empty()) {
    *address = script_->placement.allocations[position_][allocations_];
  }
  if (expected.block != kNoBlock) {
    const auto id = static_cast<TraceBlockId>(expected.block);
    bind(id, uid, nullptr);
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
    temporaries_.push_back(uid);
  }
  ++allocations_;
  return true;
}

void Walk::release(BlockUid uid) {
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
  while (allocations_ < allocations.size() && !allocations[allocations_].inside) ++allocations_;
}

bool Walk::end() {
  inside_ = false;
  temporaries_.clear();
  touches_ = allocations_ = 0;
  if (++position_ < script_->size()) return false;
  start_step();
  return true;
}

Bytes Walk::home(BlockUid uid) const {
  const auto found = ids_.find(uid);
  return found == ids_.end() ? kNoAddress : home_[found->second];
}

std::optional<Walk> Walk::change_to(const Script& other) const {
  if (&other == script_ || other.size() <= position_ || position_ >= script_->size()) {
    return std::nullopt;
  }
  if (!same_beginning(script_->shape, other.shape, position_)) return std::nullopt;
  if (!same_start_of_operator(script_->shape, other.shape, position_, touches_, allocations_)) {
    return std::nullopt;
  }
  Walk walk(other);
  const auto adopt = [&](BlockUid mine, BlockUid theirs) {
    const Bound& who = bound_[static_cast<std::size_t>(mine)];
    if (who.uid != 0) walk.bind(static_cast<TraceBlockId>(theirs), who.uid, who.block);
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
  walk.position_ = position_;
  walk.temporaries_ = temporaries_;
  walk.touches_ = touches_;
  walk.allocations_ = allocations_;
  walk.inside_ = inside_;
  return walk;
}

}  // namespace lms
