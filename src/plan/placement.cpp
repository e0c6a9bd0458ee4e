#include "plan/placement.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "plan/placement_pack.h"
#include "plan/placement_scatter.h"
#include "plan/placement_stays.h"

namespace lms {

Placement place(const Trace& trace, const Plan& plan, Bytes alignment, double seconds) {
  return place(trace, plan, alignment, seconds, {});
}

Placement place(const Trace& trace, const Plan& plan, Bytes alignment, double seconds,
                const Pages& pages) {
  if (alignment <= 0) throw Error("place(): an alignment of " + std::to_string(alignment));
  Stays stays(trace, plan, alignment);
  Bytes bytes = pack(stays.rectangles(), stays.period(), seconds);
  if (pages.page > 0 && bytes > pages.room) {
    std::vector<Rectangle> apart = stays.rectangles();
    if (auto found = scatter(apart, stays.whole(), stays.period(), pages.room, pages.page)) {
      stays.rectangles() = std::move(apart);
      return stays.placement(*found, pages.page);
    }
  }
  Placement result = stays.placement();
  result.bytes = bytes;
  return result;
}

}  // namespace lms
