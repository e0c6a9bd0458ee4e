#include "plan/makers.h"

#include <algorithm>

namespace lms {

Makers::Makers(const Trace& trace) : makers_(trace.blocks.size()) {
  for (std::size_t at = 0; at < trace.operators.size(); ++at) {
    for (const TraceBlockId id : trace.operators[at].writes) makers_[id].push_back(at);
    for (const TraceBlockId id : trace.operators[at].allocs) makers_[id].push_back(at);
  }
}

std::span<const std::size_t> Makers::at(TraceBlockId block, std::size_t before) const {
  const auto& all = makers_[block];
  return {all.begin(), std::ranges::lower_bound(all, before)};
}

}  // namespace lms
