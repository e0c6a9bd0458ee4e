#include "lab/report/study.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "lab/report/palette.h"
#include "lab/report/text.h"

namespace lms::report {
namespace {

constexpr double kNear = 1.25;  ///< a run counts for a multiple if it is no further away than this
constexpr double kShort =
    0.98;  ///< of a multiple: a run below it does not prove what is to be reached
constexpr double kFine = 1.15;  ///< of a size: a failure beyond this leaves the end open

bool older(const std::string& method, const std::string& other) {
  return std::tuple(look_of(method).order, method) < std::tuple(look_of(other).order, other);
}

/// Whether sides or batch vary more: by the name of the series, else by the runs.
bool varies_by_side(const std::string& series, const std::vector<const Record*>& runs) {
  if (series.starts_with("resolution")) return true;
  if (series.starts_with("batch")) return false;
  std::set<double> sides;
  std::set<double> batches;
  for (const Record* run : runs) {
    if (const auto side = run->side()) sides.insert(*side);
    if (run->batch) batches.insert(*run->batch);
  }
  return sides.size() > 1 || batches.size() <= 1;
}

using Key = std::tuple<std::string, std::string, std::string, double>;

/// Pixels a second can be compared whatever the size, images a second at one size; neither across
/// GPUs.
bool comparable(const Record& run, const Record& reference) {
  const bool of_any_size = run.unit == "MP" || run.unit == "MV";
  const std::string gpu = run.of_machine("gpu");
  const std::string other = reference.of_machine("gpu");
  const bool same_gpu = gpu.empty() || other.empty() || gpu == other;
  return same_gpu && run.unit == reference.unit && (of_any_size || run.sides == reference.sides);
}

Key key_of(const Record& run) {
  return {run.series, run.model, run.precision, run.cap.value_or(0)};
}

void add_maximum(Panel& panel, const std::string& method, double value) {
  const auto known = std::ranges::find(panel.maxima, method, &Maximum::method);
  if (known == panel.maxima.end()) {
    panel.maxima.push_back({method, value, {}, {}, {}});
  } else {
    known->value = std::max(known->value, value);
  }
}

void find_maxima(Panel& panel, const std::string& study, const Input& input) {
  std::vector<Failure> failures;
  for (const Boundary& boundary : input.boundaries) {
    const bool same = boundary.study == study && boundary.series == panel.series &&
                      (boundary.model.empty() || boundary.model == panel.model) &&
                      boundary.cap == panel.cap && (boundary.over == "side") == panel.over_side;
    if (!same) continue;
    if (boundary.largest_ok.value_or(0) > 0) {
      add_maximum(panel, boundary.method, *boundary.largest_ok);
    }
    if (boundary.smallest_failed.value_or(0) > 0) {
      failures.push_back({boundary.method, *boundary.smallest_failed, boundary.why, nullptr});
    }
  }
  for (const Record* run : panel.runs) {
    const auto x = panel.x(*run);
    if (!x || *x <= 0) continue;
    if (run->ok()) add_maximum(panel, run->method, *x);
    if (run->too_large()) failures.push_back({run->method, *x, run->outcome, run});
  }
  for (const Failure& failure : failures) {
    const Maximum* maximum = panel.maximum(failure.method);
    if (maximum != nullptr && failure.x <= maximum->value) continue;
    const auto known = std::ranges::find(panel.failures, failure.method, &Failure::method);
    if (known == panel.failures.end()) {
      panel.failures.push_back(failure);
    } else if (failure.x < known->x || (failure.x == known->x && failure.run != nullptr)) {
      *known = failure;
    }
  }
  std::ranges::stable_sort(panel.failures,
                           [](const auto& a, const auto& b) { return older(a.method, b.method); });
  for (Maximum& maximum : panel.maxima) {
    if (const Failure* failure = panel.failure(maximum.method)) {
      maximum.failed = failure->x;
      maximum.why = failure->why;
    }
  }
  std::ranges::stable_sort(panel.maxima,
                           [](const auto& a, const auto& b) { return older(a.method, b.method); });
  for (Maximum& maximum : panel.maxima) maximum.factor = panel.factor(maximum.value);
}

Panel make_panel(std::vector<const Record*> runs, const std::string& study, const Input& input) {
  Panel panel;
  const Record& first = *runs.front();
  panel.series = first.series;
  panel.model = first.model;
  panel.precision = first.precision;
  panel.cap = first.cap;
  panel.over_side = varies_by_side(panel.series, runs);
  for (const Record* run : runs) {
    if (!run->sides.empty()) panel.dimensions = static_cast<int>(run->sides.size());
    (run->link.empty() ? panel.runs : panel.linked).push_back(run);
  }
  const auto by_size = [&](const Record* a, const Record* b) {
    const double x = panel.x(*a).value_or(0);
    const double y = panel.x(*b).value_or(0);
    return x != y ? x < y : older(a->method, b->method);
  };
  std::ranges::stable_sort(panel.runs, by_size);
  std::ranges::stable_sort(panel.linked, by_size);
  for (const Record* run : panel.runs) {
    if (run->method == "plain" && run->ok() && run->rate()) panel.reference = run;
  }
  find_maxima(panel, study, input);
  return panel;
}

/// Runs over slow links may stand in a series of their own: the rate in memory is then elsewhere.
void lend_references(std::vector<Panel>& panels) {
  for (Panel& panel : panels) {
    if (panel.reference != nullptr) continue;
    for (const Panel& other : panels) {
      const bool same = other.reference != nullptr && other.model == panel.model &&
                        other.precision == panel.precision && other.cap == panel.cap;
      const Record& run = panel.runs.empty() ? *panel.linked.front() : *panel.runs.front();
      if (same && comparable(run, *other.reference)) {
        panel.reference = other.reference;
        break;
      }
    }
  }
}

const Record* nearest(const Panel& panel, double factor) {
  const Record* best = nullptr;
  double distance = std::log(kNear) + 1e-9;
  for (const Record* run : panel.runs) {
    if (run->method != "lms" || !run->ok() || !run->rate()) continue;
    // NaN, where it is not known, is near to nothing.
    const double at = panel.factor(panel.x(*run).value_or(NAN)).value_or(NAN);
    const double away = std::fabs(std::log(at / factor));
    if (away < distance) {
      distance = away;
      best = run;
    }
  }
  return best;
}

/// Of those that did not fit in memory.
const Record* largest(const Panel& panel) {
  const Record* best = nullptr;
  for (const Record* run : panel.runs) {
    if (run->method != "lms" || !run->ok() || !run->rate()) continue;
    if (panel.factor(panel.x(*run).value_or(NAN)).value_or(NAN) > 1 + 1e-9) best = run;
  }
  return best;
}

/// What a panel says about a goal, without a judgement; without a value where it says nothing.
Verdict measured(const Goal& goal, const Panel& panel) {
  Verdict verdict;
  verdict.goal = &goal;
  if (goal.measure == Goal::Measure::kFactor) {
    const Maximum* maximum = panel.maximum("lms");
    const Failure* failure = panel.failure("lms");
    if (failure != nullptr) {
      verdict.panel = &panel;
      verdict.end = "Did not run at " + panel.reason(*failure) + ".";
      if (maximum != nullptr && !panel.found(*maximum))
        verdict.end += " What lies between is open.";
    }
    if (maximum == nullptr || !maximum->factor) return verdict;
    verdict.panel = &panel;
    verdict.value = maximum->factor;
    verdict.size = panel.name(maximum->value);
    return verdict;
  }
  const Record* run = goal.judge_at ? nearest(panel, *goal.judge_at) : largest(panel);
  if (run == nullptr) return verdict;
  const bool rate = goal.measure == Goal::Measure::kRate;
  verdict.value = rate ? panel.rate_change(*run) : panel.overhead(*run);
  if (!verdict.value) return verdict;
  verdict.panel = &panel;
  verdict.at = panel.factor(*panel.x(*run));
  verdict.size = panel.name(*run);
  return verdict;
}

/// What it takes to call a goal reached, beyond its value.
std::string doubt_of(const Verdict& verdict) {
  const Maximum* memory = verdict.panel->maximum("plain");
  if (memory == nullptr || !verdict.panel->found(*memory)) {
    return "the most that fits in memory was not searched to its end";
  }
  const auto wanted = verdict.goal->judge_at;
  if (wanted && verdict.at && *verdict.at < kShort * *wanted) {
    return "measured below " + format_factor(*wanted);
  }
  return {};
}

bool better(const Verdict& one, const Verdict& other) {
  const bool more = one.goal->measure != Goal::Measure::kOverhead;
  return more ? *one.value > *other.value : *one.value < *other.value;
}

void judge(Verdict& verdict) {
  using State = Verdict::State;
  if (!verdict.value) {
    // A size as large as what is to be reached, or a smaller one, has failed.
    const Failure* failure = verdict.panel == nullptr ? nullptr : verdict.panel->failure("lms");
    const auto factor = failure == nullptr ? std::nullopt : verdict.panel->factor(failure->x);
    if (factor && verdict.goal->target && *factor <= kFine * *verdict.goal->target) {
      verdict.state = State::kMissed;
    }
    return;
  }
  verdict.state = State::kMeasured;
  if (!verdict.goal->target) return;
  const double target = *verdict.goal->target;
  const bool least = verdict.goal->measure != Goal::Measure::kOverhead;
  const bool met = least ? *verdict.value >= target - 1e-9 : *verdict.value <= target + 1e-9;
  if (!met) {
    verdict.state = State::kMissed;
    const bool factor = verdict.goal->measure == Goal::Measure::kFactor;
    if (factor && verdict.end.empty()) verdict.end = "Nothing larger was tried.";
    return;
  }
  verdict.doubt = doubt_of(verdict);
  if (verdict.doubt.empty()) verdict.state = State::kReached;
}

/// Of all panels over the same size, the hardest: the smallest cap, and the worst under that.
Verdict verdict_of(const Goal& goal, const std::vector<Panel>& panels) {
  Verdict verdict;
  verdict.goal = &goal;
  for (const Panel& panel : panels) {
    if (panel.over_side != (goal.over == "side")) continue;
    const Verdict other = measured(goal, panel);
    if (!other.value) {
      if (verdict.panel == nullptr) verdict = other;
      continue;
    }
    if (verdict.value) {
      constexpr double kAll = std::numeric_limits<double>::infinity();
      const double cap = verdict.panel->cap.value_or(kAll);
      const double other_cap = panel.cap.value_or(kAll);
      if (other_cap > cap || (other_cap == cap && !better(verdict, other))) continue;
    }
    verdict = other;
  }
  judge(verdict);
  return verdict;
}

}  // namespace

std::optional<double> Panel::x(const Record& run) const {
  return over_side ? run.side() : run.batch;
}

std::string Panel::name(const Record& run) const {
  if (over_side) return size_text(run);
  return run.batch ? name(*run.batch) : "";
}

std::string Panel::name(double x) const {
  if (!over_side) return "batch\u00a0" + coordinate(x);
  return coordinate(std::round(x)) + (dimensions == 3 ? "³" : "²");
}

std::optional<double> Panel::factor(double x) const {
  const Maximum* memory = maximum("plain");
  if (memory == nullptr || memory->value <= 0) return std::nullopt;
  return growth(memory->value, x);
}

double Panel::growth(double from, double to) const {
  return std::pow(to / from, over_side ? dimensions : 1);
}

std::optional<double> Panel::x_of_factor(double factor) const {
  const Maximum* memory = maximum("plain");
  if (memory == nullptr || memory->value <= 0) return std::nullopt;
  return memory->value * std::pow(factor, over_side ? 1.0 / dimensions : 1.0);
}

bool Panel::found(const Maximum& maximum) const {
  if (!maximum.failed) return false;
  const bool next_batch = !over_side && *maximum.failed <= maximum.value + 1;
  return next_batch || *maximum.failed <= kFine * maximum.value;
}

std::string Panel::end(const Maximum& maximum) const {
  if (!maximum.failed) return {};
  if (found(maximum)) return "ends at " + name(maximum.value);
  return "ends between " + name(maximum.value) + " and " + name(*maximum.failed);
}

std::optional<double> Panel::rate_change(const Record& run) const {
  const auto mine = run.rate();
  if (reference == nullptr || !mine || !comparable(run, *reference)) return std::nullopt;
  return *mine / *reference->rate() - 1;
}

std::optional<double> Panel::overhead(const Record& run) const {
  const auto change = rate_change(run);
  return change && *change > -1 ? std::optional(1 / (1 + *change) - 1) : std::nullopt;
}

std::optional<double> Panel::overhead_of(const Record& run, std::optional<double> seconds) const {
  if (reference == nullptr || !seconds || !run.per_step || *run.per_step <= 0 ||
      !comparable(run, *reference)) {
    return std::nullopt;
  }
  return *seconds / *run.per_step * *reference->rate() - 1;
}

const Maximum* Panel::maximum(const std::string& method) const {
  const auto found = std::ranges::find(maxima, method, &Maximum::method);
  return found == maxima.end() ? nullptr : &*found;
}

const Failure* Panel::failure(const std::string& method) const {
  const auto found = std::ranges::find(failures, method, &Failure::method);
  return found == failures.end() ? nullptr : &*found;
}

std::string Panel::reason(const Failure& failure) const {
  const auto times = factor(failure.x);
  std::string text = name(failure.x) + (times ? " (" + format_factor(*times) + ")" : "") + ": ";
  if (failure.run != nullptr && failure.run->operator_too_large()) {
    const Need& need = *failure.run->need;
    const double most = failure.run->limit.value_or(failure.run->cap.value_or(0));
    text += "the physical end of swapping. The operator " + need.name + " needs " +
            format_memory(need.bytes) + " on the device at once";
    if (need.bytes <= most) {
      text += ", with what cannot leave meanwhile " + format_memory(*need.least_limit);
    }
    return text + ", and there are " + format_memory(most);
  }
  if (failure.why == "host") {
    text += "more than the host's memory";
    if (failure.run != nullptr && failure.run->host_limit()) {
      text += ", of which " + format_memory(*failure.run->host_limit()) + " were allowed";
    }
    return text;
  }
  return text + (failure.why.empty() ? "did not run" : outcome_text(failure.why));
}

bool is_an_end(const Failure& failure) {
  return failure.why == "host" || (failure.run != nullptr && failure.run->operator_too_large());
}

std::string short_reason(const Failure& failure) {
  if (failure.run != nullptr && failure.run->operator_too_large()) return "operator too large";
  return failure.why == "host" ? "host full" : outcome_text(failure.why);
}

std::string Panel::title() const {
  std::set<std::string> fixed;
  for (const auto* list : {&runs, &linked}) {
    for (const Record* run : *list) {
      fixed.insert(over_side ? (run->batch ? "batch " + coordinate(*run->batch) : "")
                             : size_text(*run));
    }
  }
  std::string text = over_side ? "Resolution" : "Batch";
  if (!series.starts_with("resolution") && !series.starts_with("batch") && !series.empty()) {
    text = series;
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  }
  if (fixed.size() == 1 && !fixed.begin()->empty()) text += " at " + *fixed.begin();
  return text;
}

std::string Panel::conditions() const {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  };
  add(model);
  add(precision);
  if (cap) add("cap " + format_memory(*cap));
  return text;
}

