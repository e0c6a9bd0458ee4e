// Steps of other sizes along a script that is known.

#include <algorithm>
#include <utility>

#include "pilot/script.h"

namespace lms {
namespace {

/// What is larger than planned, altogether, may be this part of what the step needs.
constexpr Bytes kTrifle = 64;

}  // namespace

void Walk::allow(Sizes sizes) {
  sizes_ = sizes;
  if (sizes == Sizes::kEqual) {
    seen_.reset();
    excess_ = 0;
  } else if (!seen_) {
    seen_ = StepSizes::of(script_->shape);
  }
}

bool Walk::is_elastic(TraceBlockId id) const {
  const TraceBlock& block = script_->shape.trace.blocks[id];
  return block.born_in_step || block.carried_from != kNoBlock ||
         (script_->turns && script_->turns->may_turn(id));
}

/// Which of the operator's uses this is, or as many as there are; kNowhere: one of a block that is
/// too small to be seen in the script's size.
std::size_t Walk::touch_of(BlockUid uid, Bytes bytes, bool writes) const {
  const auto& touches = script_->shape.operators[position_].touches;
  if (sizes_ == Sizes::kEqual || script_->marginal == 0) return touches_;
  const auto expects = [&](const LoggedOperator::Touch& touch) {
    const auto id = static_cast<TraceBlockId>(touch.block);
    if (touch.writes != writes) return false;
    return bound_[id].uid == uid ||
           ((bound_[id].uid == 0 || is_elastic(id)) && !ids_.contains(uid));
  };
  std::size_t now = touches_;
  while (now < touches.size() && !expects(touches[now]) &&
         is_marginal(
             script_->shape.trace.blocks[static_cast<std::size_t>(touches[now].block)].bytes)) {
    ++now;
  }
  const bool found = now < touches.size() && expects(touches[now]);
  if (found) return now;
  return is_marginal(bytes) && !ids_.contains(uid) ? kNowhere : touches_;
}

/// Likewise of its allocations.
std::size_t Walk::allocation_of(Bytes bytes) const {
  constexpr Bytes kAnother = 32;  // no step is so much larger than another
  const auto& allocations = script_->shape.operators[position_].allocations;
  if (sizes_ == Sizes::kEqual || script_->marginal == 0) return allocations_;
  std::size_t now = allocations_;
  while (now < allocations.size() && is_marginal(allocations[now].bytes) && !is_marginal(bytes) &&
         bytes > 2 * allocations[now].bytes) {
    ++now;
  }
  if (now < allocations.size() && bytes * kAnother >= allocations[now].bytes) return now;
  return is_marginal(bytes) ? kNowhere : allocations_;
}

bool Walk::may_have(Bytes bytes, Bytes expected, bool allocated, std::size_t index) {
  const bool trifle = excess_ + std::max<Bytes>(bytes - expected, 0) <= script_->needed / kTrifle;
  if (sizes_ == Sizes::kAny || (sizes_ == Sizes::kWithin && trifle)) return true;
  wrong_size_ = {bytes, allocated, index};
  return false;
}

void Walk::see(TraceBlockId id, Bytes bytes) {
  if (!seen_) return;
  const Bytes planned = script_->shape.trace.blocks[id].bytes;
  Bytes& seen = seen_->blocks[id];
  excess_ += std::max<Bytes>(bytes - planned, 0) - std::max<Bytes>(seen - planned, 0);
  seen = bytes;
}

bool Walk::fits(TraceBlockId id) const {
  return !seen_ || seen_->blocks[id] <= script_->shape.trace.blocks[id].bytes;
}

bool Walk::is_there(TraceBlockId id) const {
  const bool allocated = script_->shape.trace.blocks[id].born_in_step && bound_[id].uid != 0;
  return allocated || (met(id) && is_elastic(id));
}

bool Walk::within(const Script& script) const {
  Bytes excess = 0;
  const auto& planned = script.shape.trace.blocks;
  if (&script == script_) {
    excess = excess_;
  } else {
    const auto& known = script_->shape.trace.blocks;
    for (TraceBlockId id = 0; id < known.size(); ++id) {
      const Bytes bytes = seen_ ? seen_->blocks[id] : known[id].bytes;
      if (bytes > planned[id].bytes && is_there(id)) excess += bytes - planned[id].bytes;
    }
  }
  if (wrong_size_) {
    const auto& [bytes, allocated, index] = *wrong_size_;
    const auto& op = script.shape.operators[position_];
    const Bytes expected = allocated
                               ? op.allocations[index].bytes
                               : planned[static_cast<std::size_t>(op.touches[index].block)].bytes;
    excess += std::max<Bytes>(bytes - expected, 0);
  }
  return excess <= script.needed / kTrifle;
}

Walk Walk::in_size_of(const Script& other) const {
  Walk walk = *this;
  walk.script_ = &other;
  walk.allow(Sizes::kEqual);
  walk.allow(Sizes::kAny);
  const StepSizes mine = seen_ ? *seen_ : StepSizes::of(script_->shape);
  const std::size_t allocated = allocated_ + allocations_;
  std::copy_n(mine.allocations.begin(), allocated, walk.seen_->allocations.begin());
  const auto& blocks = script_->shape.trace.blocks;
  for (TraceBlockId id = 0; id < blocks.size(); ++id) {
    if (is_there(id)) walk.see(id, mine.blocks[id]);
  }
  std::ranges::fill(walk.home_, kNoAddress);
  for (const auto& [id, address] : other.placement.at_start) walk.home_[id] = address;
  return walk;
}

}  // namespace lms
