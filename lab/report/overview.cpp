// The figures that belong to no single panel.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "lab/report/figures.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

std::string goal_name(const Study& study, const Goal& goal, const Panel* panel) {
  const std::string what = panel != nullptr       ? grown(*panel)
                           : goal.over == "batch" ? "batch"
                                                  : "size";
  return study.name + " " + study.title + ": " + what;
}

Figure bars(std::string id, std::string title, std::string says, BarChart chart) {
  Figure made;
  made.id = std::move(id);
  made.title = std::move(title);
  made.says = std::move(says);
  made.description = "Bars: ";
  for (const Group& group : chart.groups) {
    for (const Bar& bar : group.bars) {
      made.description += group.name + ", " + bar.name + " " + bar.text + ". ";
    }
  }
  auto shared = std::make_shared<const BarChart>(std::move(chart));
  made.draw = [shared](double width) { return draw(*shared, width); };
  return made;
}

Bar published_bar(const Study& study, const Goal& goal, double value, const std::string& text) {
  Bar bar;
  bar.name = "published";
  bar.token = "published";
  bar.hollow = true;
  bar.value = value;
  bar.text = text;
  bar.tip = "published: " + text + ", " + goal.where + "; " + study.published->hardware;
  return bar;
}

/// A fraction as rate change, whatever the goal measures: costs of all studies on one scale.
Bar our_cost(const Verdict& verdict) {
  const Look look = look_of("lms");
  Bar bar;
  bar.name = look.name;
  bar.token = look.token;
  bar.value = verdict.value;
  bar.text = format_change(*verdict.value);
  if (verdict.at) bar.text += " at " + format_factor(*verdict.at);
  bar.tip = look.name + ": " + bar.text + ", " + verdict.size;
  if (verdict.goal->target) {
    const double target = *verdict.goal->target;
    const bool rate = verdict.goal->measure == Goal::Measure::kRate;
    bar.strokes.push_back({rate ? 1 / (1 + target) - 1 : target, "bound", "to reach"});
  }
  return bar;
}

/// Drop of the rate as time per sample: −20 % is +25 %.
double as_overhead(double rate_change) { return 1 / (1 + rate_change) - 1; }

std::string short_name(const std::string& method) {
  return method == "lms" ? "copying and recomputing" : "copying alone";
}

void add_steps(std::vector<Figure>& figures, const std::vector<StepRecord>& steps,
               const std::string& method) {
  std::map<std::string, std::vector<const StepRecord*>> by_step;
  std::size_t count = 0;
  std::size_t near = 0;
  std::size_t below = 0;
  for (const StepRecord& step : steps) {
    if (step.method == method && step.ratio && step.overhead) by_step[step.step].push_back(&step);
  }
  BarChart chart;
  chart.title = "time of a step over that in memory";
  chart.format = format_change;
  for (auto& [name, list] : by_step) {
    std::ranges::stable_sort(list, {}, [](const StepRecord* step) { return *step->ratio; });
    Group group{name, {}};
    for (const StepRecord* step : list) {
      Bar bar;
      bar.name = format_number(std::round(*step->ratio * 100) / 100) + "×";
      bar.token = look_of(method).token;
      bar.value = step->overhead;
      bar.text = format_change(*step->overhead);
      bar.tip = name + " at " + bar.name + ": " + bar.text;
      if (const auto bound = step->bound()) {
        bar.strokes.push_back({*bound, "bound", "bound"});
        bar.tip += "; bound " + format_change(*bound);
        ++count;
        if (*step->overhead - *bound <= 0.05) ++near;
        if (*step->overhead < *bound) ++below;
      }
      if (step->predicted) {
        bar.strokes.push_back({*step->predicted, "predicted", "predicted"});
        bar.tip += "; predicted " + format_change(*step->predicted);
      }
      group.bars.push_back(std::move(bar));
    }
    chart.groups.push_back(std::move(group));
  }
  if (chart.groups.empty()) return;
  std::string says = "Rows: the peak in memory over the limit.";
  if (count > 0) {
    says += " " + std::to_string(near) + " of " + std::to_string(count) +
            " runs are within 5 points of what no plan could beat.";
    if (below > 0) {
      says += " " + std::to_string(below) + (below == 1 ? " of them is" : " of them are") +
              " below that: it is computed from the times of another step, which was recorded.";
    }
  }
  figures.push_back(
      bars("bound-" + slug(method), "LMS, " + short_name(method), says, std::move(chart)));
}

