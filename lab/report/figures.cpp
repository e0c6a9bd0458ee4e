#include "lab/report/figures.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "lab/report/figure_parts.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kWorthSaying = 0.03;  ///< of a rate

Curve empty_curve(const std::string& method) {
  const Look look = look_of(method);
  return {look.name, look.token, look.shape, false, {}};
}

void add_borders(LineChart& chart, const Panel& panel) {
  for (const Maximum& maximum : panel.maxima) {
    if (!maximum.ended()) continue;
    const Look look = look_of(maximum.method);
    const Failure& failure = *panel.failure(maximum.method);
    const bool told = !failure.why.empty() && (failure.why != "oom" || is_an_end(failure));
    const std::string why = told ? ": " + short_reason(failure) : "";
    chart.borders.push_back(
        {maximum.value, look.name + " " + panel.end(maximum) + why, look.token});
  }
}

/// Published rates, at the same multiples of our maximum and of our rate in memory.
void add_published_rates(LineChart& chart, const Study& study, const Panel& panel) {
  if (study.published == nullptr || panel.reference == nullptr) return;
  for (const Goal& goal : study.published->goals) {
    if (goal.measure != Goal::Measure::kRate || !goal.published_least || !goal.from || !goal.to ||
        (goal.over == "side") != panel.over_side) {
      continue;
    }
    const auto from = panel.x_of_factor(*goal.from);
    const auto to = panel.x_of_factor(*goal.to);
    if (!from || !to) continue;
    chart.remarks.push_back({*from, *to, *panel.reference->rate() * (1 + *goal.published_least),
                             "published " + format_change(*goal.published_least)});
  }
}

std::string gpus_of(const Panel& panel) {
  std::set<std::string> gpus;
  for (const Record* run : panel.runs) {
    if (run->ok() && !run->of_machine("gpu").empty()) gpus.insert(run->of_machine("gpu"));
  }
  if (gpus.size() < 2) return {};
  std::string text;
  for (const std::string& gpu : gpus) text += (text.empty() ? "" : ", ") + gpu;
  return " Measured on several GPUs, which are not compared with each other: " + text + ".";
}

/// The last in memory may be a slow one.
std::string fastest_of(const Panel& panel) {
  const Record* fastest = panel.reference;
  for (const Record* run : panel.runs) {
    if (run->method != "plain" || !run->ok() || !panel.rate_change(*run)) continue;
    if (*run->rate() > *fastest->rate()) fastest = run;
  }
  const double more = *panel.rate_change(*fastest);
  if (more < kWorthSaying) return {};
  return ", which is " + format_share(1 - 1 / (1 + more)) + " below that at " +
         panel.name(*fastest);
}

std::string rate_says(const Panel& panel) {
  const Maximum* memory = panel.maximum("plain");
  const Maximum* ours = panel.maximum("lms");
  const Failure* end = panel.failure("lms");
  const std::string ending =
      end == nullptr ? "" : " LMS did not run at " + panel.reason(*end) + ".";
  if (ours == nullptr) return (ending.empty() ? "" : ending.substr(1)) + gpus_of(panel);
  std::string text;
  if (memory != nullptr) {
    text = memory->ended()
               ? "In memory " + panel.end(*memory) + "; "
               : "In memory, nothing above " + panel.name(memory->value) + " was tried; ";
  }
  text += "LMS runs at " + panel.name(ours->value);
  if (ours->factor) text += ", " + format_factor(*ours->factor) + " the " + grown(panel);
  text += ".";
  const Record* last = nullptr;
  for (const Record* run : panel.runs) {
    if (run->method == "lms" && run->ok() && panel.rate_change(*run)) last = run;
  }
  if (last != nullptr) {
    const double change = *panel.rate_change(*last);
    const bool there = panel.x(*last) == ours->value;
    text += (there ? " Its rate there is " : " Its rate at " + panel.name(*last) + " is ") +
            format_share(std::fabs(change)) + (change < 0 ? " below" : " above") +
            " the last in memory" + fastest_of(panel) + ".";
  }
  return text + ending + gpus_of(panel);
}

