#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lab/report/load.h"

namespace lms::report {

/// A record as `lms bench` writes it, made up.
inline nlohmann::json made_up(const std::string& method, double side, double rate,
                              const std::string& outcome = "ok") {
  nlohmann::json json = {{"schema", "lms-bench/1"},
                         {"study", "B3"},
                         {"series", "resolution"},
                         {"model", "resnet50"},
                         {"batch", 1},
                         {"sides", {side, side}},
                         {"precision", "tf32"},
                         {"method", method},
                         {"cap", 17179869184},
                         {"link_emulated", nullptr},
                         {"outcome", outcome},
                         {"samples", {{"unit", "MP"}, {"per_step", side * side / 1e6}}}};
  if (outcome == "ok") {
    json["steps"] = {side * side / 1e6 / rate};
    json["rate"] = {{"mean", rate}, {"median", rate}, {"spread", 0.01}};
  } else {
    json["message"] = "it did not go";
  }
  return json;
}

inline void add(Input& input, const nlohmann::json& json) {
  load_text(json.dump(), "made-up.json", true, input);
}

/// With the published figures.
inline Input input_of(const std::vector<nlohmann::json>& all) {
  Input input;
  load_text(published_text(), "published", true, input);
  for (const nlohmann::json& each : all) add(input, each);
  return input;
}

}  // namespace lms::report
