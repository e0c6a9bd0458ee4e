#include "plan/place/placement.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "plan/place/live_ranges.h"
#include "plan/place/pack.h"
#include "plan/place/scatter.h"

namespace lms {

Placement place(const Trace& trace, const Plan& plan, Bytes alignment, double seconds) {
  return place(trace, plan, alignment, seconds, {});
}

Placement place(const Trace& trace, const Plan& plan, Bytes alignment, double seconds,
                const Pages& pages) {
  if (alignment <= 0) throw Error("place(): an alignment of " + std::to_string(alignment));
  LiveRanges ranges(trace, plan, alignment);
  Bytes bytes = pack(ranges.rectangles(), ranges.period(), seconds);
  if (pages.page > 0 && bytes > pages.room) {
    std::vector<Rectangle> apart = ranges.rectangles();
    if (auto found = scatter(apart, ranges.whole(), ranges.period(), pages.room, pages.page)) {
      ranges.rectangles() = std::move(apart);
      return ranges.placement(*found, pages.page);
    }
  }
  Placement result = ranges.placement();
  result.bytes = bytes;
  return result;
}

}  // namespace lms
