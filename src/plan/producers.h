#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "trace/trace.h"

namespace lms {

/// Which operators the contents of a trace's blocks come from. A plain value; the trace may go.
class Producers {
 public:
  explicit Producers(const Trace& trace);

  /// The operators before number `before` that made or wrote the block, in order: what a
  /// kRematerialise at that moment runs again. All that there are, if the block is dead by then;
  /// the first is the one that made it, if it was born in the step. Valid while this object lives.
  [[nodiscard]] std::span<const std::size_t> at(TraceBlockId block, std::size_t before) const;

 private:
  std::vector<std::vector<std::size_t>> producers_;  // by block
};

}  // namespace lms
