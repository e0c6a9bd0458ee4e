#include "plan/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "plan/search_choice.h"
#include "plan/search_decoder.h"

namespace lms {
namespace {

using Clock = std::chrono::steady_clock;

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
    Choice choice(model_, trace_, budget_);
    if (choice.useful().empty()) return timed({});
    Decoder decoder(model_, link_, budget_, fullest());
    choice.repair(random_, 0);
    choice.thin();
    Tactics tactics;
    double cost = decoder.run(choice.chosen(), tactics);
    double best = cost;
    Plan best_plan = decoder.plan();

    std::uniform_real_distribution<double> uniform(0, 1);
    const double first_temperature = 0.01 * cost;
    for (std::int64_t round = 0; goes_on(round); ++round) {
      const double temperature = first_temperature * (1 - progress(round));
      Choice trial = choice;
      Tactics trial_tactics = tactics;
      if (!mutate(trial, trial_tactics)) continue;
      const double now = decoder.run(trial.chosen(), trial_tactics);
      if (now > cost && uniform(random_) >= std::exp((cost - now) / (temperature + 1e-12)))
        continue;
      choice = std::move(trial);
      tactics = trial_tactics;
      cost = now;
      if (now < best) {
        best = now;
        best_plan = decoder.plan();
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

  bool mutate(Choice& choice, Tactics& tactics) {
    const auto& useful = choice.useful();
    const int kind = any(12);
    if (kind == 0) {
      std::uniform_real_distribution<double> factor(-1, 1);
      tactics.lead_ms = std::clamp(tactics.lead_ms * std::exp(factor(random_)), 0.01, 1000.0);
      return true;
    }
    const int g = useful[static_cast<std::size_t>(any(useful.size()))];
    if (kind >= 9) {
      for (int tries = 0; tries < 50; ++tries) {
        const int g = useful[static_cast<std::size_t>(any(useful.size()))];
        if (choice.chosen()[static_cast<std::size_t>(g)] == 0) continue;
        tactics.delays.resize(model_.gaps.size());
        int& delay = tactics.delays[static_cast<std::size_t>(g)];
        delay = any(3) == 0 ? 0 : delay + any(41) - 20;
        return true;
      }
      return false;
    }
    const bool chosen = choice.chosen()[static_cast<std::size_t>(g)] != 0;
    if (!chosen) {
      choice.add(g);
      if (kind < 4) return true;
      for (int tries = 0; tries < 20; ++tries) {
        const int other = useful[static_cast<std::size_t>(any(useful.size()))];
        if (other == g || choice.chosen()[static_cast<std::size_t>(other)] == 0) continue;
        if (choice.can_spare(other)) {
          choice.remove(other);
          break;
        }
      }
      return true;
    }
    choice.remove(g);
    choice.repair(random_, 0.8);
    return choice.chosen()[static_cast<std::size_t>(g)] == 0;
  }

  const Trace& trace_;
  const Bytes budget_;
  const LinkModel& link_;
  const SearchOptions& options_;
  const StepModel model_;
  std::mt19937_64 random_;
  const Clock::time_point began_;
};

}  // namespace

PlannedStep make_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                      const SearchOptions& options) {
  const auto notes = trace.validate();
  if (!notes.empty()) throw Error("make_plan: the trace is inconsistent: " + notes.front());
  return Search(trace, budget, link, options).run();
}

}  // namespace lms
