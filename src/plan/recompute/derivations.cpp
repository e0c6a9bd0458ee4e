#include "plan/recompute/derivations.h"

#include <algorithm>

namespace lms {
namespace {

/// Longer ones (sums that are added to again and again) are not worth their time.
constexpr std::size_t kMostMakers = 32;

}  // namespace

Derivations::Derivations(const Trace& trace)
    : operators_(static_cast<int>(trace.operators.size())), lives_(trace.blocks.size()) {
  for (std::size_t id = 0; id < lives_.size(); ++id) {
    lives_[id].born = trace.blocks[id].born_in_step;
    lives_[id].movable = trace.blocks[id].movable;
    lives_[id].death = operators_;
  }
  for (int at = 0; at < operators_; ++at) {
    const TraceOperator& op = trace.operators[static_cast<std::size_t>(at)];
    for (const TraceBlockId id : op.writes) lives_[id].makers.push_back(at);
    for (const TraceBlockId id : op.allocs) lives_[id].makers.push_back(at);
    for (const TraceBlockId id : op.frees) lives_[id].death = at;
  }
  for (TraceBlockId id = 0; id < lives_.size(); ++id) {
    Life& life = lives_[id];
    if (!life.born || !life.movable || life.makers.size() > kMostMakers) continue;
    for (std::size_t makers = 1; makers <= life.makers.size(); ++makers) {
      life.derivations.push_back(compose(trace, id, makers));
      if (life.derivations.back().until < 0) break;  // nor with more makers
    }
  }
  settle(trace);
}

int Derivations::next_write(TraceBlockId block, int at) const {
  const auto& makers = lives_[block].makers;
  const auto next = std::ranges::upper_bound(makers, at);
  return next == makers.end() ? operators_ : *next;
}

Derivation Derivations::compose(const Trace& trace, TraceBlockId block, std::size_t makers) const {
  Derivation derivation{.until = operators_};
  for (std::size_t i = 0; i < makers; ++i) {
    const int at = lives_[block].makers[i];
    const TraceOperator& op = trace.operators[static_cast<std::size_t>(at)];
    if (!op.repeatable || op.spares(block)) derivation.until = -1;
    for (const TraceBlockId id : op.writes) {
      if (id != block && !op.spares(id)) derivation.until = -1;
    }
    if (derivation.until < 0) return derivation;
    for (const TraceBlockId id : op.again_reads()) {
      if (id == block || op.spares(id)) continue;
      derivation.until = std::min(derivation.until, next_write(id, at));
      if (std::ranges::find(derivation.inputs, id) == derivation.inputs.end()) {
        derivation.inputs.push_back(id);
      }
    }
    Bytes beside = op.workspace;
    for (const TraceBlockId id : op.allocs) beside += id == block ? 0 : trace.blocks[id].bytes;
    derivation.beside = std::max(derivation.beside, beside);
    derivation.ms += op.again_ms();
  }
  return derivation;
}

void Derivations::settle(const Trace& trace) {
  // An input has died in the contents that the derivation read, or the derivation is wrong by then
  // anyway: so going by operators meets ghosts before those that need them.
  std::vector<std::size_t> done(lives_.size());
  for (int at = 0; at < operators_; ++at) {
    const TraceOperator& op = trace.operators[static_cast<std::size_t>(at)];
    const auto settle_next = [&](TraceBlockId id) {
      Life& life = lives_[id];
      if (done[id] >= life.derivations.size()) return;
      Derivation& derivation = life.derivations[done[id]++];
      for (const TraceBlockId input : derivation.inputs) {
        const Life& other = lives_[input];
        int until = other.death;
        if (until < derivation.until && !other.derivations.empty() &&
            other.derivations.size() == other.makers.size()) {
          until = std::max(until, other.derivations.back().until);
        }
        derivation.until = std::min(derivation.until, until);
      }
    };
    for (const TraceBlockId id : op.writes) settle_next(id);
    for (const TraceBlockId id : op.allocs) settle_next(id);
  }
}

const Derivation* Derivations::wanted(TraceBlockId block, int at) const {
  const Life& life = lives_[block];
  const auto makers = std::ranges::lower_bound(life.makers, at) - life.makers.begin();
  if (makers == 0 || static_cast<std::size_t>(makers) > life.derivations.size()) return nullptr;
  const Derivation& derivation = life.derivations[static_cast<std::size_t>(makers) - 1];
  return at <= derivation.until ? &derivation : nullptr;
}

const Derivation* Derivations::ghost(TraceBlockId block, int at) const {
  const Life& life = lives_[block];
  if (life.derivations.empty() || life.derivations.size() != life.makers.size()) return nullptr;
  return at <= life.derivations.back().until ? &life.derivations.back() : nullptr;
}

}  // namespace lms
