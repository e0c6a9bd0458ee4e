#pragma once

#include "plan/place/placement.h"
#include "plan/search.h"

namespace lms {

/// Addresses and sizes of placed plans are multiples of this.
inline constexpr Bytes kPlacedUnit = 512;

/// A plan, and where everything lies.
struct PlacedPlan {
  Bytes budget = 0;  ///< that the plan was made for: the room, less what addresses waste
  PlannedStep step;
  Placement placement;
};

/// The fastest plan whose placement fits into `pages.room` bytes, of several budgets; of those that
/// are about as fast, the one that leaves most on the device. Uses as many threads as there are
/// processors, and a few times options.seconds. Throws OutOfMemory, with the reason, if there is
/// none.
PlacedPlan make_placed_plan(const Trace& trace, const Pages& pages, const LinkModel& link,
                            const SearchOptions& options = {});

}  // namespace lms
