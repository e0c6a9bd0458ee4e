#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "steps/step_log.h"

namespace lms {

/// Steps that have been seen once, each between two places where steps begin: what comes a second
/// time, whatever has come in between, is a step that is known. Memory: bounded. Not thread-safe.
class Occurrences {
 public:
  /// A run of a step. If there was one before it that was the same in operators, sizes and order of
  /// uses, allocations and releases: the blocks from before that it used, in the order of their
  /// first use.
  std::optional<std::vector<BlockUid>> note(const StepLog& log, StepLog::Span span);
  void clear() { seen_.clear(); }
  [[nodiscard]] std::size_t size() const { return seen_.size(); }

 private:
  struct Seen {
    std::uint64_t hash;
    std::vector<BlockUid> before;
  };
  std::deque<Seen> seen_;
};

}  // namespace lms
