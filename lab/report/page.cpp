#include "lab/report/page.h"

#include <algorithm>
#include <map>
#include <set>

#include "lab/report/goals.h"
#include "lab/report/tables.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kWhole = 990;  ///< the widths that charts are drawn at, in pixels
constexpr double kMiddle = 660;
constexpr double kHalf = 466;
constexpr double kPhone = 312;
constexpr std::size_t kMostNamed = 40;  ///< files named in a list

/// Ids that no other element has.
class Ids {
 public:
  std::string unique(const std::string& wanted) {
    std::string id = wanted;
    for (int i = 2; !taken_.insert(id).second; ++i) id = wanted + "-" + std::to_string(i);
    return id;
  }

 private:
  std::set<std::string> taken_;
};

/// Where in the page something stands: how deep its headings are.
enum class Level { kSection = 3, kPanel = 4 };

/// Ids of figures are to be unique already.
std::string figure_html(const Figure& figure, bool whole, Level level) {
  const std::string& id = figure.id;
  const std::string heading = level == Level::kSection ? "h3" : "h4";
  std::string html = "<figure class=\"card";
  html += whole ? " whole\" id=\"" : "\" id=\"";
  html += id + "\"><figcaption><" + heading + ">" + escape(figure.title) + "</" + heading + ">";
  if (!figure.says.empty()) html += "<p>" + escape(figure.says) + "</p>";
  html += "</figcaption>\n";
  const std::string rank = whole ? "whole-row" : "half";
  html += embedded(figure.draw(whole ? kWhole : kHalf), id + "-w", rank + " wide", figure.title,
                   figure.description);
  if (whole) {
    html += embedded(figure.draw(kMiddle), id + "-m", rank + " middle", figure.title,
                     figure.description);
  }
  html +=
      embedded(figure.draw(kPhone), id + "-n", rank + " narrow", figure.title, figure.description);
  return html + figure.below + "</figure>\n";
}

/// Two columns of about the same height; one alone gets the whole row.
std::string halves_html(const std::vector<const Figure*>& figures, Level level) {
  if (figures.empty()) return {};
  if (figures.size() == 1) return figure_html(*figures.front(), true, level);
  std::string columns[2];
  double heights[2] = {0, 0};
  for (const Figure* figure : figures) {
    const int column = heights[1] < heights[0] ? 1 : 0;
    columns[column] += figure_html(*figure, false, level);
    heights[column] += figure->draw(kHalf).height() + 110;
  }
  return "<div class=\"column\">" + columns[0] + "</div><div class=\"column\">" + columns[1] +
         "</div>";
}

std::string rows_html(const std::vector<const Figure*>& figures, Level level) {
  std::string html;
  std::vector<const Figure*> halves;
  for (const Figure* figure : figures) {
    if (!figure->whole_row) {
      halves.push_back(figure);
      continue;
    }
    html += halves_html(halves, level) + figure_html(*figure, true, level);
    halves.clear();
  }
  return "<div class=\"figures\">" + html + halves_html(halves, level) + "</div>\n";
}

/// Folded ones come last, behind one summary.
std::string figures_html(const std::vector<Figure>& figures, Level level) {
  std::vector<const Figure*> shown;
  std::vector<const Figure*> folded;
  for (const Figure& figure : figures) (figure.folded ? folded : shown).push_back(&figure);
  std::string html = rows_html(shown, level);
  if (!folded.empty()) {
    html += "<details><summary>" +
            (folded.size() == 1 ? "One more step" : std::to_string(folded.size()) + " more steps") +
            "</summary>" + rows_html(folded, level) + "</details>\n";
  }
  return html;
}