void add_rate(std::vector<Figure>& figures, const Study& study, const Panel& panel,
              const std::string& id) {
  LineChart chart;
  chart.x_title = size_title(panel);
  chart.y_title = per_second(panel);
  chart.x_format = size_format(panel);
  chart.whole = !panel.over_side;
  chart.y_format = format_number;
  std::size_t points = 0;
  for (const std::string& method : panel.methods()) {
    Curve curve = empty_curve(method);
    for (const Record* run : panel.runs) {
      const auto x = panel.x(*run);
      const auto rate = rate_in(panel, *run);
      if (run->method != method || !x || !rate) continue;
      std::string tip = curve.name + " at " + panel.name(*run) + times(panel, *x) + ": " +
                        format_number(*rate) + " " + per_second(panel);
      if (const auto change = panel.rate_change(*run)) tip += ", " + format_change(*change);
      if (run->rate_spread) tip += "; spread " + format_share(*run->rate_spread);
      if (run->partial) tip += "; ended after the timed steps";
      curve.points.push_back({*x, *rate, tip});
    }
    points += curve.points.size();
    if (!curve.points.empty()) chart.curves.push_back(std::move(curve));
  }
  if (points == 0) return;
  add_borders(chart, panel);
  add_published_rates(chart, study, panel);
  chart.second = multiples(panel);
  if (!chart.second.empty()) chart.second_title = "times the in-memory maximum";
  std::string description = "Lines: " + per_second(panel) + " by size, one line a method. ";
  for (const Curve& curve : chart.curves) {
    description += curve.name + ": " + format_number(curve.points.front().y) + " at " +
                   panel.name(curve.points.front().x) + " to " +
                   format_number(curve.points.back().y) + " at " +
                   panel.name(curve.points.back().x) + ". ";
  }
  for (const Border& border : chart.borders) description += border.label + ". ";
  for (const Remark& remark : chart.remarks) {
    description +=
        remark.label + " from " + panel.name(remark.from) + " to " + panel.name(remark.to) + ". ";
  }
  figures.push_back(lines_or_bars(
      id + "-rate", "Data rate over " + std::string(panel.over_side ? "resolution" : "batch"),
      rate_says(panel), description, std::move(chart)));
  figures.back().whole_row = true;
}

Bar maximum_bar(const Panel& panel, const Maximum& maximum) {
  const Look look = look_of(maximum.method);
  Bar bar;
  bar.name = look.name;
  bar.token = look.token;
  bar.value = maximum.factor;
  bar.text = format_factor(maximum.factor.value_or(0)) + " · " + panel.name(maximum.value);
  bar.tip = look.name + ": " + bar.text;
  if (maximum.ended()) {
    bar.tip += "; did not run at " + panel.reason(*panel.failure(maximum.method));
  } else {
    bar.tip += "; nothing larger was tried";
  }
  const Failure* failure = panel.failure(maximum.method);
  const bool told = failure != nullptr && is_an_end(*failure);
  // The end of what users do today is not to look nearer than it may be.
  if (told) {
    bar.text += ", " + short_reason(*failure);
  } else if (maximum.ended() && !panel.found(maximum)) {
    bar.text += " to " + panel.name(*maximum.failed);
  }
  if (!maximum.ended()) bar.text += ", or more";
  return bar;
}

/// Published maxima beside ours, which get strokes for what is to be reached. Returns what the
/// figure says of them.
std::string add_published_maxima(Group& group, const Study& study, const Panel& panel) {
  std::string says;
  if (study.published == nullptr) return says;
  for (const Goal& goal : study.published->goals) {
    if (goal.measure != Goal::Measure::kFactor || !goal.published_least ||
        (goal.over == "side") != panel.over_side) {
      continue;
    }
    Bar bar;
    bar.name = "published";
    bar.token = "published";
    bar.hollow = true;
    bar.value = goal.published_least;
    bar.text = format_factor(*goal.published_least);
    bar.tip = "published: " + bar.text + ", " + goal.where + "; " + study.published->hardware;
    group.bars.push_back(std::move(bar));
    says += "Published: " + goal.where + ".";
    if (goal.target) {
      for (Bar& each : group.bars) {
        if (each.token == "lms") each.strokes.push_back({*goal.target, "bound", "to reach"});
      }
    }
  }
  return says;
}

void add_maxima(std::vector<Figure>& figures, const Study& study, const Panel& panel,
                const std::string& id) {
  if (panel.maxima.empty() || !panel.maxima.front().factor) return;
  BarChart chart;
  chart.title = "times the in-memory maximum, in " + grown(panel);
  chart.format = format_factor;
  Group group;
  for (const Maximum& maximum : panel.maxima) group.bars.push_back(maximum_bar(panel, maximum));
  for (const Failure& failure : panel.failures) {
    if (panel.maximum(failure.method) != nullptr) continue;
    const Look look = look_of(failure.method);
    Bar bar;
    bar.name = look.name;
    bar.text = "none ran; " + panel.name(failure.x) + ": " + short_reason(failure);
    group.bars.push_back(std::move(bar));
  }
  std::string says;
  for (const Failure& failure : panel.failures) {
    if (!failure.method.starts_with("lms") || !is_an_end(failure)) continue;
    says += look_of(failure.method).name + " did not run at " + panel.reason(failure) + ". ";
  }
  says += add_published_maxima(group, study, panel);
  std::string description = "Bars: ";
  for (const Bar& bar : group.bars) description += bar.name + " " + bar.text + ". ";
  chart.groups.push_back(std::move(group));
  figures.push_back(figure(id + "-maximum",
                           panel.over_side ? "Largest resolution" : "Largest batch", says,
                           description, std::move(chart)));
}

/// Sizes at which a method of ours runs that memory alone does not hold.
std::set<double> sizes_past_memory(const Panel& panel) {
  std::set<double> sizes;
  const double memory = panel.maximum("plain") ? panel.maximum("plain")->value : 0;
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    if (run->method.starts_with("lms") && run->ok() && x && *x > memory && panel.overhead(*run)) {
      sizes.insert(*x);
    }
  }
  return sizes;
}

