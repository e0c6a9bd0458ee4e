#include "plan/recompute/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <tuple>

#include "base/error.h"
#include "plan/recompute/candidate.h"
#include "plan/recompute/coarse.h"
#include "plan/recompute/trial.h"
#include "plan/swap/trials.h"

namespace lms {
namespace {

/// How much worse than the best a trial may be in the beginning, in parts of the step.
constexpr double kFirstTemperature = 0.003;
/// The same, in parts of it, if there was a plan to start from.
constexpr double kFromStart = 0.3;
/// Operators do not take to the microsecond what the trace says.
constexpr double kLeastLead = 0.5;
/// Of plans that are as fast, the one that computes less again: what a millisecond of it counts.
constexpr double kRecomputing = 0.002;
/// Most part of the time for the first plans from nothing.
constexpr double kForFirst = 0.5;
/// The rules by which a first plan is made.
struct Rules {
  double breadth = 0.3;         ///< Candidate::breadth
  double moved = kMovedFreely;  ///< Candidate::moved
  double price = 0.05;          ///< Candidate::lane_price
  double hold = 0;              ///< Drops::ghost_hold_ms, in parts of the step
  double each = 0;              ///< Candidate::each_ms, in parts of what an action costs,
  double host = 0;              ///< and of what it costs the host
};
/// What is tried, one rule after the other, twice.
constexpr std::array kFirstRules{
    std::array{0.3, 1.0, 0.05, 0.1}, std::array{kMovedFreely, 1.1, 0.9, 0.6},
    std::array{0.02, 0.1, 0.4, 0.2}, std::array{0.01, 0.003, 0.03, 0.1},
    std::array{1.0, 0.3, 3.0, 0.1},  std::array{0.1, 0.3, 1.0, 0.03}};
/// How far the choice of what goes may be from what seems best.
constexpr std::array kRandomness{0.0, 0.1, 0.5};
constexpr double kLeastPrice = 0.005;

/// What it counts that a plan does something: copies a block, or computes one again.
struct Acting {
  double ms = 0;       ///< beside the time that it takes on the device
  double host_ms = 0;  ///< that the step is longer for it, in about: 0 while the host is ahead
};

/// It takes 25 to 57 us of the host (lab/results/recompute.md), which is nothing while the host is
/// ahead of the device, as it is if operators are long. Where it is known what the host takes,
/// times of plans have it in them; the choice of what goes reckons with it as far as the step waits
/// for the host anyway.
Acting acting_on(const Trace& trace, const LinkModel& link) {
  constexpr double kMost = 0.003;
  constexpr double kLeast = 0.0003;
  constexpr double kShort = 0.043;  // in milliseconds: what the host takes for an operator
  constexpr double kLong = 0.086;
  constexpr double kAhead = 0.9;  // of the device's time: the host is ahead
  double sum = 0;
  for (const TraceOperator& op : trace.operators) sum += op.ms;
  const double each = sum / std::max<double>(1, static_cast<double>(trace.operators.size()));
  const double part = trace.host_ms() / std::max(sum, 1e-9);
  return {.ms = std::clamp(kMost * (kLong - each) / (kLong - kShort), kLeast, kMost),
          .host_ms = std::clamp((part - kAhead) / (1 - kAhead), 0.0, 1.0) *
                     std::max(link.host.copy_ms, link.host.remake_ms)};
}

class MixedSearch {
 public:
  MixedSearch(const Trace& trace, Bytes budget, const LinkModel& link, const SearchOptions& options,
              const Acting& acting)
      : trace_(trace),
        options_(options),
        acting_(acting),
        model_(trace),
        derivations_(trace),
        trial_(trace, model_, derivations_, link, budget),
        evictions_(model_, budget),
        trials_(options) {}

  Plan run() {
    evictions_.check(trace_);
    if (evictions_.useful().empty()) return {};
    find_candidates();
    group();
    Candidate candidate = first_candidate();
    double cost = best_;
    const double first_temperature =
        kFirstTemperature * cost * (options_.start != nullptr ? kFromStart : 1);
    Candidate trial;
    for (std::int64_t round = 0; trials_.goes_on(round); ++round) {
      const double temperature = first_temperature * (1 - trials_.progress(round));
      trial = candidate;
      mutate(trial);
      const double randomness = kRandomness.at(static_cast<std::size_t>(any(kRandomness.size())));
      const double now = attempt(trial, randomness, any(2) == 0);
      if (!trials_.accepts(now, cost, temperature)) continue;
      std::swap(candidate, trial);
      cost = now;
    }
    return best_plan_;
  }

 private:
  double attempt(Candidate& candidate, double randomness, bool thin) {
    const double ms = trial_.run(candidate, trials_.random(), randomness, thin);
    const double cost = ms + kRecomputing * trial_.recomputed_ms() + acting_.ms * trial_.actions();
    if (cost < best_) {
      best_ = cost;
      best_plan_ = trial_.plan();
    }
    return cost;
  }

