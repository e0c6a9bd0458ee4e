#include "plan/placement.h"

#include <algorithm>

#include "base/error.h"
#include "plan/placement_pack.h"
#include "plan/placement_stays.h"

namespace lms {

Placement place(const Trace& trace, const Plan& plan, Bytes alignment, double seconds) {
  if (alignment <= 0) throw Error("place(): an alignment of " + std::to_string(alignment));
  Stays stays(trace, plan, alignment);
  const Bytes bytes = pack(stays.rectangles(), stays.period(), seconds);
  Placement result = stays.placement();
  result.bytes = bytes;
  result.lower_bound = stays.most_at_once();
  return result;
}

}  // namespace lms
