#include "report/figures.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "report/text.h"

namespace lms::report {
namespace {

constexpr std::size_t kMostGroups = 6;
constexpr std::size_t kMostSteps = 6;  ///< timelines beside the first

/// Of ticks. Knows no runs, as it outlives them.
Format size_format(const Panel& panel) {
  Panel bare;
  bare.over_side = panel.over_side;
  bare.dimensions = panel.dimensions;
  return [bare](double x) { return bare.over_side ? bare.name(x) : format_number(x); };
}

std::string x_title(const Panel& panel) { return panel.over_side ? "side of a sample" : "batch"; }

std::string unit_of(const Panel& panel) {
  for (const auto* runs : {&panel.runs, &panel.linked}) {
    for (const Record* run : *runs) {
      if (!run->unit.empty()) return run->unit;
    }
  }
  return "samples";
}

std::string per_second(const Panel& panel) { return unit_of(panel) + "/s"; }

std::string times(const Panel& panel, double x) {
  const auto factor = panel.factor(x);
  return factor ? " (" + format_factor(*factor) + ")" : "";
}

template <class Chart>
Figure figure(std::string id, std::string title, std::string says, std::string description,
              Chart chart) {
  Figure made;
  made.id = std::move(id);
  made.title = std::move(title);
  made.says = std::move(says);
  made.description = std::move(description);
  // Shared: a std::function is copied, and charts are large.
  auto shared = std::make_shared<const Chart>(std::move(chart));
  made.draw = [shared](double width) { return draw(*shared, width); };
  return made;
}

Curve empty_curve(const std::string& method) {
  const Look look = look_of(method);
  return {look.name, look.token, look.shape, false, {}};
}

/// Lines need two sizes; of one, bars say the same.
Figure lines_or_bars(std::string id, std::string title, std::string says, std::string description,
                     LineChart chart) {
  std::set<double> sizes;
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) sizes.insert(point.x);
  }
  if (sizes.size() != 1) {
    return figure(std::move(id), std::move(title), std::move(says), std::move(description),
                  std::move(chart));
  }
  BarChart bars;
  bars.title = chart.y_title;
  bars.format = chart.y_format;
  bars.most = chart.y_top;
  const double size = *sizes.begin();
  Group group{(chart.whole ? "batch " : "") + chart.x_format(size), {}};
  for (const Curve& curve : chart.curves) {
    for (const Point& point : curve.points) {
      group.bars.push_back(
          {curve.name, point.y, chart.y_format(point.y), curve.token, false, {}, point.tip});
    }
  }
  bars.groups.push_back(std::move(group));
  return figure(std::move(id), std::move(title), std::move(says), std::move(description),
                std::move(bars));
}

/// 1×, 2×, 4×… up to the largest size.
std::vector<std::pair<double, std::string>> multiples(const Panel& panel) {
  std::vector<std::pair<double, std::string>> ticks;
  double most = 0;
  for (const Record* run : panel.runs) most = std::max(most, panel.x(*run).value_or(0));
  for (const double factor : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0}) {
    const auto x = panel.x_of_factor(factor);
    if (x && *x <= most * 1.02) ticks.emplace_back(*x, coordinate(factor) + "×");
  }
  return ticks;
}

