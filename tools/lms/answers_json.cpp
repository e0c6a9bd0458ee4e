// The answers of `lms plan` for programs.

#include <nlohmann/json.hpp>

#include "tools/lms/printing.h"

namespace lms::tool {
namespace {

using Json = nlohmann::ordered_json;

std::string written(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

Json link_json(const LinkModel& link) {
  return {{"out_bytes_per_ms", link.out_bytes_per_ms},
          {"in_bytes_per_ms", link.in_bytes_per_ms},
          {"both_bytes_per_ms", link.both_bytes_per_ms}};
}

Json forecast_json(const Forecast& forecast) {
  Json json = {{"limit", forecast.limit},
               {"fits", forecast.fits()},
               {"in_memory_peak", forecast.in_memory_peak},
               {"in_memory_ms", forecast.in_memory_ms},
               {"least_limit", forecast.least.bytes},
               {"least_limit_where", forecast.least.where}};
  if (!forecast.fits()) {
    json["why_not"] = forecast.why_not;
    return json;
  }
  const PlanTiming& timing = forecast.planned->predicted;
  json["step_ms"] = timing.step_ms;
  json["overhead"] = forecast.overhead();
  json["waited_ms"] = timing.waited_ms;
  json["tax_ms"] = timing.tax_ms;
  json["bytes_out"] = timing.bytes_out;
  json["bytes_in"] = timing.bytes_in;
  json["out_busy_ms"] = timing.out_busy_ms;
  json["in_busy_ms"] = timing.in_busy_ms;
  json["recomputed_ms"] = timing.recomputed_ms;
  json["bytes_recomputed"] = timing.bytes_recomputed;
  json["host_bytes"] = forecast.below;
  json["peak"] = timing.peak;
  json["planned_for"] = forecast.budget;
  json["arena"] = forecast.placement.bytes;
  json["arena_lower_bound"] = forecast.placement.lower_bound;
  return json;
}

Json bound_json(const BoundAnswer& answer) {
  if (!answer.bound) return {{"step_ms", nullptr}, {"why_not", answer.why_not}};
  return {{"step_ms", answer.bound->step_ms}, {"overhead", answer.bound->overhead}};
}

}  // namespace

std::string plan_json(const PlanReport& report) {
  const Json json = {
      {"format", "lms-forecast"},
      {"version", 1},
      {"trace", report.trace_name},
      {"operators", report.operators},
      {"blocks", report.blocks},
      {"link", link_json(report.link)},
      {"at_limit", forecast_json(report.at_limit)},
      {"bound", bound_json(report.bound)},
      {"at_twice_the_limit", forecast_json(report.at_twice_the_limit)},
      {"at_half_the_batch_approximately", forecast_json(report.at_half_the_batch)},
  };
  return written(json);
}

std::string limits_json(const LimitsReport& report) {
  Json rows = Json::array();
  for (const Forecast& row : report.rows) rows.push_back(forecast_json(row));
  const bool known = report.smallest.has_value();
  const Json json = {
      {"format", "lms-limits"},
      {"version", 1},
      {"trace", report.trace_name},
      {"operators", report.operators},
      {"blocks", report.blocks},
      {"link", link_json(report.link)},
      {"in_memory_peak", report.in_memory_peak},
      {"in_memory_ms", report.in_memory_ms},
      {"least_limit", report.least.bytes},
      {"least_limit_where", report.least.where},
      {"smallest_limit", known ? Json(*report.smallest) : Json(nullptr)},
      {"limits", rows},
  };
  return written(json);
}

}  // namespace lms::tool
