#include "steps/step_log.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/mixed.h"
#include "steps/step_finder.h"

namespace lms {
namespace {

enum class Event : std::uint64_t { kRead, kWrite, kAlloc, kRelease };

std::uint64_t mixed_in(std::uint64_t state, Event event, Bytes bytes) {
  return mixed(state,
               (static_cast<std::uint64_t>(bytes) << 2U) | static_cast<std::uint64_t>(event));
}

constexpr std::size_t kFirstRing = 1024;

}  // namespace

StepLog::StepLog(std::size_t most_operators)
    : most_(std::max<std::size_t>(most_operators, 2)),
      ring_(std::min(kFirstRing, std::bit_ceil(most_))),
      finder_(std::make_unique<StepFinder>(most_, &LoggedOperator::signature)),
      forms_(std::make_unique<StepFinder>(most_, &LoggedOperator::form)) {}

StepLog::~StepLog() = default;
StepLog::StepLog(StepLog&&) noexcept = default;
StepLog& StepLog::operator=(StepLog&&) noexcept = default;

std::uint32_t StepLog::number_of(std::string_view name) {
  const auto found = name_numbers_.find(name);
  if (found != name_numbers_.end()) return found->second;
  const auto number = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  name_numbers_.emplace(names_.back(), number);
  return number;
}

void StepLog::forget_first() {
  // A block's release is the last that is heard of it.
  for (const auto& change : at(first_).changes) {
    if (!change.alloc) blocks_.erase(change.slot);
  }
  touches_.forget(first_);
  changes_.forget(first_);
  ++first_;
}

void StepLog::make_place() {
  if (end_ - first_ == most_) forget_first();
  if (end_ - first_ < ring_.size()) return;
  std::vector<LoggedOperator> wider(2 * ring_.size());
  for (std::uint64_t number = first_; number < end_; ++number) {
    wider[number & (wider.size() - 1)] = at(number);
  }
  ring_ = std::move(wider);
}

void StepLog::begin_operator(OperatorKey key, std::string_view name, bool repeatable,
                             ReplayCost replay_cost) {
  if (running_) end_operator();
  make_place();
  const std::uint64_t number = end_++;
  running_ = true;
  touches_.begin(number);
  changes_.begin(number);
  at(number) = {.key = key,
                .signature = mixed(between_, key),
                .form = mixed(form_between_, key),
                .repeatable = repeatable,
                .replay_cost = replay_cost,
                .name = number_of(name),
                .live_after = live_};
}

void StepLog::touch(BlockUid block, Bytes bytes, bool writes) {
  if (bytes <= 0 || !running_) return;
  const auto known = blocks_.find(block);
  const std::uint32_t slot = known ? *known : blocks_.insert(block, bytes, KnownBlock::kBefore);
  LoggedOperator& op = last();
  KnownBlock& record = blocks_[slot];
  if (!known) {
    record.marginal = bytes < marginal_;
    op.live_after = live_ += bytes;
    record.heard = static_cast<std::int64_t>(end_ - 1);
  }
  if (record.death != KnownBlock::kNever) return;
  record.touched = true;
  const auto number = static_cast<std::int64_t>(end_ - 1);
  const bool again = record.used_by == number && (record.used_writing || !writes);
  record.used_writing = writes || (again && record.used_writing);
  record.used_by = number;
  op.touches = touches_.push({block, writes, slot, again});
  const Event event = writes ? Event::kWrite : Event::kRead;
  op.signature = mixed_in(op.signature, event, record.bytes);
}

void StepLog::may_move(BlockUid block) {
  if (const auto known = blocks_.find(block)) blocks_[*known].touched = true;
}

void StepLog::keep(BlockUid block) {
  if (const auto known = blocks_.find(block)) blocks_[*known].kept = true;
}

void StepLog::restart_operator() {
  if (!running_) return;
  LoggedOperator& op = last();
  const std::vector<LoggedOperator::Change> changes(op.changes.begin(), op.changes.end());
  for (const auto& touch : op.touches) blocks_[touch.slot].used_by = KnownBlock::kBefore;
  op.touches = {};
  op.changes = {};
  op.signature = mixed(between_, op.key);
  touches_.restart();
  changes_.restart();
  const auto number = static_cast<std::int64_t>(end_ - 1);
  for (const auto& change : changes) {
    if (change.alloc) --allocations_;
  }
  for (const auto& change : changes) {
    KnownBlock& record = blocks_[change.slot];
    const bool in_vain = record.birth == number && record.death == number;
    if (in_vain) {
      if (!change.alloc) blocks_.erase(change.slot);
      continue;
    }
    if (change.alloc) take_place(record);
    log_change(change.slot, change.alloc);
  }
}

void StepLog::end_operator() {
  if (!running_) return;
  settle_form();
  running_ = false;
  allocations_ = form_allocations_ = 0;
  between_ = form_between_ = 0;
}

void StepLog::take_place(KnownBlock& block) {
  block.place = allocations_++;
  if (!running_) take_form_place(block);
}

void StepLog::take_form_place(KnownBlock& block) {
  block.form_place = form_allocations_;
  if (!block.marginal) ++form_allocations_;
}

/// Which allocations are temporaries is known now. Kernels for other sizes take others.
void StepLog::settle_form() {
  LoggedOperator& op = last();
  const auto take = [&](Event event, const KnownBlock& block) {
    if (!block.marginal) op.form = mixed_in(op.form, event, 0);
  };
  for (const auto& change : op.changes) {
    KnownBlock& block = blocks_[change.slot];
    if (block.temporary()) continue;
    if (change.alloc) take_form_place(block);
    take(change.alloc ? Event::kAlloc : Event::kRelease, block);
  }
  for (const auto& touch : op.touches) {
    const KnownBlock& block = blocks_[touch.slot];
    if (touch.again || block.temporary()) continue;
    take(touch.writes ? Event::kWrite : Event::kRead, block);
  }
}

void StepLog::log_change(std::uint32_t slot, bool alloc) {
  LoggedOperator& op = last();
  const KnownBlock& record = blocks_[slot];
  op.changes = changes_.push({record.uid, alloc, running_, slot});
  op.live_after = live_;
  const bool between = alloc && !running_;
  std::uint64_t& signature = between ? between_ : op.signature;
  const Event event = alloc ? Event::kAlloc : Event::kRelease;
  signature = mixed_in(signature, event, record.bytes);
  if (running_ || record.marginal) return;  // see settle_form()
  std::uint64_t& form = between ? form_between_ : op.form;
  form = mixed_in(form, event, 0);
}

void StepLog::alloc(BlockUid block, Bytes bytes) {
  if (bytes <= 0 || blocks_.find(block)) return;
  const bool first = end_ == origin_;
  const auto birth = static_cast<std::int64_t>(running_ ? end_ - 1 : end_);
  const std::uint32_t slot = blocks_.insert(block, bytes, first ? KnownBlock::kBefore : birth);
  blocks_[slot].marginal = bytes < marginal_;
  take_place(blocks_[slot]);
  live_ += bytes;
  if (!first) log_change(slot, true);
}

void StepLog::release(BlockUid block) {
  const auto slot = blocks_.find(block);
  if (!slot || blocks_[*slot].death != KnownBlock::kNever) return;
  KnownBlock& record = blocks_[*slot];
  live_ -= record.bytes;
  if (end_ == origin_) {
    blocks_.erase(*slot);
    return;
  }
  record.death = static_cast<std::int64_t>(end_ - 1);
  record.died_inside = running_;
  log_change(*slot, false);
}

void StepLog::mark_step() {
  finder_->mark(end_, first_);
  forms_->mark(end_, first_);
}

void StepLog::clear() {
  touches_.clear();
  changes_.clear();
  blocks_.clear();
  origin_ = first_ = end_;
  running_ = false;
  live_ = 0;
  allocations_ = form_allocations_ = 0;
  between_ = form_between_ = 0;
  finder_->clear();
  forms_->clear();
}

void StepLog::set_ms(std::uint64_t number, double ms) {
  if (number >= first_ && number < end_) at(number).ms = ms;
}

Bytes StepLog::bytes_of(BlockUid block) const {
  const auto slot = blocks_.find(block);
  return slot ? blocks_[*slot].bytes : 0;
}

std::optional<StepLog::Span> StepLog::repeated_step() { return finder_->find(*this); }

std::optional<StepLog::Span> StepLog::repeated_form() { return forms_->find(*this); }

}  // namespace lms