Group reach_group(const Study& study, const Verdict& verdict) {
  const Goal& goal = *verdict.goal;
  Group group{goal_name(study, goal, verdict.panel), {}};
  const Look look = look_of("lms");
  Bar bar{look.name, verdict.value, {}, look.token, false, {}, {}};
  bar.tip = look.name + ": ";
  if (verdict.value) {
    bar.text = format_factor(*verdict.value) + " · " + verdict.size;
    if (goal.target) bar.strokes.push_back({*goal.target, "bound", "to reach"});
  } else {
    bar.text = "none ran";
  }
  if (const Failure* failure = verdict.panel->failure("lms")) {
    if (!verdict.value) {
      bar.text += "; " + verdict.panel->name(failure->x) + ": " + short_reason(*failure);
    } else if (is_an_end(*failure)) {
      bar.text += ", " + short_reason(*failure);
    }
  }
  bar.tip += bar.text + ". " + verdict.end;
  group.bars.push_back(std::move(bar));
  if (goal.published_least) {
    group.bars.push_back(
        published_bar(study, goal, *goal.published_least, format_factor(*goal.published_least)));
  }
  return group;
}

Group cost_group(const Study& study, const Verdict& verdict) {
  const Goal& goal = *verdict.goal;
  Group group{goal_name(study, goal, verdict.panel), {}};
  Verdict as_time = verdict;
  const bool rate = goal.measure == Goal::Measure::kRate;
  if (rate) as_time.value = as_overhead(*verdict.value);
  group.bars.push_back(our_cost(as_time));
  if (!goal.published_most) return group;
  const double least = rate ? as_overhead(*goal.published_most) : *goal.published_least;
  const double most = rate ? as_overhead(*goal.published_least) : *goal.published_most;
  std::string text = format_change(most);
  if (most > least + 1e-9) text.insert(0, format_change(least) + " to ");
  Bar bar = published_bar(study, goal, most, text);
  // A range is not its worse end alone.
  if (most > least + 1e-9) bar.strokes.push_back({least, "published", "published, least"});
  group.bars.push_back(std::move(bar));
  return group;
}

}  // namespace

std::vector<Figure> summary_figures(const std::vector<Study>& studies) {
  BarChart reach;
  reach.title = "times the most that fits in memory";
  reach.format = format_factor;
  BarChart cost;
  cost.title = "time per sample over that in memory";
  cost.format = format_change;
  for (const Study& study : studies) {
    for (const Verdict& verdict : study.verdicts) {
      const bool factor = verdict.goal->measure == Goal::Measure::kFactor;
      if (!verdict.value && (!factor || verdict.end.empty())) continue;
      if (factor) {
        reach.groups.push_back(reach_group(study, verdict));
      } else {
        cost.groups.push_back(cost_group(study, verdict));
      }
    }
  }
  std::vector<Figure> figures;
  if (!reach.groups.empty()) {
    figures.push_back(bars("summary-reach", "How far past memory",
                           "Ours, with the cap named in each study, beside the published.",
                           std::move(reach)));
  }
  if (!cost.groups.empty()) {
    figures.push_back(bars("summary-cost", "At what cost",
                           "Time per sample at the multiple given; less is better.",
                           std::move(cost)));
  }
  return figures;
}

std::vector<Figure> bound_figures(const std::vector<StepRecord>& steps) {
  std::vector<Figure> figures;
  add_steps(figures, steps, "lms");
  add_steps(figures, steps, "lms-swap");
  if (!figures.empty()) figures.front().whole_row = true;
  return figures;
}

}  // namespace lms::report
