#include "figures/checks.h"

#include <string>

#include "base/error.h"

namespace lms {
namespace {

void check(const char* caller, const char* which, const Trace& trace, std::size_t operators,
           const std::vector<CopyTiming>& copies) {
  const std::string where = std::string(caller) + ": the " + which + " timeline ";
  if (operators != trace.operators.size()) {
    throw Error(where + "has " + std::to_string(operators) + " operators, the trace " +
                std::to_string(trace.operators.size()) +
                (operators == 0 ? " (time_plan() makes one only if asked)" : ""));
  }
  for (const CopyTiming& copy : copies) {
    if (copy.block >= trace.blocks.size()) {
      throw Error(where + "copies block " + std::to_string(copy.block) + ", the trace has " +
                  std::to_string(trace.blocks.size()));
    }
  }
}

}  // namespace

void check_timelines(const char* caller, const Trace& trace, const PlanTiming& predicted,
                     const MeasuredTimeline* measured) {
  check(caller, "predicted", trace, predicted.operators.size(), predicted.copies);
  if (measured != nullptr) {
    check(caller, "measured", trace, measured->operators.size(), measured->copies);
  }
}

Bytes device_at_start(const Trace& trace, const Plan& plan) {
  Bytes bytes = 0;
  for (const TraceBlock& block : trace.blocks) bytes += block.born_in_step ? 0 : block.bytes;
  for (const TraceBlockId id : plan.absent_at_start) bytes -= trace.blocks.at(id).bytes;
  return bytes;
}

}  // namespace lms
