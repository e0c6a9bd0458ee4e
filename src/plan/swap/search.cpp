#include "plan/swap/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <tuple>

#include "plan/swap/eviction_set.h"
#include "plan/swap/scheduler.h"
#include "plan/swap/trials.h"

namespace lms {
namespace {

/// How much worse than the best a trial may be in the beginning, in parts of the step.
constexpr double kSwapFirstTemperature = 0.003;
/// Operators do not take to the microsecond what the trace says.
constexpr double kSwapLeastLead = 0.5;

class Search {
 public:
  Search(const Trace& trace, Bytes budget, const LinkModel& link, const SearchOptions& options)
      : trace_(trace), budget_(budget), link_(link), model_(trace), trials_(options) {}

  PlannedStep run() {
    EvictionSet evictions(model_, budget_);
    evictions.check(trace_);
    if (evictions.useful().empty()) return timed({});
    group(evictions.useful());
    Scheduler scheduler(model_, link_, budget_, fullest());
    evictions.repair(trials_.random(), 0);
    evictions.thin();
    Tactics tactics;
    double cost = scheduler.run(evictions, tactics);
    double best = cost;
    Plan best_plan = scheduler.plan();
    const double first_temperature = kSwapFirstTemperature * cost;
    for (std::int64_t round = 0; trials_.goes_on(round); ++round) {
      const double temperature = first_temperature * (1 - trials_.progress(round));
      Tactics trial = tactics;
      evictions.mark();
      mutate(evictions, trial);
      const double now = scheduler.run(evictions, trial);
      if (!trials_.accepts(now, cost, temperature)) {
        evictions.undo();
        continue;
      }
      std::swap(tactics, trial);
      cost = now;
      if (now < best) {
        best = now;
        best_plan = scheduler.plan();
      }
    }
    return timed(std::move(best_plan));
  }

 private:
  PlannedStep timed(Plan plan) {
    PlannedStep result;
    result.predicted = time_plan(trace_, plan, link_);
    result.plan = std::move(plan);
    return result;
  }

  [[nodiscard]] int fullest() const {
    int worst = 0;
    for (int op = 1; op < model_.operators; ++op) {
      if (model_.during(op) > model_.during(worst)) worst = op;
    }
    return worst;
  }

  /// Gaps between operators of the same names, in order: what the layers of a network repeat.
  void group(const std::vector<int>& useful) {
    std::map<std::tuple<std::string, std::string, bool>, std::vector<int>> groups;
    const auto name = [&](int place) { return name_at(trace_, model_, place); };
    for (const int g : useful) {
      const Gap& gap = model_.gaps[static_cast<std::size_t>(g)];
      groups[{name(gap.begin + model_.operators - 1), name(gap.end), gap.end > model_.operators}]
          .push_back(g);
    }
    for (auto& [key, gaps] : groups) {
      std::ranges::stable_sort(
          gaps, {}, [&](int g) { return model_.gaps[static_cast<std::size_t>(g)].begin; });
      groups_.push_back(std::move(gaps));
    }
  }

  void mutate(EvictionSet& evictions, Tactics& tactics) {
    const auto& useful = evictions.useful();
    switch (trials_.any(8)) {
      case 0:
        tactics.lead_ms =
            std::clamp(tactics.lead_ms * std::exp(trials_.uniform(-1, 1)), kSwapLeastLead, 1000.0);
        return;
      case 1:
      case 2: {
        const int shift = trials_.any(5) == 0 ? 0 : trials_.any(41) - 20;
        tactics.delays.resize(model_.gaps.size());
        for (const int g : trials_.stretch(groups_))
          tactics.delays[static_cast<std::size_t>(g)] = shift;
        return;
      }
      case 3:
        for (const int g : trials_.stretch(groups_)) evictions.add(g);
        return;
      case 4:
        for (const int g : trials_.stretch(groups_)) evictions.remove(g);
        evictions.repair(trials_.random(), 0.5);
        return;
      case 5:
        for (const int g : trials_.stretch(groups_)) {
          if (evictions.can_spare(g)) evictions.remove(g);
        }
        return;
      default:
        break;
    }
    const int g = useful[static_cast<std::size_t>(trials_.any(useful.size()))];
    if (evictions.has(g)) {
      evictions.remove(g);
      evictions.repair(trials_.random(), 0.8);
      return;
    }
    evictions.add(g);
    for (int tries = 0; tries < 20; ++tries) {
      const int other = useful[static_cast<std::size_t>(trials_.any(useful.size()))];
      if (other == g || !evictions.has(other) || !evictions.can_spare(other)) continue;
      evictions.remove(other);
      return;
    }
  }

  const Trace& trace_;
  const Bytes budget_;
  const LinkModel& link_;
  const StepModel model_;
  Trials trials_;
  std::vector<std::vector<int>> groups_;
};

}  // namespace

PlannedStep make_swap_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                           const SearchOptions& options) {
  return Search(trace, budget, link, options).run();
}

}  // namespace lms
