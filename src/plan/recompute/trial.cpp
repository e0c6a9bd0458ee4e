#include "plan/recompute/trial.h"

#include <algorithm>
#include <limits>

namespace lms {
namespace {

/// What takes this much longer to compute again than to copy out and in is not dropped.
constexpr double kDearest = 2;
/// What is computed again needs memory itself, for which more may have to be dropped, and so on: so
/// often at most, then the rest is swapped.
constexpr int kMostPasses = 8;

int fullest(const StepModel& model) {
  int worst = 0;
  for (int op = 1; op < model.operators; ++op) {
    if (model.during(op) > model.during(worst)) worst = op;
  }
  return worst;
}

}  // namespace

Trial::Trial(const Trace& trace, const StepModel& model, const Derivations& derivations,
             const LinkModel& link, Bytes budget)
    : own_model_(model),
      derivations_(derivations),
      link_(link),
      budget_(budget),
      unrolled_(trace, model, derivations, link.host),
      again_ms_(model.gaps.size(), kNever),
      seen_(trace.blocks.size()) {
  const double copying = 1 / link_.out_bytes_per_ms + 1 / link_.in_bytes_per_ms;
  for (int g = 0; g < static_cast<int>(again_ms_.size()); ++g) {
    if (!unrolled_.can_drop(g)) continue;
    const double ms = price(trace, g);
    const auto bytes = static_cast<double>(model.gaps[static_cast<std::size_t>(g)].bytes);
    if (ms <= kDearest * copying * bytes) again_ms_[static_cast<std::size_t>(g)] = ms;
  }
  std::ranges::sort(ghosts_);
  ghosts_.erase(std::unique(ghosts_.begin(), ghosts_.end()), ghosts_.end());
}

/// What computing the block again takes, with inputs that are dead by then.
double Trial::price(const Trace& trace, int gap) {
  const Gap& what = own_model_.gaps[static_cast<std::size_t>(gap)];
  if (!what.returns) return 0;
  const int at = std::min(what.end - 1, static_cast<int>(trace.operators.size()));
  double ms = 0;
  std::vector<const Derivation*> chain{&unrolled_.derivation(gap)};
  std::vector<TraceBlockId> ghosts;
  while (!chain.empty()) {
    const Derivation& next = *chain.back();
    chain.pop_back();
    ms += next.ms;
    for (const TraceBlockId input : next.inputs) {
      if (at <= derivations_.death(input) || seen_[input] != 0) continue;
      seen_[input] = 1;
      ghosts.push_back(input);
      chain.push_back(derivations_.ghost(input, at));
    }
  }
  for (const TraceBlockId ghost : ghosts) seen_[ghost] = 0;
  ghosts_.insert(ghosts_.end(), ghosts.begin(), ghosts.end());
  return ms;
}

bool Trial::choose(Candidate& candidate, std::mt19937_64& random, double randomness,
                   bool may_drop) {
  unrolled_.write_out(candidate.drops);
  scheduler_.reset();
  evictions_.reset();
  model_.emplace(unrolled_.trace());
  evictions_.emplace(*model_, budget_);
  if (evictions_->lacking() > 0) return false;
  own_.assign(model_->gaps.size(), -1);
  prices_.out_ms_per_byte =
      link_.out_tax_ms_per_byte + candidate.lane_price / link_.out_bytes_per_ms;
  prices_.in_ms_per_byte = link_.in_tax_ms_per_byte + candidate.lane_price / link_.in_bytes_per_ms;
  prices_.each_ms = candidate.each_ms;
  prices_.breadth = candidate.breadth;
  prices_.most_moved = std::numeric_limits<Bytes>::max();
  if (candidate.moved < kMovedFreely) {
    const auto at = static_cast<std::size_t>(fullest(own_model_));
    prices_.most_moved =
        static_cast<Bytes>(candidate.moved * own_model_.begins[at] * link_.out_bytes_per_ms);
  }
  prices_.again_ms.assign(may_drop ? model_->gaps.size() : 0, kNever);
  for (const int g : evictions_->useful()) {
    const Gap& gap = model_->gaps[static_cast<std::size_t>(g)];
    const int last_use = gap.begin - 2;
    const int own = unrolled_.own_gap(gap.block, last_use);
    own_[static_cast<std::size_t>(g)] = own;
    if (own < 0) continue;
    const auto o = static_cast<std::size_t>(own);
    if (may_drop) {
      // After another recomputation has read it, it would be computed twice.
      const bool twice = candidate.drops.dropped[o] == 0 && last_use >= 0 &&
                         unrolled_.computes_again(last_use) >= 0;
      const double once = again_ms_[o] + candidate.each_ms;
      prices_.again_ms[static_cast<std::size_t>(g)] = once * (twice ? 2 : 1);
    }
    if (candidate.drops.dropped[o] == 0 && candidate.swaps[o] != 0) evictions_->add(g);
  }
  evictions_->repair(random, randomness, prices_);
  return true;
}

bool Trial::drop_more(Candidate& candidate) {
  bool more = false;
  for (const int g : evictions_->useful()) {
    if (!evictions_->again(g)) continue;
    const auto own = static_cast<std::size_t>(own_[static_cast<std::size_t>(g)]);
    more = true;
    if (candidate.drops.dropped[own] == 0) {
      candidate.drops.dropped[own] = 1;
      candidate.swaps[own] = 0;
      continue;
    }
    const Gap& gap = model_->gaps[static_cast<std::size_t>(g)];
    const auto begin = [&](int op) {
      const auto moment = static_cast<std::size_t>(unrolled_.moment(op - 1));
      return own_model_.begins[moment + 1];
    };
    const auto stay = static_cast<float>(begin(gap.end) - begin(gap.begin - 1));
    candidate.drops.hold_ms[own] = std::min(candidate.drops.hold_ms[own], kTooShort * stay);
  }
  return more;
}

bool Trial::room(const Unrolled::Absence& absence, Bytes bytes) const {
  for (int op = absence.from; op < absence.to; ++op) {
    const auto at = static_cast<std::size_t>(op) + 1;  // in the model
    if (evictions_->room()[at] - taken_back_[at] < bytes) return false;
  }
  return true;
}

bool Trial::drop_less(Candidate& candidate) {
  taken_back_.assign(static_cast<std::size_t>(model_->operators), 0);
  const auto& absences = unrolled_.absences();
  order_.resize(absences.size());
  for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int>(i);
  const auto ms = [&](int i) {
    return again_ms_[static_cast<std::size_t>(absences[static_cast<std::size_t>(i)].gap)];
  };
  // Those of one gap stay together, in their order.
  std::ranges::stable_sort(order_, [&](int a, int b) {
    return ms(a) != ms(b) ? ms(a) > ms(b)
                          : absences[static_cast<std::size_t>(a)].gap <
                                absences[static_cast<std::size_t>(b)].gap;
  });
  bool less = false;
  for (std::size_t i = 0; i < order_.size();) {
    const int gap = absences[static_cast<std::size_t>(order_[i])].gap;
    const Bytes bytes = own_model_.gaps[static_cast<std::size_t>(gap)].bytes;
    std::size_t end = i;
    std::size_t fits = 0;
    bool first_fits = false;
    for (; end < order_.size(); ++end) {
      const auto& absence = absences[static_cast<std::size_t>(order_[end])];
      if (absence.gap != gap) break;
      const bool fit = room(absence, bytes);
      if (fit && end == i) first_fits = true;
      if (fit) ++fits;
    }
    const std::size_t all = end - i;
    const bool undrop = fits == all;
    const bool hold = !undrop && all > 1 && fits + (first_fits ? 0 : 1) == all;
    if (undrop || hold) {
      less = true;
      const auto g = static_cast<std::size_t>(gap);
      if (undrop) candidate.drops.dropped[g] = 0;
      candidate.drops.hold_ms[g] = std::numeric_limits<float>::infinity();
      for (std::size_t j = undrop ? i : i + 1; j < end; ++j) {
        const auto& absence = absences[static_cast<std::size_t>(order_[j])];
        for (int op = absence.from; op < absence.to; ++op) {
          taken_back_[static_cast<std::size_t>(op) + 1] += bytes;
        }
      }
    }
    i = end;
  }
  return less;
}

void Trial::drop_none_there(Candidate& candidate) {
  bool found = false;
  const int at = evictions_->fullest() - 1;
  if (at >= 0 && at < static_cast<int>(unrolled_.trace().operators.size())) {
    for (const auto& absence : unrolled_.absences()) {
      if (absence.to >= static_cast<int>(unrolled_.trace().operators.size()) ||
          unrolled_.moment(absence.to) != unrolled_.moment(at)) {
        continue;
      }
      candidate.drops.dropped[static_cast<std::size_t>(absence.gap)] = 0;
      found = true;
    }
  }
  if (!found) std::ranges::fill(candidate.drops.dropped, char{0});
}

void Trial::keep_swaps(Candidate& candidate) {
  const auto each = [&](bool chosen, char to) {
    for (const int g : evictions_->useful()) {
      const int own = own_[static_cast<std::size_t>(g)];
      if (own < 0 || candidate.drops.dropped[static_cast<std::size_t>(own)] != 0) continue;
      if (!chosen || evictions_->has(g)) candidate.swaps[static_cast<std::size_t>(own)] = to;
    }
  };
  each(/*chosen=*/false, 0);
  each(/*chosen=*/true, 1);
}

int Trial::actions() const {
  return evictions_->copies() + model_->operators - own_model_.operators;
}

double Trial::run(Candidate& candidate, std::mt19937_64& random, double randomness, bool thin) {
  bool may_drop = true;
  for (int pass = 0;; ++pass) {
    if (pass >= kMostPasses) may_drop = false;
    if (!choose(candidate, random, randomness, may_drop)) {
      drop_none_there(candidate);
      may_drop = false;
      continue;
    }
    if (drop_more(candidate)) continue;
    if (thin && pass < kMostPasses) {
      thin = false;
      if (drop_less(candidate)) continue;
      evictions_->thin();
    }
    break;
  }
  keep_swaps(candidate);
  tactics_ = candidate.tactics;
  if (!candidate.tactics.delays.empty()) {
    tactics_.delays.assign(model_->gaps.size(), 0);
    for (std::size_t g = 0; g < own_.size(); ++g) {
      if (own_[g] < 0) continue;
      tactics_.delays[g] = candidate.tactics.delays[static_cast<std::size_t>(own_[g])];
    }
  }
  scheduler_.emplace(*model_, link_, budget_, fullest(*model_));
  return scheduler_->run(*evictions_, tactics_);
}

}  // namespace lms