  int any(std::size_t size) { return trials_.any(size); }
  double uniform(double from, double to) { return trials_.uniform(from, to); }
  std::span<const int> stretch(const std::vector<std::vector<int>>& groups) {
    return trials_.stretch(groups);
  }
  [[nodiscard]] const Gap& gap(int g) const { return model_.gaps[static_cast<std::size_t>(g)]; }

  void find_candidates() {
    for (const int g : evictions_.useful()) {
      if (trial_.can_drop(g)) candidates_.push_back(g);
    }
  }

  /// Gaps between operators of the same names of blocks that operators of the same name made, in
  /// order: what the layers of a network repeat.
  void group() {
    std::vector<std::size_t> makers(trace_.blocks.size(), trace_.operators.size());
    for (std::size_t at = 0; at < trace_.operators.size(); ++at) {
      for (const TraceBlockId id : trace_.operators[at].allocs) makers[id] = at;
    }
    std::map<std::tuple<std::string, std::string, std::string, Bytes, bool>, std::vector<int>>
        groups;
    const auto name = [&](int place) { return name_at(trace_, model_, place); };
    for (const int g : evictions_.useful()) {
      groups[{name(static_cast<int>(makers[gap(g).block]) + 1),
              name(gap(g).begin + model_.operators - 1), name(gap(g).end), gap(g).bytes,
              trial_.can_drop(g)}]
          .push_back(g);
    }
    for (auto& [key, gaps] : groups) {
      std::ranges::stable_sort(gaps, {}, [&](int g) { return gap(g).begin; });
      if (std::get<4>(key)) drop_groups_.push_back(gaps);
      groups_.push_back(std::move(gaps));
    }
    std::map<std::pair<std::string, Bytes>, std::vector<int>> ghosts;
    for (const TraceBlockId id : trial_.ghosts()) {
      ghosts[{name(static_cast<int>(makers[id]) + 1), trace_.blocks[id].bytes}].push_back(
          static_cast<int>(id));
    }
    for (auto& [key, blocks] : ghosts) ghost_groups_.push_back(std::move(blocks));
  }

  /// From nothing, at several prices of the lanes.
  Candidate first_candidate() {
    Candidate best;
    double least = std::numeric_limits<double>::infinity();
    if (options_.start != nullptr) {
      best = candidate_of(*options_.start, trace_, model_);
      least = attempt(best, 0, false);
    }
    const auto consider = [&](const Rules& rules) {
      Candidate candidate = empty_candidate(trace_, model_);
      candidate.lane_price = rules.price;
      candidate.breadth = rules.breadth;
      candidate.moved = rules.moved;
      candidate.each_ms = rules.each * acting_.ms + rules.host * acting_.host_ms;
      std::ranges::fill(candidate.drops.ghost_hold_ms,
                        static_cast<float>(rules.hold * model_.begins.back()));
      const double cost = attempt(candidate, 0, true);
      if (cost >= least) return false;
      least = cost;
      best = std::move(candidate);
      return true;
    };
    const auto may_try = [&] {
      return best.swaps.empty() ||
             (trials_.goes_on(0) && trials_.spent() < kForFirst * options_.seconds);
    };
    Rules rules;
    double* const knobs[] = {&rules.breadth, &rules.moved, &rules.price,
                             &rules.hold,    &rules.each,  &rules.host};
    const std::size_t matter = kFirstRules.size() - (acting_.host_ms > 0 ? 0 : 1);
    for (int round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < matter; ++i) {
        double chosen = *knobs[i];
        for (const double value : kFirstRules[i]) {
          if (!may_try()) return best;
          *knobs[i] = value;
          if (consider(rules)) chosen = value;
        }
        *knobs[i] = chosen;
      }
    }
    return best;
  }

  float any_hold() {
    switch (any(3)) {
      case 0:
        return 0;
      case 1:
        return kHoldForever;
      default:
        return static_cast<float>(model_.begins.back() * std::exp(uniform(-7, -0.7)));
    }
  }

  static void clear_all(Candidate& candidate) {
    std::ranges::fill(candidate.drops.dropped, char{0});
    std::ranges::fill(candidate.swaps, char{0});
  }

  void set_dropped(Candidate& candidate, int g, bool dropped) {
    candidate.drops.dropped[static_cast<std::size_t>(g)] = dropped ? 1 : 0;
    if (!dropped) candidate.swaps[static_cast<std::size_t>(g)] = any(2) == 0 ? 1 : 0;
  }