std::string joined(const std::set<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

std::string counted(std::size_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

std::vector<Figure> unique(std::vector<Figure> figures, Ids& ids) {
  for (Figure& figure : figures) figure.id = ids.unique(figure.id);
  return figures;
}

/// On what, when, and how much of it went well.
std::string origin(const Input& input) {
  std::set<std::string> gpus;
  std::set<std::string> versions;
  std::set<std::string> days;
  std::set<std::string> commits;
  std::map<std::string, std::size_t> outcomes;
  std::size_t partial = 0;
  for (const Record& record : input.records) {
    gpus.insert(record.of_machine("gpu"));
    const std::string pytorch = record.of_machine("pytorch");
    versions.insert(pytorch.empty() ? "" : "PyTorch " + pytorch);
    if (!record.date.empty()) days.insert(record.date.substr(0, 10));
    commits.insert(record.commit.substr(0, 10));
    ++outcomes[record.outcome];
    if (record.partial) ++partial;
  }
  for (const StepRecord& step : input.steps) gpus.insert(step.gpu);
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : " · ") + part;
  };
  add(joined(gpus));
  add(joined(versions));
  if (!days.empty()) {
    add(*days.begin() + (days.size() > 1 ? " to " + *days.rbegin() : ""));
  }
  if (commits.size() <= 4 && !joined(commits).empty()) add("commit " + joined(commits));
  if (!input.records.empty()) {
    std::string runs = counted(input.records.size(), "run");
    std::string parts;
    if (outcomes["ok"] > 0) parts = std::to_string(outcomes["ok"]) + " ran";
    for (const auto& [outcome, count] : outcomes) {
      if (outcome == "ok") continue;
      parts += (parts.empty() ? "" : ", ") + std::to_string(count) + " " + outcome_text(outcome);
    }
    if (outcomes.size() > 1) runs += ": " + parts;
    if (partial > 0) runs += " (" + std::to_string(partial) + " ended after the timed steps)";
    add(runs);
  }
  if (!input.steps.empty()) add(counted(input.steps.size(), "run") + " of single steps");
  return text;
}

std::string section(const Study& study, const std::string& anchor, Anchors& anchors, Ids& ids) {
  std::string html = "<section id=\"" + anchor + "\" aria-labelledby=\"" + anchor +
                     "-h\"><header><h2 id=\"" + anchor + "-h\">" + escape(study.name);
  if (study.title != study.name) html += " · " + escape(study.title);
  html += "</h2>";
  if (study.published != nullptr) {
    const Published& published = *study.published;
    html += "<p>As published: " + escape(published.subject) + "; " + escape(published.setting) +
            ". On " + escape(published.hardware) + ".</p>";
  }
  html += "</header>\n";
  for (const Panel& panel : study.panels) {
    std::vector<Figure> figures = figures_of(study, panel);
    const std::size_t named = panel_id(study, panel).size() + 1;
    for (Figure& figure : figures) {
      const std::string name = figure.id.substr(named);
      figure.id = ids.unique(figure.id);
      anchors.figures[&panel].emplace(name, figure.id);
    }
    const std::string conditions = panel.conditions();
    const std::string settings = panel.settings();
    html +=
        "<h3>" + escape(panel.title()) +
        (conditions.empty() ? "" : " <span class=\"soft\">· " + escape(conditions) + "</span>") +
        "</h3>\n";
    if (!settings.empty()) {
      html += "<p class=\"settings\">Settings besides: " + escape(settings) + "</p>\n";
    }
    if (figures.empty()) {
      html += "<p class=\"soft\">No run of these went through; the table says why.</p>\n";
    } else {
      html += figures_html(figures, Level::kPanel);
    }
  }
  html += operator_notes(study);
  if (study.published != nullptr && !study.published->facts.empty()) {
    html += "<p class=\"facts\">Published besides:</p><ul class=\"facts\">";
    for (const std::string& fact : study.published->facts) html += "<li>" + escape(fact) + "</li>";
    html += "</ul>\n";
  }
  return html + remarks(study) + failures(study) + record_table(study) + "</section>\n";
}

std::string goals_section(const std::vector<Study>& studies, const Anchors& anchors, Ids& ids) {
  const std::string table = goal_table(studies, anchors);
  if (table.empty()) return {};
  const std::vector<Figure> summary = unique(summary_figures(studies), ids);
  return "<section id=\"goals\" aria-labelledby=\"goals-h\"><header><h2 id=\"goals-h\">Goals</h2>"
         "<p>What the studies published, what is to be reached, and what these runs reached. "
         "Multiples are of the largest size that ran in memory under the same cap, in pixels, "
         "voxels or samples; changes are against the rate there.</p></header>\n" +
         table + (summary.empty() ? "" : figures_html(summary, Level::kSection)) + "</section>\n";
}

std::string problem_section(const Input& input) {
  if (input.problems.empty() && input.passed_over.empty()) return {};
  std::string html =
      "<section id=\"not-shown\" class=\"problems\"><header><h2>Not shown</h2>"
      "</header><ul>";
  std::size_t count = 0;
  for (const Problem& problem : input.problems) {
    if (++count > kMostNamed) break;
    html += "<li><code>" + escape(problem.file) + "</code>: " + escape(problem.what) + "</li>";
  }
  if (input.problems.size() > kMostNamed) {
    html += "<li>and " + std::to_string(input.problems.size() - kMostNamed) + " more</li>";
  }
  if (!input.passed_over.empty()) {
    html += "<li>" + counted(input.passed_over.size(), "JSON file") +
            " of other kinds lay in the same folders.</li>";
  }
  return html + "</ul></section>\n";
}

