// Steps that leave operators of a script out, or run some of them once more.

#include <algorithm>

#include "pilot/script.h"

namespace lms {
namespace {

/// What was made more operators ago than this is no layer's input any more, but what it has saved,
/// or a weight's copy in another type: nothing of another layer's.
constexpr std::size_t kLong = 32;
/// What more operators use than this (a mask, say) is not one layer's.
constexpr std::size_t kMostUses = 8;

}  // namespace

void Script::find_telling() {
  telling_from.assign(shape.trace.blocks.size(), kNever);
  std::vector<std::size_t> uses(telling_from.size(), 0);
  for (const StepShape::Operator& op : shape.operators) {
    for (const auto& touch : op.touches) ++uses[static_cast<std::size_t>(touch.block)];
  }
  for (std::size_t i = 0; i < size(); ++i) {
    for (const auto& made : shape.operators[i].allocations) {
      if (made.block == kNoBlock) continue;
      const auto id = static_cast<std::size_t>(made.block);
      if (uses[id] <= kMostUses) telling_from[id] = i + kLong;
    }
  }
}

bool Walk::go_along(const StepLog& log, std::uint64_t from) {
  Bytes ignored = kNoAddress;
  const auto allocs = [&](const LoggedOperator& op, bool inside) {
    return std::ranges::all_of(op.changes, [&](const auto& change) {
      return change.inside != inside || !change.alloc ||
             alloc(change.block, log.bytes_of(change.block), &ignored);
    });
  };
  const auto releases = [&](const LoggedOperator& op, bool inside) {
    for (const auto& change : op.changes) {
      if (change.inside == inside && !change.alloc) release(change.block);
    }
  };
  if (from > log.first() && !allocs(log.at(from - 1), false)) return false;
  for (std::uint64_t n = from; n < log.end(); ++n) {
    const LoggedOperator& op = log.at(n);
    if (!begin(op.key) || !allocs(op, true)) return false;
    for (const auto& one : op.touches) {
      if (!touch(one.block, log.bytes_of(one.block), one.writes, nullptr)) return false;
    }
    releases(op, true);
    (void)end();
    releases(op, false);
    // What is allocated between two operators is the later one's.
    if (!allocs(op, false)) return false;
  }
  return true;
}

void Walk::jump(std::size_t position) {
  const auto& operators = script_->shape.operators;
  for (std::size_t i = position; i < position_; ++i) {
    // What it makes is made once more.
    for (const auto& made : operators[i].allocations) {
      if (made.block != kNoBlock) unbind(static_cast<TraceBlockId>(made.block));
    }
  }
  if (position > position_) left_out_ += position - position_;
  jumped_ = true;
  inside_ = false;
  temporaries_.clear();
  beyond_ = 0;
  touches_ = allocations_ = allocated_ = 0;
  position_ = position;
  for (std::size_t i = 0; i < position; ++i) allocated_ += operators[i].allocations.size();
}

/// What a layer that was left out would have made comes from the one before it, and so on.
bool Walk::serve_after_jump(TraceBlockId id, BlockUid uid, void* block) {
  if (!jumped_ || !is_elastic(id) || is_settled(id)) return false;
  if (const auto elsewhere = ids_.find(uid); elsewhere != ids_.end()) {
    if (!is_elastic(elsewhere->second) || is_settled(elsewhere->second)) return false;
    unbind(elsewhere->second);
    stand_ins_.push_back(id);
  }
  unbind(id);
  bind(id, uid, block);
  return true;
}

/// It was made in this step, and so long ago that it is nobody else.
bool Walk::is_settled(TraceBlockId id) const {
  if (bound_[id].uid == 0 || !met(id) || std::ranges::find(stand_ins_, id) != stand_ins_.end()) {
    return false;
  }
  return position_ > script_->telling_from[id] + left_out_;
}

bool Walk::is_like(const StepLog& log, std::uint64_t number, std::size_t position,
                   bool* telling) const {
  const LoggedOperator& is = log.at(number);
  const StepShape::Operator& known = script_->shape.operators[position];
  if (is.key != known.key) return false;
  bool tells = false;
  const auto uses = [&](const LoggedOperator::Touch& touch) {
    const auto id = static_cast<TraceBlockId>(touch.block);
    const bool may_be_another = is_elastic(id);
    const bool is_old = met(id) && position >= script_->telling_from[id];
    if (may_be_another && !is_old) return true;
    const BlockUid uid = bound_[id].uid;
    const bool is_used =
        uid != 0 &&
        std::ranges::find(is.touches, uid, &LoggedOperator::Touch::block) != is.touches.end();
    tells = tells || is_used;
    return is_used || may_be_another;
  };
  if (!std::ranges::all_of(known.touches, uses)) return false;
  *telling = *telling || tells;
  return true;
}

}  // namespace lms
