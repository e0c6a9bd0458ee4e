#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bound/forecast.h"
#include "plan/timing/link.h"
#include "trace/trace.h"

namespace lms::tool {

/// What `lms plan` has found out.
struct PlanReport {
  std::string trace_name;
  std::size_t operators = 0;
  std::size_t blocks = 0;
  LinkModel link;
  Forecast at_limit;
  Forecast at_twice_the_limit;
  Forecast at_half_the_batch;  ///< under the same limit: see half_batch()
  BoundAnswer bound;           ///< at the limit
};

/// For people, several lines.
std::string plan_text(const PlanReport& report);

/// For machines: JSON, "format": "lms-forecast", "version": 1. Bytes and milliseconds; overheads
/// are ratios less one; what does not exist is null.
std::string plan_json(const PlanReport& report);

/// What `lms plan` has found out where it was given no limit.
struct LimitsReport {
  std::string trace_name;
  std::size_t operators = 0;
  std::size_t blocks = 0;
  LinkModel link;
  Bytes in_memory_peak = 0;
  double in_memory_ms = 0;
  LeastLimit least;               ///< that one operator needs
  std::optional<Bytes> smallest;  ///< for which a plan was found
  std::vector<Forecast> rows;     ///< the largest limit first
};

/// For people: a table, a limit a line.
std::string limits_text(const LimitsReport& report);

/// For machines, as plan_json(): "format": "lms-limits".
std::string limits_json(const LimitsReport& report);

/// What `lms trace` says: operators, blocks, peak, the largest operators by time and by memory.
std::string trace_text(const Trace& trace, const std::string& name);

}  // namespace lms::tool
