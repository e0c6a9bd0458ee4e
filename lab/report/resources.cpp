// What runs took: copies, link and GPU, memory, allocations, and the time within a step.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "lab/report/figure_parts.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr std::size_t kMostSteps = 6;  ///< timelines beside the first

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
    const auto add = [&](const char* name, const char* token, const auto& bytes, const auto& use,
                         const auto& rate) {
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
        if (rate) bar.tip += ", " + format_link(*rate);
      }
      description += bar.tip + ". ";
      group.bars.push_back(std::move(bar));
    };
    add("to the host", "out", run.bytes_to_host, run.to_host_use, run.to_host_rate);
    add("to the device", "in", run.bytes_to_device, run.to_device_use, run.to_device_rate);
    chart.groups.push_back(std::move(group));
  }
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
      description += "Published, " + each.size + ": " + bar.text + ". ";
      group.bars.push_back(std::move(bar));
    }
    chart.groups.push_back(std::move(group));
  }
  figures.push_back(figure(id + "-traffic", "Copied each way", {}, description, std::move(chart)));
}

void add_use(std::vector<Figure>& figures, const Study& study, const Panel& panel,
             const std::string& id) {
  LineChart chart;
  chart.x_title = size_title(panel);
  chart.y_title = "% of what the link, or the time of the step, allows";
  chart.x_format = size_format(panel);
  chart.whole = !panel.over_side;
  chart.y_format = format_share;
  chart.y_top = 1;
  Curve curves[] = {{"GPU busy", "kernel", Shape::kCircle, false, {}},
                    {"link to host", "out", Shape::kUp, false, {}},
                    {"link to device", "in", Shape::kDown, false, {}}};
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    if (run->method != "lms" || !run->ok() || !x) continue;
    const std::optional<double> values[] = {run->gpu_busy, run->to_host_use, run->to_device_use};
    for (int i = 0; i < 3; ++i) {
      if (!values[i]) continue;
      curves[i].points.push_back(
          {*x, *values[i],
           curves[i].name + " at " + panel.name(*run) + ": " + format_share(*values[i])});
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
    if (const auto x = panel.x_of_factor(use.at)) {
      chart.remarks.push_back({*x, *x, use.link, "published link " + format_share(use.link)});
      chart.remarks.push_back({*x, *x, use.gpu, "published GPU " + format_share(use.gpu)});
    }
    says += " Published at " + use.size + " (" + format_factor(use.at) + "): link " +
            format_share(use.link) + " (" + format_link(use.link_rate) + "), GPU " +
            format_share(use.gpu) + ".";
  }
  chart.second = multiples(panel);
  if (!chart.second.empty()) chart.second_title = "times the in-memory maximum";
  figures.push_back(
      lines_or_bars(id + "-use", "How busy link and GPU are", says, description, std::move(chart)));
}

void add_memory(std::vector<Figure>& figures, const Panel& panel, const std::string& id) {
  constexpr double kGib = 1073741824.0;
  LineChart chart;
  chart.x_title = size_title(panel);
  chart.y_title = "GiB";
  chart.x_format = size_format(panel);
  chart.whole = !panel.over_side;
  // A few bytes are nothing here.
  chart.y_format = [](double gib) { return format_number(std::round(gib * 1000) / 1000); };
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
  std::vector<std::pair<std::string, double>> sources(run->allocations.begin(),
                                                      run->allocations.end());
  std::ranges::stable_sort(sources, {}, [](const auto& each) { return -each.second; });
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto& [source, count] = sources[i];
    sum += count;
    if (i >= kShown) {
      rest += count;
      continue;
    }
    group.bars.push_back({source, count, format_number(count), "lms", false, {}, {}});
  }
  if (rest > 0) {
    group.bars.push_back({"all others", rest, format_number(rest), "plain", false, {}, {}});
  }
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

/// What to know of links that are faster than the machine's own.
std::string own_limits(const std::map<std::string, const Record*>& too_slow) {
  std::string limits;
  for (const auto& [link, run] : too_slow) {
    const auto wanted = records::link_rate(run->link);
    limits += link_text(link);
    if (wanted) limits += " (" + format_link(*wanted) + ")";
    limits += " cannot be emulated here: the machine's own link ";
    const bool known = run->to_host_rate && run->to_device_rate;
    limits += known ? "gives " + format_link(std::min(*run->to_host_rate, *run->to_device_rate))
                    : "is slower";
    limits += ". These runs had that. ";
  }
  return limits;
}