std::string Panel::settings() const {
  std::vector<const Record*> all = runs;
  all.insert(all.end(), linked.begin(), linked.end());
  std::string text;
  const auto in_all = [&](const auto& setting) {
    return std::ranges::all_of(all, [&](const Record* run) {
      const auto settings = settings_of(*run);
      return std::ranges::find(settings, setting) != settings.end();
    });
  };
  bool differ = false;
  for (const Record* run : all) differ |= settings_of(*run) != settings_of(*all.front());
  for (const auto& setting : settings_of(*all.front())) {
    if (in_all(setting)) text += (text.empty() ? "" : ", ") + setting_text(setting);
  }
  if (differ) text += std::string(text.empty() ? "" : "; ") + "others differ, see the table";
  return text;
}

std::vector<std::string> Panel::methods() const {
  std::vector<std::string> names;
  for (const Record* run : runs) {
    if (std::ranges::find(names, run->method) == names.end()) names.push_back(run->method);
  }
  std::ranges::sort(names, older);
  return names;
}

std::vector<Study> studies_of(const Input& input) {
  std::map<std::string, std::map<Key, std::vector<const Record*>>> grouped;
  for (const Record& record : input.records) {
    grouped[record.study][key_of(record)].push_back(&record);
  }

  std::vector<Study> studies;
  const auto add = [&](const std::string& name, const Published* published) {
    const auto found = grouped.find(name);
    if (found == grouped.end()) return;
    Study study{name, name, published, {}, {}};
    for (const auto& [key, runs] : found->second) {
      study.panels.push_back(make_panel(runs, name, input));
    }
    std::ranges::stable_sort(study.panels, [](const Panel& a, const Panel& b) {
      const auto rank = [](const Panel& panel) {
        return panel.series.starts_with("resolution") ? 0
               : panel.series.starts_with("batch")    ? 1
                                                      : 2;
      };
      return std::tuple(rank(a), a.series, a.cap.value_or(0)) <
             std::tuple(rank(b), b.series, b.cap.value_or(0));
    });
    lend_references(study.panels);
    if (published != nullptr && !published->title.empty()) study.title = published->title;
    const std::string& model = study.panels.front().model;
    const bool one_model =
        std::ranges::all_of(study.panels, [&](const Panel& panel) { return panel.model == model; });
    if (published == nullptr && !model.empty() && one_model) study.title = model;
    studies.push_back(std::move(study));
    grouped.erase(found);
  };
  for (const Published& published : input.published) add(published.study, &published);
  while (!grouped.empty()) add(std::string(grouped.begin()->first), nullptr);
  // Only now do panels stay where they are.
  for (Study& study : studies) {
    if (study.published == nullptr) continue;
    for (const Goal& goal : study.published->goals) {
      study.verdicts.push_back(verdict_of(goal, study.panels));
    }
  }
  return studies;
}

}  // namespace lms::report
