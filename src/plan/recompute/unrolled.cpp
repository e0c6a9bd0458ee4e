#include "plan/recompute/unrolled.h"

#include <algorithm>
#include <utility>

namespace lms {
namespace {

/// Of StepModel, whose operator 0 stands for the step's beginning.
int model_index(int at) { return at + 1; }

}  // namespace

Unrolled::Unrolled(const Trace& trace, const StepModel& model, const Derivations& derivations,
                   const HostCosts& host)
    : host_(trace.host_ms() > 0 ? host : HostCosts{}),
      trace_(trace),
      model_(model),
      derivations_(derivations),
      gap_derivations_(model.gaps.size()),
      uses_(trace.operators.size()),
      block_gaps_(trace.blocks.size()) {
  const int end = model_index(static_cast<int>(trace.operators.size()));
  for (std::size_t g = 0; g < model.gaps.size(); ++g) {
    const Gap& gap = model.gaps[g];
    block_gaps_[gap.block].push_back(static_cast<int>(g));
    // What the next step or somebody after the step may want is not dropped.
    if (gap.end >= end + (gap.returns ? 0 : 1)) continue;
    const int needed = gap.end - model_index(0) - (gap.returns ? 0 : 1);
    gap_derivations_[g] = derivations.wanted(gap.block, needed);
  }
  for (auto& gaps : block_gaps_) {
    std::ranges::sort(gaps, {},
                      [&](int g) { return model.gaps[static_cast<std::size_t>(g)].begin; });
  }
  for (std::size_t at = 0; at < uses_.size(); ++at) {
    const TraceOperator& op = trace.operators[at];
    const int after = model_index(static_cast<int>(at)) + 1;
    for (const auto* list : {&op.reads, &op.writes, &op.allocs}) {
      for (const TraceBlockId id : *list) {
        const auto& gaps = block_gaps_[id];
        const auto next = std::ranges::lower_bound(
            gaps, after, {}, [&](int g) { return model.gaps[static_cast<std::size_t>(g)].begin; });
        const bool begins =
            next != gaps.end() && model.gaps[static_cast<std::size_t>(*next)].begin == after;
        const Use use{id, begins && can_drop(*next) ? *next : -1};
        auto& uses = uses_[at];
        if (std::ranges::find(uses, id, &Use::block) == uses.end()) uses.push_back(use);
      }
    }
  }
}

TraceOperator& Unrolled::append(int moment, std::int64_t again) {
  if (size_ == out_.operators.size()) {
    if (spare_.empty()) {
      out_.operators.emplace_back();
    } else {
      out_.operators.push_back(std::move(spare_.back()));
      spare_.pop_back();
    }
    items_.resize(std::max(items_.size(), size_ + 1));
  }
  Item& item = items_[size_];
  item.moment = moment;
  item.again = again;
  item.drops.clear();
  TraceOperator& op = out_.operators[size_++];
  op.reads.clear();
  op.writes.clear();
  op.allocs.clear();
  op.frees.clear();
  return op;
}

TraceBlockId Unrolled::new_block(TraceBlockId own, bool movable) {
  const TraceBlock& block = trace_.blocks[own];
  out_.blocks.push_back(
      {.bytes = block.bytes, .born_in_step = block.born_in_step, .movable = movable});
  origins_.push_back(own);
  const auto id = static_cast<TraceBlockId>(out_.blocks.size() - 1);
  stays_[own].now = id;
  return id;
}

void Unrolled::write_out(const Drops& drops) {
  drops_ = &drops;
  size_ = 0;
  recomputed_ms_ = 0;
  out_.blocks.clear();
  origins_.clear();
  absences_.clear();
  stays_.assign(trace_.blocks.size(), {});
  for (TraceBlockId id = 0; id < trace_.blocks.size(); ++id) {
    if (!trace_.blocks[id].born_in_step) new_block(id, trace_.blocks[id].movable);
  }
  for (int moment = 0; moment < static_cast<int>(trace_.operators.size()); ++moment) run(moment);
  finish();
}

bool Unrolled::holds(TraceBlockId own, int moment) const {
  const Stay& stay = stays_[own];
  if (!stay.dead && stay.gap < 0) return true;
  const double hold =
      stay.dead ? drops_->ghost_hold_ms[own] : drops_->hold_ms[static_cast<std::size_t>(stay.gap)];
  return model_.begins[static_cast<std::size_t>(model_index(moment))] -
             model_.begins[static_cast<std::size_t>(model_index(stay.last_moment))] <=
         hold;
}

void Unrolled::want(TraceBlockId own, int moment) {
  Stay& stay = stays_[own];
  if (stay.now != kNone) {
    if (holds(own, moment)) {
      stay.last_moment = moment;
      return;
    }
    drop(own);
  }
  const Derivation& derivation = stay.dead ? *derivations_.ghost(own, moment)
                                           : *gap_derivations_[static_cast<std::size_t>(stay.gap)];
  for (const TraceBlockId input : derivation.inputs) want(input, moment);
  TraceOperator& op = append(moment, own);
  for (const TraceBlockId input : derivation.inputs) use(input, op.reads);
  op.allocs.push_back(new_block(own, trace_.blocks[own].movable && !stay.dead));
  op.ms = derivation.ms;
  op.host_ms = host_.remake_ms;
  op.host_waits = false;
  op.workspace = derivation.beside;
  recomputed_ms_ += derivation.ms;
  if (!stay.dead) absences_[stay.absence].to = static_cast<int>(size_) - 1;
  stay.last = static_cast<int>(size_) - 1;
  stay.last_moment = moment;
}

/// By the operator that was appended last.
void Unrolled::use(TraceBlockId own, std::vector<TraceBlockId>& list) {
  list.push_back(static_cast<TraceBlockId>(stays_[own].now));
  stays_[own].last = static_cast<int>(size_) - 1;
}

/// After its last use.
void Unrolled::drop(TraceBlockId own) {
  Stay& stay = stays_[own];
  const auto last = static_cast<std::size_t>(stay.last);
  out_.operators[last].frees.push_back(static_cast<TraceBlockId>(stay.now));
  items_[last].drops.push_back(own);
  out_.operators[last].host_ms += host_.leave_ms;
  stay.now = kNone;
  if (stay.dead) return;
  stay.absence = absences_.size();
  absences_.push_back({stay.gap, stay.last + 1, stay.last + 1});
}

void Unrolled::run(int moment) {
  const auto at = static_cast<std::size_t>(moment);
  const TraceOperator& own = trace_.operators[at];
  for (const TraceBlockId id : own.reads) want(id, moment);
  for (const TraceBlockId id : own.writes) want(id, moment);
  TraceOperator& op = append(moment, kNone);
  op.ms = own.ms;
  op.host_ms = own.host_ms;
  op.host_waits = own.host_waits;
  op.workspace = own.workspace;
  for (const TraceBlockId id : own.reads) use(id, op.reads);
  for (const TraceBlockId id : own.writes) use(id, op.writes);
  for (const TraceBlockId id : own.allocs) {
    new_block(id, trace_.blocks[id].movable);
    use(id, op.allocs);
  }
  for (const Use& use : uses_[at]) {
    Stay& stay = stays_[use.block];
    stay.gap = -1;
    if (use.gap < 0 || drops_->dropped[static_cast<std::size_t>(use.gap)] == 0) continue;
    stay.gap = use.gap;
    drop(use.block);
  }
  for (const TraceBlockId id : own.frees) {
    Stay& stay = stays_[id];
    if (stay.now != kNone && stay.gap >= 0) drop(id);
    if (stay.gap >= 0) absences_[stay.absence].to = static_cast<int>(size_);
    if (stay.now != kNone) op.frees.push_back(static_cast<TraceBlockId>(stay.now));
    stay.now = kNone;
    stay.gap = -1;
    stay.dead = true;
  }
}

void Unrolled::finish() {
  for (TraceBlockId id = 0; id < stays_.size(); ++id) {
    if (stays_[id].dead && stays_[id].now != kNone) drop(id);
  }
  while (out_.operators.size() > size_) {
    spare_.push_back(std::move(out_.operators.back()));
    out_.operators.pop_back();
  }
  std::size_t lasting = 0;  // the first blocks of out_, in the order of the step's own
  for (const TraceBlock& block : trace_.blocks) {
    if (block.born_in_step) continue;
    TraceBlock& here = out_.blocks[lasting++];
    if (block.carried_from == kNoBlock) continue;
    // Nobody carries on what has died; such blocks are not found again, in either trace.
    here.carried_from = stays_[static_cast<std::size_t>(block.carried_from)].now;
  }
}

int Unrolled::own_gap(TraceBlockId block, int at) const {
  const TraceBlockId own = origins_[block];
  if (stays_[own].dead && !out_.blocks[block].movable && trace_.blocks[own].movable) return -1;
  const bool own_use = at >= 0 && computes_again(at) == kNone;
  // The operator of the step's model at whose beginning the block is in the gap.
  const int op = model_index(at >= 0 ? moment(at) : 0) + (own_use ? 1 : 0);
  const auto& gaps = block_gaps_[own];
  const auto gap = [&](int g) -> const Gap& { return model_.gaps[static_cast<std::size_t>(g)]; };
  const auto next = std::ranges::upper_bound(gaps, op, {}, [&](int g) { return gap(g).begin; });
  if (next != gaps.begin()) {
    const Gap& found = gap(*std::prev(next));
    if (own_use ? found.begin == op : op <= found.end) return *std::prev(next);
  }
  // Before the first use lies what is left of the gap over the step's end.
  if (!gaps.empty() && op + model_.operators <= gap(gaps.back()).end) return gaps.back();
  // Where the step uses the block in one operator after the other, but computes something again
  // between them.
  return -1;
}

Plan Unrolled::fold(const Plan& plan) const {
  Plan folded;
  for (const TraceBlockId id : plan.absent_at_start) folded.absent_at_start.push_back(origins_[id]);
  auto directive = plan.directives.begin();
  for (std::size_t at = 0; at <= size_; ++at) {
    const std::size_t before =
        at < size_ ? static_cast<std::size_t>(items_[at].moment) : trace_.operators.size();
    if (at > 0) {
      for (const TraceBlockId own : items_[at - 1].drops) {
        folded.directives.push_back({before, Action::kDrop, own});
      }
    }
    for (; directive != plan.directives.end() && directive->before == at; ++directive) {
      folded.directives.push_back({before, directive->action, origins_[directive->block]});
    }
    if (at < size_ && items_[at].again != kNone) {
      folded.directives.push_back(
          {before, Action::kRematerialise, static_cast<TraceBlockId>(items_[at].again)});
    }
  }
  return folded;
}

}  // namespace lms
