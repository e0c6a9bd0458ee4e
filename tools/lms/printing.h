#pragma once

#include <string>

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

/// What `lms trace` says: operators, blocks, peak, the largest operators by time and by memory.
std::string trace_text(const Trace& trace, const std::string& name);

}  // namespace lms::tool
