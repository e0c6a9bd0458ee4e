#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "steps/known_blocks.h"
#include "steps/run_pool.h"
#include "trace/trace.h"

namespace lms {

class StepFinder;

/// What an operator is, apart from what it works on: equal in every run of the same code.
using OperatorKey = std::uint64_t;

/// A product of a block with something small, and what converts it: the second can be run again
/// without the first.
enum class Fold : std::uint8_t { kNone, kProduct, kConversion };

/// What running an operator again costs, in parts of its own time.
struct ReplayCost {
  float alone = 1;
  float alone_ms = -1;  ///< or so long, if it is not negative, however long the operator took
  /// As one with what has made the block that it writes, in place: see joined_operators().
  float joined = 1;
  /// In chains of operators that are run again as one: 1 begins one, a higher place follows any
  /// lower one, 0 is none.
  std::uint8_t place = 0;
  std::uint8_t operands = 0;  ///< blocks that it reads there beside the one that it writes
  Fold fold = Fold::kNone;

  bool operator==(const ReplayCost&) const = default;
};

/// One outermost operator as it was seen.
struct LoggedOperator {
  struct Touch {
    BlockUid block;
    bool writes;
    std::uint32_t slot = 0;  ///< of StepLog::blocks(), while the operator is in the log
    /// The operator has used it so before. How often it does may depend on sizes.
    bool again = false;
  };
  /// An allocation or a release, in the order in which they happened.
  struct Change {
    BlockUid block;
    bool alloc;
    bool inside;             ///< between the operator's begin and end; else after its end
    std::uint32_t slot = 0;  ///< like Touch::slot
  };
  OperatorKey key = 0;
  /// Of the key, and of the sizes and the order of uses, allocations and releases since the
  /// operator before ended. Equal if all these are.
  std::uint64_t signature = 0;
  /// Of the key, and of the order of what the operator makes, uses and releases, without marginal
  /// blocks, temporaries, and what is used again. Known when the operator has ended.
  std::uint64_t form = 0;
  bool repeatable = false;
  ReplayCost replay_cost;
  std::uint32_t name = 0;     ///< StepLog::name_of
  double ms = 0;              ///< filled in later, see StepLog::set_ms
  std::span<Touch> touches;   ///< in the order in which they happened, nested operators' included
  std::span<Change> changes;  ///< those inside first
  Bytes live_after = 0;       ///< bytes of all known blocks when the next operator began
};

/// The stream of operators and allocations of one device, as far back as `most_operators`. What
/// happens before the first operator belongs to no operator. Not thread-safe. Feeding costs well
/// under a microsecond an operator. What makes no sense is ignored: blocks without bytes, uses and
/// releases of what has been released, uses and ends outside an operator.
class StepLog {
 public:
  explicit StepLog(std::size_t most_operators = 1U << 17U);
  /// From now on smaller blocks belong to no form: see repeated_form().
  void set_marginal(Bytes marginal) { marginal_ = marginal; }
  ~StepLog();
  StepLog(StepLog&&) noexcept;
  StepLog& operator=(StepLog&&) noexcept;

  void begin_operator(OperatorKey key, std::string_view name, bool repeatable,
                      ReplayCost replay_cost = {});
  /// The running operator uses the block. A block never heard of was there before, one that
  /// is known keeps the size that it was made with.
  void touch(BlockUid block, Bytes bytes, bool writes);
  /// The block can leave the device, as those can that an operator uses. No effect on one never
  /// heard of.
  void may_move(BlockUid block);
  /// The block cannot leave the device until it dies. No effect on one never heard of.
  void keep(BlockUid block);
  /// What the running operator has done so far was in vain: it begins anew. What it has allocated
  /// and still holds, it keeps.
  void restart_operator();
  void end_operator();
  void alloc(BlockUid block, Bytes bytes);
  void release(BlockUid block);
  /// The user says that a step ends here.
  void mark_step();
  /// Forgets operators, blocks and marks. The numbers of operators go on.
  void clear();

  /// Operators are numbered from 0 for ever; those before first() are forgotten.
  [[nodiscard]] std::uint64_t first() const { return first_; }
  /// One past the last that has begun.
  [[nodiscard]] std::uint64_t end() const { return end_; }
  /// The first whose signature is of all that belongs to it.
  [[nodiscard]] std::uint64_t first_whole() const {
    return first_ == origin_ ? first_ : first_ + 1;
  }
  /// `number` in [first(), end()). Valid until the next operator begins; its lists are for as long
  /// as it is in the log, but for those of the last one, which grow.
  [[nodiscard]] LoggedOperator& at(std::uint64_t number) {
    return ring_[number & (ring_.size() - 1)];
  }
  [[nodiscard]] const LoggedOperator& at(std::uint64_t number) const {
    return ring_[number & (ring_.size() - 1)];
  }
  void set_ms(std::uint64_t number, double ms);  ///< no effect on what is forgotten
  [[nodiscard]] const std::string& name_of(const LoggedOperator& op) const {
    return names_[op.name];
  }
  /// 0 if it is not known, or no more.
  [[nodiscard]] Bytes bytes_of(BlockUid block) const;
  /// All that are alive or that an operator in the log has to do with.
  [[nodiscard]] const KnownBlocks& blocks() const { return blocks_; }

