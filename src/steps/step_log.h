#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trace/trace.h"

namespace lms {

/// One allocation, for ever: never used again for another.
using BlockUid = std::uint64_t;

/// What an operator is, apart from what it works on: equal in every run of the same code.
using OperatorKey = std::uint64_t;

/// One outermost operator as it was seen.
struct LoggedOperator {
  struct Touch {
    BlockUid block;
    bool writes;
  };
  /// An allocation or a release, in the order in which they happened.
  struct Change {
    BlockUid block;
    bool alloc;
    bool inside;  ///< between the operator's begin and end; else after its end
  };
  OperatorKey key = 0;
  bool repeatable = false;
  std::uint32_t name = 0;      ///< StepLog::name_of
  double ms = 0;               ///< filled in later, see StepLog::set_ms
  std::vector<Touch> touches;  ///< in the order in which they happened, nested operators' included
  std::vector<Change> changes;
  Bytes live_after = 0;  ///< bytes of all known blocks when the next operator began
};

/// The stream of operators and allocations of one device, as far back as `most_operators`. What
/// happens before the first operator belongs to no operator. Not thread-safe. Feeding costs well
/// under a microsecond an operator.
class StepLog {
 public:
  explicit StepLog(std::size_t most_operators = 1U << 17U);

  void begin_operator(OperatorKey key, std::string_view name, bool repeatable);
  /// The running operator uses the block. A block never heard of was there before.
  void touch(BlockUid block, Bytes bytes, bool writes);
  void end_operator();
  void alloc(BlockUid block, Bytes bytes);
  void release(BlockUid block);
  /// The user says that a step ends here.
  void mark_step();
  void clear();

  /// Operators are numbered from 0 for ever; those before first() are forgotten.
  [[nodiscard]] std::uint64_t first() const;
  [[nodiscard]] std::uint64_t end() const;
  [[nodiscard]] LoggedOperator& at(std::uint64_t number);
  void set_ms(std::uint64_t number, double ms);  ///< no effect on what is forgotten
  [[nodiscard]] const std::string& name_of(const LoggedOperator& op) const;
  [[nodiscard]] Bytes bytes_of(BlockUid block) const;

  /// If the operators up to the last one that has ended are a repetition of those before, and of
  /// nothing shorter that also explains them: the last whole step, from a point where the fewest
  /// bytes are alive (or where the user has said that steps begin). Two runs are the same step if
  /// their operators, sizes and order of uses, allocations and releases agree, blocks that were
  /// there before both and after both are the same blocks, and all other blocks correspond one to
  /// one. At most amortised microseconds an operator.
  struct Span {
    std::uint64_t begin;
    std::uint64_t end;
  };
  [[nodiscard]] std::optional<Span> repeated_step();

 private:
  // The representation is the implementer's choice.
};

/// A recorded step in the form in which it can be met again.
struct StepShape {
  struct Allocation {
    /// The block of the trace, or kNoBlock for a temporary (dead before its operator ended).
    std::int64_t block;
    Bytes bytes;
    bool inside;
  };
  struct Operator {
    OperatorKey key = 0;
    std::vector<LoggedOperator::Touch> touches;  ///< `block` is a TraceBlockId here
    std::vector<Allocation> allocations;         ///< in order
  };
  Trace trace;
  std::vector<Operator> operators;  ///< beside trace.operators
  std::vector<BlockUid> uids;       ///< beside trace.blocks: who they were when recorded
};

/// The step of `span`, which must still be in the log, with the step before it (of the same length)
/// there too: that one tells which blocks are carried over. An allocation between two operators
/// belongs to the later of them. Blocks that no operator touched are not movable.
StepShape make_shape(StepLog& log, StepLog::Span span);

}  // namespace lms
