#include "plan/swap/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <span>
#include <tuple>

#include "plan/swap/eviction_set.h"
#include "plan/swap/scheduler.h"

namespace lms {
namespace {

using Clock = std::chrono::steady_clock;

/// How much worse than the best a trial may be in the beginning, in parts of the step.
constexpr double kSwapFirstTemperature = 0.003;
/// Operators do not take to the microsecond what the trace says.
constexpr double kSwapLeastLead = 0.5;

class Search {
 public:
  Search(const Trace& trace, Bytes budget, const LinkModel& link, const SearchOptions& options)
      : trace_(trace),
        budget_(budget),
        link_(link),
        options_(options),
        model_(trace),
        random_(options.seed),
        began_(Clock::now()) {}

  PlannedStep run() {
    EvictionSet evictions(model_, budget_);
    evictions.check(trace_);
    if (evictions.useful().empty()) return timed({});
    group(evictions.useful());
    Scheduler scheduler(model_, link_, budget_, fullest());
    evictions.repair(random_, 0);
    evictions.thin();
    Tactics tactics;
    double cost = scheduler.run(evictions, tactics);
    double best = cost;
    Plan best_plan = scheduler.plan();
    std::uniform_real_distribution<double> uniform(0, 1);
    const double first_temperature = kSwapFirstTemperature * cost;
    for (std::int64_t round = 0; goes_on(round); ++round) {
      const double temperature = first_temperature * (1 - progress(round));
      Tactics trial = tactics;
      evictions.mark();
      mutate(evictions, trial);
      const double now = scheduler.run(evictions, trial);
      if (now > cost && uniform(random_) >= std::exp((cost - now) / (temperature + 1e-12))) {
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

  [[nodiscard]] double spent() const {
    return std::chrono::duration<double>(Clock::now() - began_).count();
  }
  [[nodiscard]] bool goes_on(std::int64_t round) const {
    if (options_.rounds >= 0 && round >= options_.rounds) return false;
    return spent() < options_.seconds;
  }
  [[nodiscard]] double progress(std::int64_t round) const {
    double part = spent() / std::max(1e-9, options_.seconds);
    if (options_.rounds > 0) {
      part = static_cast<double>(round) / static_cast<double>(options_.rounds);
    }
    return std::min(1.0, part);
  }

  int any(std::size_t size) {
    return static_cast<int>(std::uniform_int_distribution<std::size_t>(0, size - 1)(random_));
  }

  /// Gaps between operators of the same names, in order: what the layers of a network repeat.
  void group(const std::vector<int>& useful) {
    std::map<std::tuple<std::string, std::string, bool>, std::vector<int>> groups;
    const auto name = [&](int op) {
      const int at = op % model_.operators - 1;
      return at < 0 || at >= static_cast<int>(trace_.operators.size())
                 ? std::string()
                 : trace_.operators[static_cast<std::size_t>(at)].name;
    };
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

  double uniform(double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random_);
  }

  /// A stretch of a group: often one gap, sometimes all.
  std::span<const int> stretch() {
    const std::vector<int>& group = groups_[static_cast<std::size_t>(any(groups_.size()))];
    const auto size = static_cast<double>(group.size());
    const auto count = static_cast<std::size_t>(std::lround(std::exp(uniform(0, std::log(size)))));
    const auto first = static_cast<std::size_t>(any(group.size() - count + 1));
    return std::span(group).subspan(first, count);
  }

  void mutate(EvictionSet& evictions, Tactics& tactics) {
    const auto& useful = evictions.useful();
    switch (any(8)) {
      case 0:
        tactics.lead_ms =
            std::clamp(tactics.lead_ms * std::exp(uniform(-1, 1)), kSwapLeastLead, 1000.0);
        return;
      case 1:
      case 2: {
        const int shift = any(5) == 0 ? 0 : any(41) - 20;
        tactics.delays.resize(model_.gaps.size());
        for (const int g : stretch()) tactics.delays[static_cast<std::size_t>(g)] = shift;
        return;
      }
      case 3:
        for (const int g : stretch()) evictions.add(g);
        return;
      case 4:
        for (const int g : stretch()) evictions.remove(g);
        evictions.repair(random_, 0.5);
        return;
      case 5:
        for (const int g : stretch()) {
          if (evictions.can_spare(g)) evictions.remove(g);
        }
        return;
      default:
        break;
    }
    const int g = useful[static_cast<std::size_t>(any(useful.size()))];
    if (evictions.has(g)) {
      evictions.remove(g);
      evictions.repair(random_, 0.8);
      return;
    }
    evictions.add(g);
    for (int tries = 0; tries < 20; ++tries) {
      const int other = useful[static_cast<std::size_t>(any(useful.size()))];
      if (other == g || !evictions.has(other) || !evictions.can_spare(other)) continue;
      evictions.remove(other);
      return;
    }
  }

  const Trace& trace_;
  const Bytes budget_;
  const LinkModel& link_;
  const SearchOptions& options_;
  const StepModel model_;
  std::mt19937_64 random_;
  const Clock::time_point began_;
  std::vector<std::vector<int>> groups_;
};

}  // namespace

PlannedStep make_swap_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                           const SearchOptions& options) {
  return Search(trace, budget, link, options).run();
}

}  // namespace lms
