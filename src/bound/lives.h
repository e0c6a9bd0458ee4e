#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "trace/trace.h"

namespace lms {

/// The position of an operator in the trace; a number of operators more is the same operator in the
/// next step.
using Moment = std::ptrdiff_t;

/// An interval in which nobody uses a block: of the operators after `begin` and before `end`.
struct BoundGap {
  Moment begin = 0;
  Moment end = 0;
  bool ends_in_use = true;  ///< false: the block dies there, unused
};

/// A block's contents between two writes.
struct BoundVersion {
  /// The operator that wrote it; nothing if it was there and nobody writes the block: then there is
  /// a copy below from before.
  std::optional<Moment> written;
  /// What running the operators again that made these contents takes, for the whole block; nothing
  /// if they cannot be run again.
  std::optional<double> recompute_ms;
  Bytes bytes = 0;
  std::vector<BoundGap> gaps;  ///< ascending
};

/// Operators over lists as one operator a tensor, which takes its part of the time.
Trace split_lists(const Trace& trace);

/// Every version of every block that may leave the device, if it has gaps. The lives of blocks from
/// before the step go on over its end; those that are carried over are one block in two steps.
std::vector<BoundVersion> find_versions(const Trace& trace);

}  // namespace lms
