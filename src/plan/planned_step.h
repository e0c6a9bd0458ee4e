#pragma once

#include <atomic>
#include <cstdint>

#include "plan/timing/timing.h"

namespace lms {

/// What make_plan() is asked.
struct SearchOptions {
  double seconds = 2;        ///< most time to spend on improving the first plan
  std::uint64_t seed = 1;    ///< same trace, budget, link, seed and rounds: same plan
  std::int64_t rounds = -1;  ///< most improvements to try; -1: as many as there is time for
  /// Blocks may be dropped and computed again; otherwise they are kept and swapped alone.
  bool recompute = false;
  /// Where to begin, if blocks may be computed again: a plan for a step of the same operators and
  /// blocks, whatever their times and the budget. It must live as long as the call.
  const Plan* start = nullptr;
  /// Steps wait for it: make_placed_plan() is content with the first plan that fits.
  bool hasty = false;
  /// Once that is true nobody wants the plan any more: the search ends as soon as it can, with
  /// whatever there is. It must live as long as the call; null: never.
  const std::atomic<bool>* stop = nullptr;

  bool operator==(const SearchOptions&) const = default;
};

struct PlannedStep {
  Plan plan;
  PlanTiming predicted;  ///< without timeline
};

}  // namespace lms
