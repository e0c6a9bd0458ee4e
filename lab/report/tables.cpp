#include "lab/report/tables.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <span>
#include <tuple>

#include "lab/report/drawing.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kRemark = 60;
constexpr double kLongest = 240;  ///< of messages, in units of a letter
constexpr const char* kDash = "<span class=\"none\">–</span>";

template <class Form>
std::string cell(const std::optional<double>& value, const Form& form) {
  return "<td>" + (value ? escape(form(*value)) : kDash) + "</td>";
}

std::string left(const std::string& text) {
  return "<td class=\"l\">" + (text.empty() ? kDash : escape(text)) + "</td>";
}

std::string both(const std::optional<double>& one, const std::optional<double>& other,
                 std::string (*form)(double)) {
  if (!one && !other) return "<td>" + std::string(kDash) + "</td>";
  const auto each = [&](const std::optional<double>& value) {
    return value ? escape(form(*value)) : kDash;
  };
  return "<td>" + each(one) + " / " + each(other) + "</td>";
}

/// A column's name, and whether it holds words.
using Column = std::pair<const char*, bool>;

std::string opened(const std::string& label, std::span<const Column> head) {
  std::string html = R"(<div class="scroll" tabindex="0" role="region" aria-label=")" +
                     escape(label) + "\"><table><thead><tr>";
  for (const auto& [name, words] : head) {
    html += std::string(words ? R"(<th class="l" scope="col">)" : "<th scope=\"col\">") + name +
            "</th>";
  }
  return html + "</tr></thead><tbody>";
}

constexpr const char* kClosed = "</tbody></table></div>";

std::string swatch(const std::string& method) {
  const Look look = look_of(method);
  Drawing drawing(12);
  drawing.marker(look.shape, 6, 6, 4, "f-" + look.token);
  return R"(<svg class="swatch" viewBox="0 0 12 12" aria-hidden="true">)" + drawing.body() +
         "</svg>" + escape(look.name);
}

std::string outcome_cell(const Record& run) {
  if (run.ok()) return "<td class=\"l\">ran</td>";
  return "<td class=\"l bad\">" + escape(outcome_text(run.outcome)) + "</td>";
}

/// Whether the losses are those of the run in memory, step by step.
std::string losses_cell(const Panel& panel, const Record& run) {
  if (run.method == "plain" || run.losses.empty()) return left("");
  for (const Record* other : panel.runs) {
    if (other->method != "plain" || other->losses.empty() || other->sides != run.sides ||
        other->batch != run.batch) {
      continue;
    }
    const std::size_t count = std::min(run.losses.size(), other->losses.size());
    const bool equal = std::equal(run.losses.begin(), run.losses.begin() + static_cast<long>(count),
                                  other->losses.begin());
    if (!equal) return "<td class=\"l\">differ</td>";
    // Weights are read after the last step: those after more steps are other ones.
    const bool as_many = run.losses.size() == other->losses.size();
    if (!as_many || run.weights.empty() || other->weights.empty()) {
      return "<td class=\"l good\">equal</td>";
    }
    return run.weights == other->weights ? "<td class=\"l good\">equal, weights too</td>"
                                         : "<td class=\"l\">equal, weights differ</td>";
  }
  return left("");
}

/// Bytes a second over the whole step.
std::optional<double> copied(const Record& run, const std::optional<double>& bytes) {
  const auto step = run.step();
  return bytes && step && run.ok() ? std::optional(*bytes / *step) : std::nullopt;
}

constexpr Column kHead[] = {{"method", true},
                            {"size", false},
                            {"batch", false},
                            {"cap", false},
                            {"link", true},
                            {"outcome", true},
                            {"of in-memory", false},
                            {"step", false},
                            {"rate", false},
                            {"spread", false},
                            {"overhead", false},
                            {"bound", false},
                            {"predicted", false},
                            {"copied out / in", false},
                            {"rate of copies out / in", false},
                            {"link use out / in", false},
                            {"GPU busy", false},
                            {"device peak, allocated / reserved", false},
                            {"host peak", false},
                            {"largest operator", false},
                            {"losses", true},
                            {"settings", true},
                            {"remarks", true}};

