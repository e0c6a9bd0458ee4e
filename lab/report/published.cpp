#include "lab/report/published.h"

#include <nlohmann/json.hpp>

namespace lms::report {
namespace {

using Json = nlohmann::json;

/// One value, or a range of two, as least and most.
std::pair<std::optional<double>, std::optional<double>> range(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return {};
  if (found->is_array()) return {found->at(0).get<double>(), found->at(1).get<double>()};
  if (found->is_number()) return {found->get<double>(), found->get<double>()};
  return {};
}

std::optional<double> optional_number(const Json& json, const char* name) {
  return range(json, name).first;
}

Goal read_goal(const Json& json) {
  Goal goal;
  const std::string measure = json.at("measure");
  if (measure == "factor") {
    goal.measure = Goal::Measure::kFactor;
  } else if (measure == "rate") {
    goal.measure = Goal::Measure::kRate;
  } else if (measure == "overhead") {
    goal.measure = Goal::Measure::kOverhead;
  } else {
    throw std::invalid_argument("measure \"" + measure + "\" is none of factor, rate, overhead");
  }
  goal.over = json.at("over");
  std::tie(goal.from, goal.to) = range(json, "at");
  goal.judge_at = optional_number(json, "judge_at");
  if (!goal.judge_at) goal.judge_at = goal.from;
  std::tie(goal.published_least, goal.published_most) = range(json, "published");
  goal.target = optional_number(json, "target");
  goal.where = json.value("where", "");
  return goal;
}

Published read_study(const Json& json) {
  Published published;
  published.study = json.at("study");
  published.title = json.value("title", "");
  published.subject = json.value("subject", "");
  published.setting = json.value("setting", "");
  published.hardware = json.value("hardware", "");
  const auto each = [&](const char* name, const auto& read) {
    const auto list = json.find(name);
    if (list == json.end()) return;
    for (const Json& item : *list) read(item);
  };
  each("goals", [&](const Json& item) { published.goals.push_back(read_goal(item)); });
  each("overheads", [&](const Json& item) {
    published.overheads.push_back({item.at("size"), item.at("link"), item.at("value")});
  });
  each("links", [&](const Json& item) {
    published.links.push_back(
        {item.at("fast"), item.at("slow"), item.at("value"), item.value("where", "")});
  });
  each("operators", [&](const Json& item) {
    published.operators.push_back({item.at("size"), item.at("bytes")});
  });
  each("traffic", [&](const Json& item) {
    published.traffic.push_back(
        {item.at("size"), item.at("to_device"), item.value("batches", 1.0)});
  });
  each("facts", [&](const Json& item) { published.facts.push_back(item); });
  if (const auto use = json.find("use"); use != json.end()) {
    published.use = {use->at("size"), use->at("at"), use->at("link"), use->at("link_rate"),
                     use->at("gpu")};
  }
  return published;
}

}  // namespace

std::vector<Published> read_published(const Json& json, const std::string& file,
                                      std::vector<Problem>& problems) {
  std::vector<Published> all;
  const auto studies = json.find("studies");
  if (studies == json.end() || !studies->is_array()) {
    problems.push_back({file, R"(there is no list "studies")"});
    return all;
  }
  for (std::size_t i = 0; i < studies->size(); ++i) {
    try {
      all.push_back(read_study((*studies)[i]));
    } catch (const std::exception& error) {
      problems.push_back({file, "studies[" + std::to_string(i) + "]: " + error.what()});
    }
  }
  return all;
}

}  // namespace lms::report