void add_borders(LineChart& chart, const Panel& panel) {
  for (const Maximum& maximum : panel.maxima) {
    if (!maximum.ended) continue;
    const Look look = look_of(maximum.method);
    const std::string why =
        maximum.why.empty() || maximum.why == "oom" ? "" : ": " + outcome_text(maximum.why);
    chart.borders.push_back(
        {maximum.value, look.name + " ends at " + panel.name(maximum.value) + why, look.token});
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

std::string rate_says(const Panel& panel) {
  const Maximum* memory = panel.maximum("plain");
  const Maximum* ours = panel.maximum("lms");
  if (ours == nullptr) return {};
  std::string text;
  if (memory != nullptr) text = "In memory ends at " + panel.name(memory->value) + "; ";
  text += "LMS runs at " + panel.name(ours->value);
  if (ours->factor) text += ", " + format_factor(*ours->factor) + " the " + grown(panel);
  text += ".";
  const Record* last = nullptr;
  for (const Record* run : panel.runs) {
    if (run->method == "lms" && run->ok() && panel.rate_change(*run)) last = run;
  }
  if (last != nullptr) {
    const double change = *panel.rate_change(*last);
    text += " Its rate there is " + format_share(std::fabs(change)) +
            (change < 0 ? " below" : " above") + " the last in memory.";
  }
  return text;
}

void add_rate(std::vector<Figure>& figures, const Study& study, const Panel& panel,
              const std::string& id) {
  LineChart chart;
  chart.x_title = x_title(panel);
  chart.y_title = per_second(panel);
  chart.x_format = size_format(panel);
  chart.whole = !panel.over_side;
  chart.y_format = format_number;
  std::size_t points = 0;
  for (const std::string& method : panel.methods()) {
    Curve curve = empty_curve(method);
    for (const Record* run : panel.runs) {
      const auto x = panel.x(*run);
      const auto rate = run->rate();
      if (run->method != method || !run->ok() || !x || !rate) continue;
      std::string tip = curve.name + " at " + panel.name(*run) + times(panel, *x) + ": " +
                        format_number(*rate) + " " + per_second(panel);
      if (const auto change = panel.rate_change(*run)) tip += ", " + format_change(*change);
      if (run->rate_spread) tip += "; spread " + format_share(*run->rate_spread);
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
    description += curve.name + ": " + panel.name(curve.points.front().x) + " to " +
                   panel.name(curve.points.back().x) + ". ";
  }
  figures.push_back(lines_or_bars(
      id + "-rate", "Data rate over " + std::string(panel.over_side ? "resolution" : "batch"),
      rate_says(panel), description, std::move(chart)));
  figures.back().whole_row = true;
}

void add_maxima(std::vector<Figure>& figures, const Study& study, const Panel& panel,
                const std::string& id) {
  if (panel.maxima.empty() || !panel.maxima.front().factor) return;
  BarChart chart;
  chart.title = "times the in-memory maximum, in " + grown(panel);
  chart.format = format_factor;
  Group group;
  for (const Maximum& maximum : panel.maxima) {
    const Look look = look_of(maximum.method);
    Bar bar;
    bar.name = look.name;
    bar.token = look.token;
    bar.value = maximum.factor;
    bar.text = format_factor(maximum.factor.value_or(0)) + " · " + panel.name(maximum.value);
    bar.tip = look.name + ": " + bar.text;
    if (maximum.ended) {
      bar.tip +=
          "; the next size failed" + (maximum.why.empty() ? "" : ": " + outcome_text(maximum.why));
    } else {
      bar.tip += "; nothing larger was tried";
    }
    if (maximum.ended && maximum.why == "host") bar.text += ", host full";
    if (!maximum.ended && maximum.method != "plain") bar.text += ", or more";
    group.bars.push_back(std::move(bar));
  }
  std::string says;
  if (study.published != nullptr) {
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
      says = "Published: " + goal.where + ".";
      if (goal.target) {
        for (Bar& each : group.bars) {
          if (each.token == "lms") each.strokes.push_back({*goal.target, "bound", "to reach"});
        }
      }
    }
  }
  std::string description = "Bars: ";
  for (const Bar& bar : group.bars) description += bar.name + " " + bar.text + ". ";
  chart.groups.push_back(std::move(group));
  figures.push_back(figure(id + "-maximum",
                           panel.over_side ? "Largest resolution" : "Largest batch", says,
                           description, std::move(chart)));
}

/// Up to kMostGroups sizes of `sizes`, the first and last among them.
std::vector<double> selected(const std::set<double>& sizes) {
  std::vector<double> all(sizes.begin(), sizes.end());
  if (all.size() <= kMostGroups) return all;
  std::vector<double> some;
  for (std::size_t i = 0; i < kMostGroups; ++i) {
    some.push_back(all[i * (all.size() - 1) / (kMostGroups - 1)]);
  }
  return some;
}

void add_overheads(std::vector<Figure>& figures, const Study& study, const Panel& panel,
                   const std::string& id) {
  std::set<double> sizes;
  const double memory = panel.maximum("plain") ? panel.maximum("plain")->value : 0;
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    if (run->method.starts_with("lms") && run->ok() && x && *x > memory && panel.overhead(*run)) {
      sizes.insert(*x);
    }
  }
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
      const Look look = look_of(run->method);
      Bar bar;
      bar.name = look.name;
      bar.token = look.token;
      bar.value = run->ok() ? panel.overhead(*run) : std::nullopt;
      bar.text = bar.value ? format_change(*bar.value) : outcome_text(run->outcome);
      if (run->ok() && !bar.value) bar.text = "not known";
      bar.tip = look.name + " at " + group.name + ": " + bar.text;
      const auto bound = panel.overhead_of(*run, run->bound);
      const auto predicted = panel.overhead_of(*run, run->predicted);
      if (bar.value && bound) bar.strokes.push_back({*bound, "bound", "bound"});
      if (bar.value && predicted) bar.strokes.push_back({*predicted, "predicted", "predicted"});
      if (bound) bar.tip += "; bound " + format_change(*bound);
      if (predicted) bar.tip += "; predicted " + format_change(*predicted);
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
      Bar bar;
      bar.name = published.size + ", " + published.link;
      bar.token = "published";
      bar.hollow = true;
      bar.value = published.value;
      bar.text = format_change(published.value);
      group.bars.push_back(std::move(bar));
      ours = std::max(ours, published.value);
    }
    chart.groups.push_back(std::move(group));
  }
  // What is dearer by far would leave no room to see the rest.
  double kept = ours;
  bool beyond = false;
  for (const double other : others) {
    if (other > 4 * ours) {
      beyond = true;
    } else {
      kept = std::max(kept, other);
    }
  }
  if (beyond) chart.most = 1.3 * kept;
  std::string says = "Against the last run in memory";
  if (panel.reference != nullptr) {
    says += ", " + panel.reference->size() +
            (panel.reference->batch ? " at batch " + coordinate(*panel.reference->batch) : "");
  }
  says += ".";
  figures.push_back(figure(id + "-overhead", "What it costs", says, description, std::move(chart)));
}