using OverLinks = std::map<std::pair<std::string, double>, std::vector<const Record*>>;

/// By method and size: what has run over a slower link, and the same over the machine's own.
OverLinks runs_over_links(const Panel& panel) {
  constexpr const char* kOrder[] = {"", "nvlink2", "pcie5", "pcie4", "pcie3"};
  const auto rank = [&](const Record* run) {
    return std::find(std::begin(kOrder), std::end(kOrder), run->link) - std::begin(kOrder);
  };
  OverLinks groups;
  for (const Record* run : panel.linked) {
    if (const auto x = panel.x(*run)) groups[{run->method, *x}].push_back(run);
  }
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    const auto found = x ? groups.find({run->method, *x}) : groups.end();
    if (found != groups.end()) found->second.push_back(run);
  }
  for (auto& entry : groups) std::ranges::stable_sort(entry.second, {}, rank);
  return groups;
}

Bar link_bar(const Panel& panel, const Record& run) {
  Bar bar;
  bar.name = link_text(run.link);
  if (run.link_too_slow()) bar.name.insert(0, "not ");
  bar.token = look_of(run.method).token;
  bar.value = rate_in(panel, run);
  bar.text = bar.value ? format_number(*bar.value) : outcome_text(run.outcome);
  if (const auto change = panel.rate_change(run); bar.value && change) {
    bar.text += ", " + format_change(*change);
  }
  return bar;
}

std::string links_say(const Panel& panel, double x, const std::vector<const Record*>& runs) {
  const auto rate_over = [&](const std::string& link) -> std::optional<double> {
    for (const Record* run : runs) {
      if (run->link == link && run->ok() && !run->link_too_slow()) return rate_in(panel, *run);
    }
    return std::nullopt;
  };
  const auto fast = rate_over("nvlink2");
  const auto slow = rate_over("pcie3");
  if (!fast || !slow) return {};
  return "At " + panel.name(x) + " NVLink 2 gives " + format_number(*fast / *slow) +
         "× the rate of PCIe 3.";
}

void add_links(std::vector<Figure>& figures, const Study& study, const Panel& panel,
               const std::string& id) {
  const OverLinks groups = runs_over_links(panel);
  if (groups.empty()) return;
  BarChart chart;
  chart.title = per_second(panel);
  chart.format = format_number;
  std::string description = "Bars, by size and link: ";
  std::string says;
  std::map<std::string, const Record*> too_slow;
  for (const auto& [key, runs] : groups) {
    const auto& [method, x] = key;
    Group group{look_of(method).name + " at " + panel.name(x) + times(panel, x), {}};
    for (const Record* run : runs) {
      if (run->link_too_slow()) too_slow.emplace(run->link, run);
      Bar bar = link_bar(panel, *run);
      description += group.name + ", " + bar.name + " " + bar.text + ". ";
      group.bars.push_back(std::move(bar));
    }
    if (const std::string said = links_say(panel, x, runs); !said.empty()) says = said;
    chart.groups.push_back(std::move(group));
  }
  if (study.published != nullptr) {
    for (const PublishedLinks& links : study.published->links) {
      says += (says.empty() ? "Published: " : " Published: ") + link_text(links.fast) +
              " against " + link_text(links.slow) + ", " + format_number(links.value) + "× (" +
              links.where + ").";
    }
  }
  says.insert(0, own_limits(too_slow));
  figures.push_back(figure(id + "-links", "The same over slower links, emulated", says, description,
                           std::move(chart)));
}

}  // namespace

void add_resources(std::vector<Figure>& figures, const Study& study, const Panel& panel,
                   const std::string& id) {
  add_traffic(figures, study, panel, id);
  add_use(figures, study, panel, id);
  add_links(figures, study, panel, id);
  add_memory(figures, panel, id);
  add_allocations(figures, panel, id);
  add_timelines(figures, panel, id);
}

}  // namespace lms::report
