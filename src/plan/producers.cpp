#include "plan/producers.h"

#include <algorithm>

namespace lms {

Producers::Producers(const Trace& trace) : producers_(trace.blocks.size()) {
  for (std::size_t at = 0; at < trace.operators.size(); ++at) {
    for (const TraceBlockId id : trace.operators[at].writes) producers_[id].push_back(at);
    for (const TraceBlockId id : trace.operators[at].allocs) producers_[id].push_back(at);
  }
}

std::span<const std::size_t> Producers::at(TraceBlockId block, std::size_t before) const {
  const auto& all = producers_[block];
  return {all.begin(), std::ranges::lower_bound(all, before)};
}

}  // namespace lms