constexpr Column kStepHead[] = {{"step", true},
                                {"method", true},
                                {"peak over limit", false},
                                {"limit", false},
                                {"time", false},
                                {"overhead", false},
                                {"bound", false},
                                {"predicted", false},
                                {"allocated", false},
                                {"copied out / in", false},
                                {"recomputed", false},
                                {"same bits", true}};

std::string settings_cell(const Record& run) {
  std::string text;
  for (const auto& setting : settings_of(run)) {
    text += (text.empty() ? "" : ", ") + setting_text(setting);
  }
  return text;
}

/// What to do about it is for whoever ran it.
std::string without_advice(const std::string& message) {
  return message.substr(
      0, std::min(message.find(" If reserved but"), message.find(" Nothing was lost")));
}

/// What there is to say of a run that went through.
std::string remark_of(const Record& run) {
  std::string text = run.partial ? "ended after the timed steps, which are kept" : "";
  if (!run.message.empty()) text += (text.empty() ? "" : "; ") + run.message;
  return text;
}

/// Cells as in kHead.
std::string row(const Panel& panel, const Record& run) {
  const auto x = panel.x(run);
  const auto factor = x ? panel.factor(*x) : std::nullopt;
  const std::string rate_unit = run.unit.empty() ? "" : " " + run.unit + "/s";
  std::string html = run.ok() ? "<tr>" : "<tr class=\"failed\">";
  html += R"(<th class="l" scope="row">)" + swatch(run.method) + "</th>";
  html += "<td>" + (run.sides.empty() ? kDash : escape(size_text(run))) + "</td>";
  html += cell(run.batch, format_number);
  html += cell(run.cap, format_memory);
  html += left(run.link.empty() ? "" : link_text(run.link));
  html += outcome_cell(run);
  html += cell(factor, format_factor);
  html += cell(run.ok() ? run.step() : std::nullopt, format_seconds);
  html += cell(run.ok() ? run.rate() : std::nullopt,
               [&](double rate) { return format_number(rate) + rate_unit; });
  html += cell(run.ok() ? run.rate_spread : std::nullopt, format_share);
  html += cell(run.ok() ? panel.overhead(run) : std::nullopt, format_change);
  html += cell(panel.overhead_of(run, run.bound), format_change);
  html += cell(panel.overhead_of(run, run.predicted), format_change);
  html += both(run.bytes_to_host, run.bytes_to_device, format_traffic);
  html += both(copied(run, run.bytes_to_host), copied(run, run.bytes_to_device), format_link);
  html += both(run.to_host_use, run.to_device_use, format_share);
  html += cell(run.gpu_busy, format_share);
  html += both(run.peak_allocated, run.peak_reserved, format_memory);
  html += cell(run.peak_host, format_memory);
  html += cell(run.largest_operator, format_memory);
  html += losses_cell(panel, run);
  html += left(settings_cell(run));
  html += left(run.ok() ? shorten(remark_of(run), 1, kRemark) : "");
  return html + "</tr>";
}

/// A size with what does not vary in its panel.
std::string where(const Panel& panel, const Record& run, const std::string& size) {
  if (!panel.over_side) return size_text(run) + ", " + size;
  return run.batch ? size + ", batch " + coordinate(*run.batch) : size;
}

std::string published_operators(const Study& study) {
  if (study.published == nullptr || study.published->operators.empty()) return {};
  std::string html = "<p class=\"soft\">Published:";
  for (const PublishedOperator& each : study.published->operators) {
    html += " at " + escape(each.size) + " the largest operator needs " +
            escape(format_memory(each.bytes)) + ".";
  }
  return html + "</p>";
}

}  // namespace

