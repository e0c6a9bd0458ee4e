#include "lab/report/goals.h"

#include "lab/report/figures.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

std::string form(const Goal& goal, double value) {
  return goal.measure == Goal::Measure::kFactor ? format_factor(value) : format_change(value);
}

/// What is measured, in the words of a row.
std::string what_of(const Verdict& verdict) {
  const Goal& goal = *verdict.goal;
  const auto at = verdict.at ? verdict.at : goal.judge_at;
  const std::string where = at ? "at " + format_factor(*at) : "at the largest size";
  switch (goal.measure) {
    case Goal::Measure::kFactor:
      if (goal.over == "batch") return "the batch that fits in memory";
      return "the " + (verdict.panel != nullptr ? grown(*verdict.panel) : "pixels") +
             " that fit in memory";
    case Goal::Measure::kRate:
      return "data rate " + where;
    case Goal::Measure::kOverhead:
      return "time per sample " + where;
  }
  return {};
}

/// The chart that shows it, else the study.
std::string link_of(const Verdict& verdict, const std::string& study, const Anchors& anchors) {
  const auto panel = anchors.figures.find(verdict.panel);
  if (panel == anchors.figures.end()) return study;
  const char* name = verdict.goal->measure == Goal::Measure::kFactor ? "maximum"
                     : verdict.goal->measure == Goal::Measure::kRate ? "rate"
                                                                     : "overhead";
  const auto figure = panel->second.find(name);
  return figure == panel->second.end() ? study : figure->second;
}

/// A cell that says what it is of where there is no head above it.
std::string cell(const char* name, const std::string& html) {
  return std::string("<td data-name=\"") + name + "\"><div>" + html + "</div></td>";
}

std::string soft(const std::string& text) {
  return text.empty() ? "" : " <span class=\"soft\">" + escape(text) + "</span>";
}

std::string published_html(const Goal& goal) {
  if (!goal.published_least) return "<span class=\"soft\">–</span>";
  std::string text = form(goal, *goal.published_least);
  if (*goal.published_most > *goal.published_least) {
    text += " to " + form(goal, *goal.published_most);
  }
  return escape(text) + soft(goal.where);
}

std::string target_html(const Goal& goal) {
  if (!goal.target) return "<span class=\"soft\">–</span>";
  const bool most = goal.measure == Goal::Measure::kOverhead;
  return escape((most ? "≤\u00a0" : "≥\u00a0") + form(goal, *goal.target));
}

/// The size, what it is compared with, and the cap.
std::string conditions_of(const Verdict& verdict) {
  const Panel& panel = *verdict.panel;
  std::string text = verdict.size;
  if (const Maximum* memory = panel.maximum("plain")) {
    text += (text.empty() ? "" : ", ") + panel.name(memory->value) + " in memory";
  }
  if (panel.cap) text += (text.empty() ? "" : ", ") + ("cap\u00a0" + format_memory(*panel.cap));
  return text;
}

std::string reached_html(const Verdict& verdict) {
  std::string html = verdict.value ? "<b>" + escape(form(*verdict.goal, *verdict.value)) + "</b>"
                                   : "<b class=\"soft\">–</b>";
  if (verdict.panel != nullptr) html += soft(conditions_of(verdict));
  if (!verdict.end.empty()) {
    html += "<div class=\"end\">" + escape(verdict.end) + "</div>";
  }
  if (!verdict.doubt.empty()) {
    html += "<div class=\"end\">Not judged: " + escape(verdict.doubt) + ".</div>";
  }
  return html;
}

std::string state_html(const Verdict& verdict) {
  switch (verdict.state) {
    case Verdict::State::kReached:
      return "<span class=\"state good\">✓ reached</span>";
    case Verdict::State::kMissed:
      return "<span class=\"state bad\">✗ not reached</span>";
    case Verdict::State::kMeasured:
      return "<span class=\"state soft\">not judged</span>";
    case Verdict::State::kNotMeasured:
      return "<span class=\"state soft\">not measured</span>";
  }
  return {};
}

std::string name_html(const Study& study) {
  return "<b>" + escape(study.name) + "</b>" +
         (study.title == study.name ? "" : " " + escape(study.title));
}

/// How far it went, or how many runs there are.
std::string own_html(const Study& study) {
  for (const Panel& panel : study.panels) {
    const Maximum* maximum = panel.maximum("lms");
    if (maximum == nullptr || !maximum->factor) continue;
    return "<div class=\"big\">" + escape(format_factor(*maximum->factor)) + "</div><div>the " +
           grown(panel) + " that fit" + (panel.over_side ? "" : "s") + " in memory" +
           soft("(" + panel.name(maximum->value) + ")") + "</div>";
  }
  std::size_t runs = 0;
  for (const Panel& panel : study.panels) runs += panel.runs.size() + panel.linked.size();
  return "<div class=\"big\">" + std::to_string(runs) + "</div><div>" +
         (runs == 1 ? "run" : "runs") + "</div>";
}

}  // namespace

std::string goal_table(const std::vector<Study>& studies, const Anchors& anchors) {
  std::string rows;
  for (std::size_t i = 0; i < studies.size(); ++i) {
    const Study& study = studies[i];
    if (study.verdicts.empty()) continue;
    const std::string& anchor = anchors.studies[i];
    rows += R"(<tbody><tr><th scope="rowgroup" rowspan=")" + std::to_string(study.verdicts.size()) +
            "\"><a href=\"#" + anchor + "\">" + name_html(study) + "</a></th>";
    for (const Verdict& verdict : study.verdicts) {
      if (&verdict != &study.verdicts.front()) rows += "<tr>";
      rows += cell("what", "<a href=\"#" + link_of(verdict, anchor, anchors) + "\">" +
                               escape(what_of(verdict)) + "</a>") +
              cell("published", published_html(*verdict.goal)) +
              cell("to reach", target_html(*verdict.goal)) +
              cell("reached", reached_html(verdict)) + cell("met", state_html(verdict)) + "</tr>";
    }
    rows += "</tbody>";
  }
  if (rows.empty()) return {};
  return R"(<table class="goals card"><thead><tr><th scope="col">study</th>)"
         R"(<th scope="col">what</th><th scope="col">published</th>)"
         R"(<th scope="col">to reach</th><th scope="col">reached</th>)"
         R"(<th scope="col">met</th></tr></thead>)" +
         rows + "</table>\n";
}

std::string own_cards(const std::vector<Study>& studies, const Anchors& anchors) {
  std::string html;
  for (std::size_t i = 0; i < studies.size(); ++i) {
    if (!studies[i].verdicts.empty()) continue;
    html += R"(<a class="card" href="#)" + anchors.studies[i] + R"("><div class="name">)" +
            name_html(studies[i]) + "</div>" + own_html(studies[i]) + "</a>\n";
  }
  return html.empty() ? html : "<div class=\"cards\">\n" + html + "</div>\n";
}

}  // namespace lms::report