Bar overhead_bar(const Panel& panel, const Record& run, const std::string& where) {
  const Look look = look_of(run.method);
  Bar bar;
  bar.name = look.name;
  bar.token = look.token;
  bar.value = run.ok() ? panel.overhead(run) : std::nullopt;
  bar.text = bar.value ? format_change(*bar.value) : outcome_text(run.outcome);
  if (run.ok() && !bar.value) bar.text = "not known";
  bar.tip = look.name + " at " + where + ": " + bar.text;
  const auto bound = panel.overhead_of(run, run.bound);
  const auto predicted = panel.overhead_of(run, run.predicted);
  if (bar.value && bound) bar.strokes.push_back({*bound, "bound", "bound"});
  if (bar.value && predicted) bar.strokes.push_back({*predicted, "predicted", "predicted"});
  if (bound) bar.tip += "; bound " + format_change(*bound);
  if (predicted) bar.tip += "; predicted " + format_change(*predicted);
  return bar;
}

Bar published_overhead_bar(const PublishedOverhead& published) {
  Bar bar;
  bar.name = published.size + ", " + published.link;
  bar.token = "published";
  bar.hollow = true;
  bar.value = published.value;
  bar.text = format_change(published.value);
  return bar;
}

/// Where the axis ends, if what is dearer by far would leave no room to see the rest.
std::optional<double> cut_off(double ours, const std::vector<double>& others) {
  double kept = ours;
  bool beyond = false;
  for (const double other : others) {
    if (other > 4 * ours) {
      beyond = true;
    } else {
      kept = std::max(kept, other);
    }
  }
  return beyond ? std::optional(1.3 * kept) : std::nullopt;
}

void add_overheads(std::vector<Figure>& figures, const Study& study, const Panel& panel,
                   const std::string& id) {
  const std::set<double> sizes = sizes_past_memory(panel);
  if (sizes.empty()) return;
  BarChart chart;
  chart.title = "time per sample over that in memory";
  chart.format = format_change;
  double ours = 0.1;
  std::vector<double> others;
  std::string description = "Bars, by size and method: ";
  for (const double size : selected(sizes)) {
    Group group;
    const auto factor = panel.factor(size);
    group.name = panel.name(size) + (factor ? " · " + format_factor(*factor) : "");
    for (const Record* run : panel.runs) {
      if (panel.x(*run) != size || run->method == "plain") continue;
      Bar bar = overhead_bar(panel, *run, group.name);
      if (bar.value) {
        if (run->method.starts_with("lms")) {
          ours = std::max(ours, *bar.value);
        } else {
          others.push_back(*bar.value);
        }
      }
      description += group.name + ", " + bar.name + " " + bar.text + ". ";
      group.bars.push_back(std::move(bar));
    }
    chart.groups.push_back(std::move(group));
  }
  if (study.published != nullptr && !study.published->overheads.empty()) {
    Group group{"published", {}};
    for (const PublishedOverhead& published : study.published->overheads) {
      Bar bar = published_overhead_bar(published);
      description += "Published, " + bar.name + " " + bar.text + ". ";
      group.bars.push_back(std::move(bar));
      ours = std::max(ours, published.value);
    }
    chart.groups.push_back(std::move(group));
  }
  chart.most = cut_off(ours, others);
  std::string says = "Against the last run in memory";
  if (panel.reference != nullptr) {
    says += ", " + size_text(*panel.reference) +
            (panel.reference->batch ? " at batch " + coordinate(*panel.reference->batch) : "");
  }
  says += ".";
  figures.push_back(figure(id + "-overhead", "What it costs", says, description, std::move(chart)));
}

}  // namespace

std::string grown(const Panel& panel) {
  if (!panel.over_side) return "batch";
  return panel.dimensions == 3 ? "voxels" : "pixels";
}

std::string slug(std::string_view text) {
  std::string slug;
  for (const char letter : text) {
    const bool letter_or_digit = (letter >= 'a' && letter <= 'z') ||
                                 (letter >= 'A' && letter <= 'Z') ||
                                 (letter >= '0' && letter <= '9');
    if (letter_or_digit) {
      slug += static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter + 32 : letter);
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
    if (slug.size() >= 60) break;
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  return slug.empty() ? "x" : slug;
}

std::string panel_id(const Study& study, const Panel& panel) {
  return slug(study.name + " " + panel.series + " " + panel.model + " " + panel.precision + " " +
              (panel.cap ? format_memory(*panel.cap) : ""));
}

std::vector<Figure> figures_of(const Study& study, const Panel& panel) {
  const std::string id = panel_id(study, panel);
  std::vector<Figure> figures;
  add_rate(figures, study, panel, id);
  add_maxima(figures, study, panel, id);
  add_overheads(figures, study, panel, id);
  add_resources(figures, study, panel, id);
  return figures;
}

}  // namespace lms::report
