#pragma once

#include <cstdint>

#include "plan/timing.h"

namespace lms {

struct SearchOptions {
  double seconds = 2;        ///< most time to spend on improving the first plan
  std::uint64_t seed = 1;    ///< same trace, budget, link, seed and rounds: same plan
  std::int64_t rounds = -1;  ///< most improvements to try; -1: as many as there is time for
  /// Blocks may be dropped and computed again; otherwise they are kept and swapped alone.
  bool recompute = false;
  /// Where to begin, if blocks may be computed again: a plan for a step of the same operators and
  /// blocks, whatever their times and the budget. It must live as long as the call.
  const Plan* start = nullptr;
};

struct PlannedStep {
  Plan plan;
  PlanTiming predicted;  ///< without timeline
};

/// A plan for steps like the trace's under `budget` bytes that keeps and swaps whole blocks, and
/// drops and computes them again if it may, and is as fast as the search can find. It satisfies
/// verify_plan. Throws OutOfMemory, naming the operator and the smallest workable budget, if there
/// is no plan that only keeps and swaps.
PlannedStep make_plan(const Trace& trace, Bytes budget, const LinkModel& link,
                      const SearchOptions& options = {});

}  // namespace lms