std::string record_table(const Study& study) {
  std::size_t count = 0;
  std::string rows;
  for (const Panel& panel : study.panels) {
    std::string title = panel.title();
    const std::string conditions = panel.conditions();
    if (!conditions.empty()) title += " · " + conditions;
    rows += R"(<tr class="part"><th class="l" colspan=")" + std::to_string(std::size(kHead)) +
            R"(" scope="rowgroup"><span>)" + escape(title) + "</span></th></tr>";
    for (const auto* runs : {&panel.runs, &panel.linked}) {
      for (const Record* run : *runs) {
        rows += row(panel, *run);
        ++count;
      }
    }
  }
  return "<details class=\"records\"><summary>" +
         (count == 1 ? "The run's" : "All " + std::to_string(count) + " runs'") +
         " figures</summary>" + opened("Figures of every run of " + study.name, kHead) + rows +
         kClosed + "</details>";
}

namespace {

/// Runs of which there is the same to say, but for their sizes.
struct Kind {
  const Record* first;
  std::string where;  ///< what does not vary in the panel
  std::vector<std::string> sizes;
};

/// Those that `wanted` asks for, in the order of their sizes.
template <class Wanted, class Alike>
std::vector<Kind> kinds_of(const Study& study, const Wanted& wanted, const Alike& alike) {
  std::vector<Kind> kinds;
  for (const Panel& panel : study.panels) {
    for (const auto* runs : {&panel.runs, &panel.linked}) {
      for (const Record* run : *runs) {
        if (!wanted(*run)) continue;
        std::string where;
        if (panel.over_side && run->batch) where = "batch " + coordinate(*run->batch);
        if (!panel.over_side) where = size_text(*run);
        auto kind = std::ranges::find_if(kinds, [&](const Kind& known) {
          const Record& first = *known.first;
          return std::tie(first.method, first.outcome, first.link, first.cap) ==
                     std::tie(run->method, run->outcome, run->link, run->cap) &&
                 alike(first, *run) && known.where == where;
        });
        if (kind == kinds.end()) kind = kinds.insert(kind, Kind{run, where, {}});
        if (!panel.name(*run).empty()) kind->sizes.push_back(panel.name(*run));
      }
    }
  }
  return kinds;
}

std::string runs_html(const Kind& kind) {
  const Record& run = *kind.first;
  std::string html = swatch(run.method);
  for (std::size_t i = 0; i < kind.sizes.size(); ++i) {
    html += (i == 0 ? " at " : ", ") + escape(kind.sizes[i]);
  }
  if (!kind.where.empty()) html += (kind.sizes.empty() ? " at " : ", ") + escape(kind.where);
  if (run.cap) html += ", cap " + escape(format_memory(*run.cap));
  if (!run.link.empty()) html += ", link as " + escape(link_text(run.link));
  return html;
}

}  // namespace

std::string remarks(const Study& study) {
  const auto alike = [](const Record& a, const Record& b) {
    return a.message == b.message && a.partial == b.partial;
  };
  std::string html;
  for (const Kind& kind : kinds_of(
           study, [](const Record& run) { return run.ok() && !remark_of(run).empty(); }, alike)) {
    html += "<li>" + runs_html(kind) + ": " + escape(shorten(remark_of(*kind.first), 1, kLongest)) +
            "</li>";
  }
  if (html.empty()) return {};
  return "<details class=\"failures\" open><summary>What to know of runs that went through"
         "</summary><ul>" +
         html + "</ul></details>";
}

std::string failures(const Study& study) {
  // Messages on one kind of memory differ in their numbers alone.
  const auto alike = [](const Record& a, const Record& b) {
    return a.message == b.message || (a.too_large() && b.too_large());
  };
  std::string html;
  for (const Kind& kind : kinds_of(
           study, [](const Record& run) { return !run.ok(); }, alike)) {
    const Record& run = *kind.first;
    html += "<li>" + runs_html(kind) + ": <strong class=\"bad\">" +
            escape(outcome_text(run.outcome)) + "</strong>";
    if (!run.message.empty()) {
      html += "<br><code>" + (kind.sizes.size() > 1 ? escape(kind.sizes[0]) + ": " : "") +
              escape(shorten(without_advice(run.message), 1, kLongest)) + "</code>";
    }
    html += "</li>";
  }
  if (html.empty()) return {};
  return "<details class=\"failures\" open><summary>What did not run, and why</summary><ul>" +
         html + "</ul></details>";
}