  void mutate(Candidate& candidate) {
    const auto one = [&](const std::vector<int>& list) {
      return list[static_cast<std::size_t>(any(list.size()))];
    };
    const auto clear = [&](int g) {
      candidate.drops.dropped[static_cast<std::size_t>(g)] = 0;
      candidate.swaps[static_cast<std::size_t>(g)] = 0;
    };
    const int kind = any(17);
    if (kind < 5) {
      // Something goes, what is best instead comes.
      for (int count = 1 + any(3); count > 0; --count) clear(one(evictions_.useful()));
    } else if (kind < 7) {
      for (const int g : stretch(groups_)) clear(g);
    } else if (kind == 7) {
      const int at = any(static_cast<std::size_t>(model_.operators));
      const int width = 1 + static_cast<int>(model_.operators * std::exp(uniform(-5, -1)));
      for (const int g : evictions_.useful()) {
        if (std::abs(gap(g).end - at) < width) clear(g);
      }
    } else if (kind < 10 && !candidates_.empty()) {
      const int g = one(candidates_);
      set_dropped(candidate, g, candidate.drops.dropped[static_cast<std::size_t>(g)] == 0);
    } else if (kind == 10 && !candidates_.empty()) {
      const bool dropped = any(2) == 0;
      for (const int g : stretch(drop_groups_)) set_dropped(candidate, g, dropped);
    } else if (kind == 11 && !candidates_.empty()) {
      const float hold = any_hold();
      if (!ghost_groups_.empty() && any(3) == 0) {
        for (const int id : stretch(ghost_groups_)) {
          candidate.drops.ghost_hold_ms[static_cast<std::size_t>(id)] = hold;
        }
        return;
      }
      for (const int g : stretch(drop_groups_)) {
        candidate.drops.hold_ms[static_cast<std::size_t>(g)] = hold;
      }
    } else if (kind == 16) {
      // All anew, by other rules.
      clear_all(candidate);
      candidate.breadth = std::min(1.0, uniform(0, 1.5));
      candidate.each_ms = any(3) == 0 ? 0 : acting_.ms * std::exp(uniform(-2, 1));
      if (acting_.host_ms > 0 && any(2) == 0) {
        candidate.each_ms += acting_.host_ms * std::exp(uniform(-3, 0));
      }
      candidate.moved = std::clamp(candidate.moved, 0.5, 2.0) * std::exp(uniform(-0.2, 0.2));
      if (any(3) == 0) candidate.moved = kMovedFreely;
    } else if (kind == 12) {
      candidate.lane_price = std::max(kLeastPrice, candidate.lane_price) * std::exp(uniform(-1, 1));
    } else if (kind == 13) {
      candidate.tactics.lead_ms =
          std::clamp(candidate.tactics.lead_ms * std::exp(uniform(-1, 1)), kLeastLead, 1000.0);
    } else if (kind == 14) {
      const int shift = any(5) == 0 ? 0 : any(41) - 20;
      candidate.tactics.delays.resize(model_.gaps.size());
      for (const int g : stretch(groups_)) {
        candidate.tactics.delays[static_cast<std::size_t>(g)] = shift;
      }
    } else {
      const char on = any(2) == 0 ? 1 : 0;
      for (const int g : stretch(groups_)) candidate.swaps[static_cast<std::size_t>(g)] = on;
    }
  }

  const Trace& trace_;
  const SearchOptions& options_;
  const Acting acting_;
  const StepModel model_;
  const Derivations derivations_;
  Trial trial_;
  EvictionSet evictions_;  ///< of the step's own model: which of its gaps are worth anything
  Trials trials_;
  std::vector<int> candidates_;  ///< gaps worth dropping
  std::vector<std::vector<int>> groups_;
  std::vector<std::vector<int>> drop_groups_;
  std::vector<std::vector<int>> ghost_groups_;  ///< of blocks
  double best_ = std::numeric_limits<double>::infinity();
  Plan best_plan_;
};

/// Where the host is what a step waits for, one action less is all that most changes of a plan are
/// worth, and a search among such changes ends anywhere. So what is good on the device alone is
/// looked for first, and the search goes on from there.
Plan search_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                 const SearchOptions& options, const Acting& acting) {
  if (acting.host_ms <= 0 || options.start != nullptr) {
    return MixedSearch(trace, budget, link, options, acting).run();
  }
  Trace on_device = trace;
  for (TraceOperator& op : on_device.operators) op.host_ms = 0;
  SearchOptions half = options;
  half.seconds /= 2;
  if (half.rounds > 0) half.rounds = (half.rounds + 1) / 2;
  const Acting alone{.ms = acting.ms};
  const Plan start = MixedSearch(on_device, budget, link, half, alone).run();
  half.start = &start;
  return MixedSearch(trace, budget, link, half, acting).run();
}

}  // namespace

PlannedStep make_mixed_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                            const SearchOptions& options) {
  const Coarse coarse(trace);
  const Acting acting = acting_on(trace, link);
  SearchOptions inner = options;
  Plan start;
  if (options.start != nullptr) {
    start = coarse.coarsen(*options.start);
    inner.start = &start;
  }
  PlannedStep result;
  try {
    result.plan = coarse.refine(search_plan(coarse.trace, budget, link, inner, acting));
  } catch (const OutOfMemory&) {
    // Thrown once more, with the step's own operator.
    EvictionSet(StepModel(trace), budget).check(trace);
    result.plan = search_plan(trace, budget, link, options, acting);
  }
  result.predicted = time_plan(trace, result.plan, link);
  return result;
}

}  // namespace lms