/// The largest LMS run that has what `has` asks for; of emulated links only if there is no other.
template <class Has>
const Record* largest_with(const Panel& panel, const Has& has) {
  const Record* best = nullptr;
  for (const auto* runs : {&panel.linked, &panel.runs}) {
    for (const Record* run : *runs) {
      if (run->method.starts_with("lms") && run->ok() && has(*run)) best = run;
    }
  }
  return best;
}

void add_traffic(std::vector<Figure>& figures, const Study& study, const Panel& panel,
                 const std::string& id) {
  const double memory = panel.maximum("plain") ? panel.maximum("plain")->value : 0;
  std::map<double, const Record*> by_size;
  std::set<double> sizes;
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    if (run->method != "lms" || !run->ok() || !x) continue;
    const double moved = run->bytes_to_host.value_or(0) + run->bytes_to_device.value_or(0);
    if (moved <= 0 || *x <= memory) continue;
    by_size[*x] = run;
    sizes.insert(*x);
  }
  if (by_size.empty()) return;
  BarChart chart;
  chart.title = "copied in a step";
  chart.format = format_traffic;
  std::string description = "Bars, by size: ";
  for (const double size : selected(sizes)) {
    const Record& run = *by_size[size];
    Group group;
    group.name = panel.name(size) + times(panel, size);
    const auto add = [&](const char* name, const char* token, const auto& bytes, const auto& use) {
      if (!bytes) return;
      Bar bar;
      bar.name = name;
      bar.token = token;
      bar.value = bytes;
      bar.text = format_traffic(*bytes);
      bar.tip = group.name + ", " + name + ": " + bar.text;
      if (use) {
        bar.text += ", link " + format_share(*use);
        bar.tip += ", " + format_share(*use) + " of what the link can do";
      }
      description += bar.tip + ". ";
      group.bars.push_back(std::move(bar));
    };
    add("to the host", "out", run.bytes_to_host, run.to_host_use);
    add("to the device", "in", run.bytes_to_device, run.to_device_use);
    chart.groups.push_back(std::move(group));
  }
  std::string says;
  if (study.published != nullptr && panel.over_side && !study.published->traffic.empty()) {
    Group group{"published, to the device", {}};
    for (const PublishedTraffic& each : study.published->traffic) {
      Bar bar;
      bar.name = each.size;
      bar.token = "published";
      bar.hollow = true;
      bar.value = each.to_device / each.batches;
      bar.text = format_traffic(*bar.value);
      bar.tip = format_traffic(each.to_device) + " in " + coordinate(each.batches) + " batches";
      group.bars.push_back(std::move(bar));
    }
    chart.groups.push_back(std::move(group));
  }
  figures.push_back(
      figure(id + "-traffic", "Copied each way", says, description, std::move(chart)));
}