constexpr const char* kWords = R"(<footer><h2>How to read this</h2><dl>
<dt>in memory</dt><dd>The step as it is, without anything that saves memory. The in-memory maximum is the largest size that ran under the same cap.</dd>
<dt>cap</dt><dd>The most device memory that the process could get, enforced by the allocator. Every method runs under it.</dd>
<dt>overhead</dt><dd>Time per sample over that of the largest run in memory, less one. A rate of −20 % is an overhead of +25 %.</dd>
<dt>bound</dt><dd>What no plan could beat, from the recorded step: operators' times, bytes, and the link. Predicted: what the plan that was followed promised.</dd>
<dt>link use</dt><dd>Bytes copied over what the best copy of the same run would have moved in the time of the step.</dd>
<dt>emulated links</dt><dd>Copies slowed down to the rates of other links. No link is made faster than the machine's own: a run that asked for one says so, and had the machine's own.</dd>
<dt>settings</dt><dd>What a run was set to besides model, precision and cap. Slack: device memory left free beside the cap; all the rest of the device was taken before the model was built.</dd>
<dt>host full</dt><dd>What left the device had no room on the host: that size needs a host with more memory, or more of it allowed.</dd>
<dt>operator too large</dt><dd>What one operator uses must be on the device at one time. Where that is more than the cap, no copying helps: the physical end of swapping.</dd>
<dt>ended after the timed steps</dt><dd>The run's rate counts; what is told besides (timeline, weights) is missing.</dd>
<dt>published</dt><dd>Figures of the studies of the historic system, drawn hollow; their hardware is named with each study. Rates are drawn at the same multiple of the in-memory maximum, and of its rate, as published.</dd>
</dl></footer>
)";

}  // namespace

std::string page(const Input& input, std::string_view title) {
  const std::vector<Study> studies = studies_of(input);
  Ids ids;
  Anchors anchors;
  for (const char* taken : {"goals", "bound", "not-shown", "tip"}) (void)ids.unique(taken);
  for (const Study& study : studies) anchors.studies.push_back(ids.unique(slug(study.name)));
  std::string sections;
  for (std::size_t i = 0; i < studies.size(); ++i) {
    sections += section(studies[i], anchors.studies[i], anchors, ids);
  }
  const std::string goals = goals_section(studies, anchors, ids);

  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>" +
      escape(title) + "</title>\n<style>" + page_style() + "</style></head><body>\n" +
      "<header class=\"top\"><div><h1>" + escape(title) +
      R"(</h1><button class="theme" type="button" hidden>Dark</button></div><p>)" +
      escape(origin(input)) + "</p></header>\n";

  html += "<nav aria-label=\"Sections\"><ul>";
  if (!goals.empty()) html += "<li><a href=\"#goals\">Goals</a></li>";
  for (std::size_t i = 0; i < studies.size(); ++i) {
    html += "<li><a href=\"#" + anchors.studies[i] + "\">" + escape(studies[i].name) + "</a></li>";
  }
  if (!input.steps.empty()) html += "<li><a href=\"#bound\">How close to the bound</a></li>";
  if (!input.problems.empty() || !input.passed_over.empty()) {
    html += "<li><a href=\"#not-shown\">Not shown</a></li>";
  }
  html += "</ul></nav>\n<main>\n" + goals + own_cards(studies, anchors) + sections;
  if (!input.steps.empty()) {
    html +=
        "<section id=\"bound\"><header><h2>How close to the bound</h2><p>Single training steps "
        "under a limit: time over that in memory, as measured, as predicted by the plan, and "
        "the bound that no plan could beat.</p></header>\n" +
        figures_html(unique(bound_figures(input.steps), ids), Level::kSection) +
        step_table(input.steps) + "</section>\n";
  }
  html += problem_section(input);
  return html + "</main>\n" + kWords + "<script>" + page_script() + "</script></body></html>\n";
}

std::vector<Picture> pictures(const Input& input) {
  const std::vector<Study> studies = studies_of(input);
  Ids ids;
  std::vector<Picture> all;
  const auto add = [&](const std::string& before, const Figure& figure) {
    const Drawing drawing = figure.draw(figure.whole_row ? 800 : 560);
    const std::string title = before.empty() ? figure.title : before + ": " + figure.title;
    all.push_back({ids.unique(figure.id), standalone(drawing, title, figure.description)});
  };
  for (const Figure& figure : summary_figures(studies)) add("", figure);
  for (const Study& study : studies) {
    for (const Panel& panel : study.panels) {
      for (const Figure& figure : figures_of(study, panel)) add(study.title, figure);
    }
  }
  for (const Figure& figure : bound_figures(input.steps)) add("", figure);
  return all;
}

}  // namespace lms::report