  /// If the operators up to the last one that has ended are a repetition of those before, and of
  /// nothing shorter that also explains them: the last whole step, from a point where the fewest
  /// bytes are alive (or where the user has said that steps begin). Two runs are the same step if
  /// their operators, sizes and order of uses, allocations and releases agree, and their blocks
  /// correspond one to one: those that were there before both are the same blocks, but for a part
  /// of what the step takes that may be others each time (half, if it only reads them, else an
  /// eighth); all others were born at the same place of their step, or of the one before it.
  ///
  /// - The operator after the step has always begun, too, so that all that belongs to the step is
  ///   known (see make_shape() for what does). The step is equal to the one before it, which is in
  ///   the log as well.
  /// - Of several points with the fewest bytes, the one that the longest way above them leads to.
  /// No
  ///   step begins where a block would be carried over two beginnings before it dies; if every
  ///   point is such a one, two steps make one.
  /// - What grows or shrinks with every run is no step but a part of one (a recurrent layer), but
  ///   for a trifle (a list of losses): 1/64 of how much the live bytes vary within it.
  /// - If both a period and a multiple of it explain the present, the one that explains the past
  ///   for longer is taken, and the shorter if both do equally. So of micro-steps whose gradients
  ///   accumulate, one is first taken for the step when two were alike; then the optimizer's turn
  ///   contradicts, and once the whole has repeated, it is the step. Operators that the caller has
  ///   fed in between must not be cleared for that.
  /// - Once mark_step() has been called (and the last mark is in the log), only what is between two
  ///   marks next to each other is a step, if it is equal to what is between the two before.
  ///
  /// Cost: amortised well under a microsecond for every operator fed since the last call.
  struct Span {
    std::uint64_t begin;
    std::uint64_t end;
  };
  [[nodiscard]] std::optional<Span> repeated_step();
  /// Likewise, but the sizes of what is made in a step, and of what is another block each time, may
  /// differ, what is marginal may be missing, and operators may take other temporaries.
  [[nodiscard]] std::optional<Span> repeated_form();

 private:
  struct NameHash {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard's name
    std::size_t operator()(std::string_view name) const {
      return std::hash<std::string_view>()(name);
    }
  };
  [[nodiscard]] LoggedOperator& last() { return at(end_ - 1); }
  std::uint32_t number_of(std::string_view name);
  void make_place();
  void forget_first();
  void take_place(KnownBlock& block);
  void take_form_place(KnownBlock& block);
  void settle_form();
  void log_change(std::uint32_t slot, bool alloc);

  std::size_t most_;
  std::uint64_t origin_ = 0;  ///< the first operator since the beginning or clear()
  std::uint64_t first_ = 0;
  std::uint64_t end_ = 0;
  bool running_ = false;
  Bytes live_ = 0;
  Bytes marginal_ = 0;
  std::uint32_t form_allocations_ = 0;  ///< of allocations_, those that count for a form
  std::uint32_t allocations_ = 0;       ///< that belong to the running or the next operator
  std::uint64_t between_ = 0;       ///< signature of the allocations since the last operator ended
  std::uint64_t form_between_ = 0;  ///< its form
  std::vector<LoggedOperator> ring_;  ///< size: a power of two
  RunPool<LoggedOperator::Touch> touches_;
  RunPool<LoggedOperator::Change> changes_;
  KnownBlocks blocks_;
  std::deque<std::string> names_;
  std::unordered_map<std::string, std::uint32_t, NameHash, std::equal_to<>> name_numbers_;
  std::unique_ptr<StepFinder> finder_;
  std::unique_ptr<StepFinder> forms_;
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
    /// `block` is a TraceBlockId here. Uses of temporaries are left out; those of the operator's
    /// own results, by operators nested in it, are not.
    std::vector<LoggedOperator::Touch> touches;
    std::vector<Allocation> allocations;  ///< in order
    /// Bytes of further temporaries, which the operator's kernels for other sizes take.
    Bytes beyond = 0;
    ReplayCost replay_cost;
  };
  Trace trace;
  std::vector<Operator> operators;  ///< beside trace.operators
  std::vector<BlockUid> uids;       ///< beside trace.blocks: who they were when recorded
  /// Blocks that were there before and are others in each step, ascending: a batch of several that
  /// are kept.
  std::vector<TraceBlockId> turning;
};

/// The step of `span`, which must still be in the log, with the step before it (of the same length)
/// there too: that one tells which blocks are carried over. Throws Error if they are not.
///
/// Blocks are numbered: those that were there before and are used, in the order of their first use;
/// those that were there and are not used, the oldest first; those born in the step, in order.
/// An allocation between two operators belongs to the later of them, a release to the earlier; but
/// if the same block comes and goes between two operators, it is a temporary of the later. Of
/// blocks that take turns, the step has the one that it uses; what is as large as one of them and
/// not used is left out, since it may be the next. What an operator writes it reads as well, since
/// nothing is known of how much of it it overwrites. Blocks that no operator has ever touched, and
/// those that are kept, are not movable. Where sizes differ from the step before, each is the
/// larger of both.
StepShape make_shape(StepLog& log, StepLog::Span span);

/// Likewise of a step that came after another one. `before`: whom an earlier run of it has used of
/// what was there before, in the order of their first use (Occurrences::note()). Nothing if the two
/// were not the same step: they used up what was there before, or too much of it was others.
std::optional<StepShape> make_shape(StepLog& log, StepLog::Span span,
                                    const std::vector<BlockUid>& before);

}  // namespace lms