void add_use(std::vector<Figure>& figures, const Study& study, const Panel& panel,
             const std::string& id) {
  LineChart chart;
  chart.x_title = x_title(panel);
  chart.y_title = "% of what the link, or the time of the step, allows";
  chart.x_format = size_format(panel);
  chart.whole = !panel.over_side;
  chart.y_format = format_share;
  chart.y_top = 1;
  Curve curves[] = {{"GPU busy", "kernel", Shape::kCircle, false, {}},
                    {"link to host", "out", Shape::kUp, false, {}},
                    {"link to device", "in", Shape::kDown, false, {}}};
  double last = 0;
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    if (run->method != "lms" || !run->ok() || !x) continue;
    const std::optional<double> values[] = {run->gpu_busy, run->to_host_use, run->to_device_use};
    for (int i = 0; i < 3; ++i) {
      if (!values[i]) continue;
      curves[i].points.push_back(
          {*x, *values[i],
           curves[i].name + " at " + panel.name(*run) + ": " + format_share(*values[i])});
      last = std::max(last, *x);
    }
  }
  std::string description = "Lines, with LMS, by size: ";
  std::string says;
  for (Curve& curve : curves) {
    if (curve.points.empty()) continue;
    description += curve.points.back().tip + ". ";
    says += (says.empty() ? "At the largest: " : ", ") + curve.name + " " +
            format_share(curve.points.back().y);
    chart.curves.push_back(std::move(curve));
  }
  if (chart.curves.empty()) return;
  says += ".";
  if (study.published != nullptr && study.published->use && panel.over_side) {
    const PublishedUse& use = *study.published->use;
    chart.remarks.push_back({last, last, use.link, "published link " + format_share(use.link)});
    chart.remarks.push_back({last, last, use.gpu, "published GPU " + format_share(use.gpu)});
    says += " Published at " + use.size + ": link " + format_share(use.link) + " (" +
            format_link(use.link_rate) + "), GPU " + format_share(use.gpu) + ".";
  }
  chart.second = multiples(panel);
  if (!chart.second.empty()) chart.second_title = "times the in-memory maximum";
  figures.push_back(
      lines_or_bars(id + "-use", "How busy link and GPU are", says, description, std::move(chart)));
}

void add_memory(std::vector<Figure>& figures, const Panel& panel, const std::string& id) {
  constexpr double kGib = 1073741824.0;
  LineChart chart;
  chart.x_title = x_title(panel);
  chart.y_title = "GiB";
  chart.x_format = size_format(panel);
  chart.whole = !panel.over_side;
  chart.y_format = format_number;
  Curve host{"host", "in", Shape::kUp, false, {}};
  Curve device{"device", "lms", Shape::kCircle, false, {}};
  double low = 0;
  double high = 0;
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    if (run->method != "lms" || !run->ok() || !x) continue;
    const auto add = [&](Curve& curve, std::optional<double> bytes) {
      if (!bytes) return;
      curve.points.push_back(
          {*x, *bytes / kGib,
           curve.name + " at " + panel.name(*run) + ": " + format_memory(*bytes)});
      if (low == 0) low = *x;
      high = *x;
    };
    add(host, run->peak_host);
    add(device, run->peak_reserved ? run->peak_reserved : run->peak_allocated);
  }
  if (host.points.empty() && device.points.empty()) return;
  std::string description = "Lines, with LMS, by size: ";
  std::string says;
  for (Curve* curve : {&host, &device}) {
    if (curve->points.empty()) continue;
    description += curve->points.back().tip + ". ";
    says += (says.empty() ? "At the largest: " : ", ") + curve->name + " " +
            format_memory(curve->points.back().y * kGib);
    chart.curves.push_back(std::move(*curve));
  }
  if (panel.cap && high > low) {
    const double cap = *panel.cap / kGib;
    chart.curves.push_back({"cap",
                            "bound",
                            Shape::kSquare,
                            true,
                            {{low, cap, "cap: " + format_memory(*panel.cap)},
                             {high, cap, "cap: " + format_memory(*panel.cap)}}});
  }
  figures.push_back(lines_or_bars(id + "-memory", "Memory held at most", says + ".", description,
                                  std::move(chart)));
}