std::string operator_notes(const Study& study) {
  // The smallest size whose largest operator is beyond its cap, by cap.
  std::map<double, std::pair<double, std::string>> beyond;
  const auto note = [&](const Record& run, double amount, const std::string& text) {
    const auto found = beyond.find(*run.cap);
    if (found != beyond.end() && found->second.first <= amount) return;
    beyond[*run.cap] = {amount, text + ", more than the cap of " + format_memory(*run.cap) +
                                    ". That is where swapping ends: what an operator uses must be "
                                    "on the device at one time."};
  };
  for (const Panel& panel : study.panels) {
    for (const Record* run : panel.runs) {
      if (!run->cap) continue;
      const double amount = run->amount().value_or(0);
      const std::string at = "At " + where(panel, *run, panel.name(*run));
      if (run->operator_too_large()) {
        const double least = std::max(run->need->bytes, run->need->least_limit.value_or(0));
        note(*run, amount,
             at + " the operator " + run->need->name + " needs " + format_memory(run->need->bytes) +
                 " at once" +
                 (least > run->need->bytes
                      ? ", and with what cannot leave meanwhile " + format_memory(least)
                      : ""));
        continue;
      }
      if (!run->largest_operator) continue;
      if (!run->ok() && *run->largest_operator > *run->cap) {
        note(*run, amount,
             at + " one operator alone works on " + format_memory(*run->largest_operator));
        continue;
      }
      // What did not fit has left no trace; the last that did says what it would have needed.
      const Maximum* ours = panel.maximum("lms");
      const auto x = panel.x(*run);
      if (ours == nullptr || ours->why != "oom" || run->method != "lms" || !run->ok() ||
          x != ours->value) {
        continue;
      }
      const double growth = panel.growth(*x, *ours->failed);
      const double needed = *run->largest_operator * growth;
      if (needed <= *run->cap) continue;
      note(*run, amount * growth,
           at + " the largest operator works on " + format_memory(*run->largest_operator) +
               "; at " + where(panel, *run, panel.name(*ours->failed)) +
               ", where memory did not suffice, that grows to about " + format_memory(needed));
    }
  }
  std::string html;
  for (const auto& [cap, note] : beyond) html += "<p>" + escape(note.second) + "</p>";
  html += published_operators(study);
  return html.empty()
             ? html
             : "<aside class=\"note\"><h3>The floor: the largest operator</h3>" + html + "</aside>";
}

std::string step_table(const std::vector<StepRecord>& steps) {
  std::vector<const StepRecord*> order;
  order.reserve(steps.size());
  for (const StepRecord& step : steps) order.push_back(&step);
  std::ranges::stable_sort(order, {}, [](const StepRecord* step) {
    const Look look = look_of(step->method);
    return std::tuple(step->step, look.order, step->method, step->ratio.value_or(0));
  });
  std::string html = "<details class=\"records\"><summary>All " + std::to_string(steps.size()) +
                     " runs' figures</summary>" +
                     opened("Figures of every run of the benchmark of steps", kStepHead);
  for (const StepRecord* step : order) {
    html += R"(<tr><th class="l" scope="row">)" + escape(step->step) + "</th><td class=\"l\">" +
            swatch(step->method) + "</td>";
    if (!step->error.empty()) {
      html += R"(<td class="l bad" colspan="10">)" + escape(shorten(step->error, 1, 120)) +
              "</td></tr>";
      continue;
    }
    html += cell(step->limit ? step->ratio : std::nullopt,
                 [](double ratio) { return format_number(std::round(ratio * 100) / 100) + "×"; }) +
            cell(step->limit, format_memory) + cell(step->seconds, format_seconds) +
            cell(step->method == "plain" ? std::nullopt : step->overhead, format_change) +
            cell(step->bound(), format_change) + cell(step->predicted, format_change) +
            cell(step->allocated, format_memory) +
            both(step->to_host, step->to_device, format_traffic) +
            cell(step->recomputed, format_traffic) +
            left(!step->bit_identical   ? ""
                 : *step->bit_identical ? "yes"
                                        : "no") +
            "</tr>";
  }
  return html + kClosed + "</details>";
}

}  // namespace lms::report
