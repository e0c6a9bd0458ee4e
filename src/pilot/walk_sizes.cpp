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
  return !script_->shape.trace.blocks[id].lasts() ||
         (script_->turns && script_->turns->may_turn(id));
}

/// Which of the operator's uses this is, if sizes may differ; kNowhere: one that the script's size
/// does not have. Nothing: neither.
std::optional<std::size_t> Walk::touch_of(BlockUid uid, Bytes bytes, bool writes) const {
  const auto& touches = script_->shape.operators[position_].touches;
  const auto bytes_of = [&](const LoggedOperator::Touch& touch) {
    return script_->shape.trace.blocks[static_cast<std::size_t>(touch.block)].bytes;
  };
  // What is made in the step and is not there was too small, and nobody has heard of it; or it is a
  // result of this operator, of which end() knows more.
  const auto is_missing = [&](const LoggedOperator::Touch& touch) {
    const auto id = static_cast<TraceBlockId>(touch.block);
    return bound_[id].uid == 0 && script_->shape.trace.blocks[id].born_in_step;
  };
  const auto varies = [&](const LoggedOperator::Touch& touch) {
    return touch.again || is_marginal(bytes_of(touch)) || is_missing(touch);
  };
  const auto expects = [&](const LoggedOperator::Touch& touch) {
    const auto id = static_cast<TraceBlockId>(touch.block);
    if (touch.writes != writes) return false;
    const bool open = bound_[id].uid == 0 || (script_->turns && script_->turns->may_turn(id));
    return bound_[id].uid == uid || (open && !ids_.contains(uid));
  };
  std::size_t now = touches_;
  while (now < touches.size() && !expects(touches[now]) && varies(touches[now])) ++now;
  if (now < touches.size() && expects(touches[now])) return now;
  const auto has_used = [&](const LoggedOperator::Touch& touch) {
    return bound_[static_cast<std::size_t>(touch.block)].uid == uid && (touch.writes || !writes);
  };
  const auto met = touches.begin() + static_cast<std::ptrdiff_t>(touches_);
  const bool again = std::any_of(touches.begin(), met, has_used);
  const bool other = !ids_.contains(uid) && (is_marginal(bytes) || is_unknown(bytes));
  if (again || other) return kNowhere;
  return std::nullopt;
}

std::optional<double> Walk::scale() const {
  if (!seen_) return std::nullopt;
  const auto& touches = script_->shape.operators[position_].touches;
  for (std::size_t k = 0; k < touches_; ++k) {
    const auto id = static_cast<TraceBlockId>(touches[k].block);
    const Bytes planned = script_->shape.trace.blocks[id].bytes;
    if (planned <= 0 || !is_elastic(id) || !met(id)) continue;
    return static_cast<double>(seen_->blocks[id]) / static_cast<double>(planned);
  }
  return std::nullopt;
}

/// In the script's size it is too small to be heard of.
bool Walk::is_unknown(Bytes bytes) const {
  const auto scale = this->scale();
  return scale && static_cast<double>(bytes) < *scale * static_cast<double>(script_->least);
}

/// Likewise of its allocations. For other sizes a kernel may take further temporaries.
std::optional<std::size_t> Walk::allocation_of(Bytes bytes) const {
  constexpr double kAnother = 8;  // what is so much smaller is another one, if it is marginal
  constexpr double kClearly = 1.5;
  const auto& allocations = script_->shape.operators[position_].allocations;
  const auto scale = this->scale();
  const auto here = [&](Bytes planned) {
    return static_cast<double>(planned) * scale.value_or(1.0);
  };
  // What is too small at this step's size: a mask beside a result.
  const auto is_unheard = [&](Bytes planned) {
    return scale && here(planned) < static_cast<double>(script_->least) &&
           static_cast<double>(bytes) > kClearly * here(planned);
  };
  const auto is_passed = [&](Bytes planned) {
    const double most = 2 * std::max(static_cast<double>(planned), here(planned));
    return is_unheard(planned) ||
           (is_marginal(planned) && !is_marginal(bytes) && static_cast<double>(bytes) > most);
  };
  std::size_t now = allocations_;
  while (now < allocations.size() && is_passed(allocations[now].bytes)) ++now;
  if (now >= allocations.size()) return kNowhere;
  const auto planned = static_cast<double>(allocations[now].bytes);
  const auto taken = static_cast<double>(bytes);
  const bool unknown = is_unknown(bytes) && kClearly * taken < here(allocations[now].bytes);
  const bool another =
      is_marginal(bytes) && kAnother * taken < std::min(planned, here(allocations[now].bytes));
  return unknown || another ? kNowhere : now;
}

bool Walk::is_temporary(BlockUid uid) const {
  return std::ranges::find(temporaries_, uid, &Temporary::uid) != temporaries_.end();
}