/// Kernels, copies, and a table of the gaps.
Figure timeline_figure(const Panel& panel, const Record& run, const std::string& id) {
  const Timeline& timeline = *run.timeline;
  const std::string what = look_of(run.method).name + " at " + panel.name(run) +
                           (run.link.empty() ? "" : ", link as " + link_text(run.link));
  double idle = 0;
  for (const Gap& gap : timeline.gaps) idle += gap.length;
  std::string says = format_seconds(timeline.step) + " in all.";
  if (run.gpu_busy) says += " GPU busy " + format_share(*run.gpu_busy) + ".";
  if (!timeline.gaps.empty()) {
    const std::size_t count = timeline.gaps.size();
    says += (count == 1 ? " The longest gap takes "
                        : " The " + std::to_string(count) + " longest gaps take ") +
            format_seconds(idle) + ", " + format_share(idle / timeline.step) + " of the step.";
  }
  Figure made = figure(id, "One step: " + what, says,
                       "Three lanes over time: kernels, copies to the host, copies to the "
                       "device; gaps between kernels are marked and listed below. " +
                           says,
                       timeline);
  made.whole_row = true;
  if (timeline.gaps.empty()) return made;
  made.below =
      "<details><summary>Idle gaps, the longest first</summary><div class=\"scroll\" "
      "tabindex=\"0\" "
      "role=\"region\" aria-label=\"Idle gaps\"><table><thead><tr><th>#</th><th>at</th>"
      "<th>for</th><th class=\"l\">before</th></tr></thead><tbody>";
  for (std::size_t i = 0; i < timeline.gaps.size(); ++i) {
    const Gap& gap = timeline.gaps[i];
    made.below += "<tr><td>" + std::to_string(i + 1) + "</td><td>" + format_seconds(gap.at) +
                  "</td><td>" + format_seconds(gap.length) + "</td><td class=\"l\"><code>" +
                  escape(gap.before.empty() ? "the end" : gap.before) + "</code></td></tr>";
  }
  made.below += "</tbody></table></div></details>";
  return made;
}

void add_timelines(std::vector<Figure>& figures, const Panel& panel, const std::string& id) {
  const auto has = [](const Record& run) { return run.timeline.has_value(); };
  const Record* best = largest_with(panel, has);
  if (best == nullptr) return;
  figures.push_back(timeline_figure(panel, *best, id + "-step"));
  std::vector<const Record*> others = panel.linked;
  others.insert(others.end(), panel.runs.rbegin(), panel.runs.rend());
  std::erase_if(others, [&](const Record* run) { return run == best || !run->ok() || !has(*run); });
  if (others.size() > kMostSteps) others.resize(kMostSteps);
  for (std::size_t i = 0; i < others.size(); ++i) {
    figures.push_back(timeline_figure(panel, *others[i], id + "-step-" + std::to_string(i + 2)));
    figures.back().folded = true;
  }
}

void add_allocations(std::vector<Figure>& figures, const Panel& panel, const std::string& id) {
  constexpr std::size_t kShown = 8;
  const Record* run =
      largest_with(panel, [](const Record& each) { return !each.allocations.empty(); });
  if (run == nullptr) return;
  BarChart chart;
  chart.title = "allocations";
  chart.format = format_number;
  Group group;
  double rest = 0;
  double sum = 0;
  for (std::size_t i = 0; i < run->allocations.size(); ++i) {
    const auto& [source, count] = run->allocations[i];
    sum += count;
    if (i >= kShown) {
      rest += count;
      continue;
    }
    group.bars.push_back({source, count, format_number(count), "lms", false, {}, {}});
  }
  if (rest > 0)
    group.bars.push_back({"all others", rest, format_number(rest), "plain", false, {}, {}});
  std::string description = "Bars: ";
  for (Bar& bar : group.bars) {
    if (sum > 0) bar.text += ", " + format_share(*bar.value / sum);
    description += bar.name + " " + bar.text + ". ";
  }
  chart.groups.push_back(std::move(group));
  figures.push_back(figure(id + "-allocations", "Where allocations come from",
                           look_of(run->method).name + " at " + panel.name(*run) + ".", description,
                           std::move(chart)));
}

void add_links(std::vector<Figure>& figures, const Study& study, const Panel& panel,
               const std::string& id) {
  if (panel.linked.empty()) return;
  constexpr const char* kOrder[] = {"", "nvlink2", "pcie5", "pcie4", "pcie3"};
  const auto rank = [&](const std::string& link) {
    return std::find(std::begin(kOrder), std::end(kOrder), link) - std::begin(kOrder);
  };
  std::map<std::pair<std::string, double>, std::vector<const Record*>> groups;
  for (const Record* run : panel.linked) {
    if (const auto x = panel.x(*run)) groups[{run->method, *x}].push_back(run);
  }
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    const auto found = x ? groups.find({run->method, *x}) : groups.end();
    if (found != groups.end()) found->second.push_back(run);
  }
  if (groups.empty()) return;
  BarChart chart;
  chart.title = per_second(panel);
  chart.format = format_number;
  std::string description = "Bars, by size and link: ";
  std::string says;
  for (auto& [key, runs] : groups) {
    std::ranges::stable_sort(runs, {}, [&](const Record* run) { return rank(run->link); });
    const Look look = look_of(key.first);
    Group group{look.name + " at " + panel.name(key.second) + times(panel, key.second), {}};
    for (const Record* run : runs) {
      Bar bar;
      bar.name = link_text(run->link);
      bar.token = look.token;
      if (run->ok()) bar.value = run->rate();
      bar.text = bar.value ? format_number(*bar.value) : outcome_text(run->outcome);
      if (const auto change = panel.rate_change(*run); bar.value && change) {
        bar.text += ", " + format_change(*change);
      }
      description += group.name + ", " + bar.name + " " + bar.text + ". ";
      group.bars.push_back(std::move(bar));
    }
    const auto rate_over = [&](const std::string& link) -> std::optional<double> {
      for (const Record* run : runs) {
        if (run->link == link && run->ok()) return run->rate();
      }
      return std::nullopt;
    };
    const auto fast = rate_over("nvlink2");
    const auto slow = rate_over("pcie3");
    if (fast && slow) {
      says = "At " + panel.name(key.second) + " NVLink 2 gives " + format_number(*fast / *slow) +
             "× the rate of PCIe 3.";
    }
    chart.groups.push_back(std::move(group));
  }
  if (study.published != nullptr) {
    for (const PublishedLinks& links : study.published->links) {
      says += (says.empty() ? "Published: " : " Published: ") + link_text(links.fast) +
              " against " + link_text(links.slow) + ", " + format_number(links.value) + "× (" +
              links.where + ").";
    }
  }
  figures.push_back(figure(id + "-links", "The same over slower links, emulated", says, description,
                           std::move(chart)));
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

std::vector<Figure> figures_of(const Study& study, const Panel& panel) {
  const std::string id = slug(study.name + " " + panel.series + " " + panel.model + " " +
                              panel.precision + " " + (panel.cap ? format_memory(*panel.cap) : ""));
  std::vector<Figure> figures;
  add_rate(figures, study, panel, id);
  add_maxima(figures, study, panel, id);
  add_overheads(figures, study, panel, id);
  add_traffic(figures, study, panel, id);
  add_use(figures, study, panel, id);
  add_links(figures, study, panel, id);
  add_memory(figures, panel, id);
  add_allocations(figures, panel, id);
  add_timelines(figures, panel, id);
  return figures;
}

}  // namespace lms::report