/// In other sizes what has been taken for a temporary may be a result: one that is much smaller
/// than the script's, or in the place of a temporary that the kernel for this size does not take.
/// Whatever has outlived the operator is a result, in order.
void Walk::settle_results() {
  if (temporaries_.empty()) return;
  const auto& allocations = script_->shape.operators[position_].allocations;
  std::vector<std::size_t> open;
  for (std::size_t k = 0; k < allocations.size(); ++k) {
    const auto id = allocations[k].block;
    if (id != kNoBlock && bound_[static_cast<std::size_t>(id)].uid == 0) open.push_back(k);
  }
  std::vector<Temporary> alive;
  std::ranges::copy_if(temporaries_, std::back_inserter(alive), &Temporary::alive);
  if (open.size() != alive.size()) {
    // What is marginal need not be there in both.
    std::erase_if(open, [&](std::size_t k) { return is_marginal(allocations[k].bytes); });
    std::erase_if(alive, [&](const Temporary& one) { return is_marginal(one.bytes); });
  }
  if (open.size() == alive.size()) {
    for (std::size_t i = 0; i < open.size(); ++i) settle(open[i], alive[i]);
  }
}

/// What of the operator's temporaries the script does not have is known now.
void Walk::settle_beyond() {
  Bytes& beyond = seen_->beyond[position_];
  const Bytes planned = script_->shape.operators[position_].beyond;
  excess_ += std::max<Bytes>(beyond_ - planned, 0) - std::max<Bytes>(beyond - planned, 0);
  beyond = beyond_;
}

/// Of these results of the operator nobody has heard: they were smaller than what is managed.
void Walk::note_unheard(std::size_t from, std::size_t to) {
  if (script_->least == 0) return;
  const auto& allocations = script_->shape.operators[position_].allocations;
  for (std::size_t k = from; k < to; ++k) {
    if (allocations[k].block == kNoBlock) continue;
    const Bytes small = std::min(allocations[k].bytes, script_->least - 1);
    see(static_cast<TraceBlockId>(allocations[k].block), small);
    seen_->allocations[allocated_ + k] = small;
  }
}

/// It is this of the operator's allocations, and lies where nothing was planned.
void Walk::settle(std::size_t index, const Temporary& made) {
  const auto& allocations = script_->shape.operators[position_].allocations;
  if (made.index != kNowhere) {
    const Bytes planned = allocations[made.index].bytes;
    Bytes& seen = seen_->allocations[allocated_ + made.index];
    excess_ -= std::max<Bytes>(seen - planned, 0);
    seen = planned;
  } else if (!is_marginal(made.bytes)) {
    beyond_ -= made.bytes;
  }
  const auto id = static_cast<TraceBlockId>(allocations[index].block);
  bind(id, made.uid, nullptr);
  home_[id] = kNoAddress;
  see(id, made.bytes);
  seen_->allocations[allocated_ + index] = made.bytes;
  meet(id);
}

/// With equal sizes: what differs here would not if sizes might.
bool Walk::varies_here(std::string why, std::optional<std::size_t> elsewhere) {
  if (sizes_ == Sizes::kEqual && elsewhere) wrong_size_ = WrongSize{0, Of::kUses, 0};
  return differs(std::move(why));
}

bool Walk::may_have(Bytes bytes, Bytes expected, Of of, std::size_t index) {
  const bool trifle = excess_ + std::max<Bytes>(bytes - expected, 0) <= script_->needed / kTrifle;
  if (sizes_ == Sizes::kAny || (sizes_ == Sizes::kWithin && trifle)) return true;
  wrong_size_ = {bytes, of, index};
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

/// What the script has where the walk has differed in size.
Bytes Walk::wanted_by(const Script& script) const {
  const auto& [bytes, of, index] = *wrong_size_;
  if (bytes <= 0) return 0;
  const auto& op = script.shape.operators[position_];
  if (of == Of::kAllocations) return op.allocations[index].bytes;
  if (of == Of::kBeyond) return op.beyond;
  const auto id = static_cast<TraceBlockId>(op.touches[index].block);
  return script.shape.trace.blocks[id].bytes;
}

bool Walk::outgrows(const Script& script) const {
  Bytes bytes = 0;
  Bytes planned = 0;
  const auto& known = script_->shape.trace.blocks;
  for (TraceBlockId id = 0; id < known.size(); ++id) {
    if (!is_there(id)) continue;
    bytes += seen_ ? seen_->blocks[id] : known[id].bytes;
    planned += script.shape.trace.blocks[id].bytes;
  }
  if (wrong_size_) {
    bytes += wrong_size_->bytes;
    planned += wanted_by(script);
  }
  return bytes - planned > planned / kTrifle;
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
  if (wrong_size_) excess += std::max<Bytes>(wrong_size_->bytes - wanted_by(script), 0);
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
  std::copy_n(mine.beyond.begin(), position_, walk.seen_->beyond.begin());
  const auto& blocks = script_->shape.trace.blocks;
  for (TraceBlockId id = 0; id < blocks.size(); ++id) {
    if (is_there(id)) walk.see(id, mine.blocks[id]);
  }
  std::ranges::fill(walk.home_, kNoAddress);
  for (const auto& [id, address] : other.placement.at_start) walk.home_[id] = address;
  return walk;
}

}  // namespace lms
