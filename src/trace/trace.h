#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace lms {

/// A block of a trace: its position in Trace::blocks, which is the order of first appearance in
/// the step and therefore repeats from step to step.
using TraceBlockId = std::uint32_t;

/// Raised by every change of what the values of a Trace mean.
inline constexpr int kTraceVersion = 3;

/// Whether the list names the block.
[[nodiscard]] inline bool is_among(const std::vector<TraceBlockId>& list, TraceBlockId block) {
  return std::ranges::find(list, block) != list.end();
}

/// "No block": see TraceBlock::carried_from.
inline constexpr std::int64_t kNoBlock = -1;

struct TraceBlock {
  Bytes bytes = 0;
  bool born_in_step = false;  ///< false: was there when the step began (weights, optimizer state)
  /// False: it stays on the device all its life, because nothing is known that could move it (no
  /// operator was seen to use it), or because somebody has its address (a collective).
  bool movable = true;
  /// Of a block that was there when the step began: the block born in every step that is this one
  /// in the step after it (a gradient kept, a batch fetched ahead). kNoBlock: the same block serves
  /// every step.
  std::int64_t carried_from = kNoBlock;

  /// The same block was there when the step before began.
  [[nodiscard]] bool lasts() const { return !born_in_step && carried_from == kNoBlock; }
  /// It lasts, on the device.
  [[nodiscard]] bool stays() const { return lasts() && !movable; }
};

/// Memory that an operator takes and gives back while it runs. `begin` is its number among the
/// operator's allocations (results and temporaries, from 0), `end` how many of them had been made
/// when it was given back: two temporaries coexist if these intervals overlap.
struct TraceTemporary {
  Bytes bytes = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// Most bytes that an operator's temporaries take beside all of its results, whenever those are
/// made. `allocations`: the bytes of each, results and temporaries, in order. What a temporary
/// takes is said there, not in `temporaries`.
[[nodiscard]] Bytes beside_results(std::span<const Bytes> allocations,
                                   std::span<const TraceTemporary> temporaries);

/// One outermost operator. Every list names a block at most once; a block may be in both `reads`
/// and `writes`. Running it again, to have a block's bytes back, makes all its results and
/// temporaries again, in the same order.
struct TraceOperator {
  std::string name;
  std::vector<TraceBlockId> reads;   ///< alive before the operator, contents needed
  std::vector<TraceBlockId> writes;  ///< alive before the operator, contents changed
  /// Of `writes`: what running it again neither needs nor changes (a batch norm's running
  /// statistics).
  std::vector<TraceBlockId> spared;
  /// Born in the operator (or between it and the one before) and alive after it, in the order of
  /// their allocation. Their numbers among its allocations are those that no temporary has.
  std::vector<TraceBlockId> allocs;
  std::vector<TraceBlockId> frees;  ///< die after the operator, before the next one
  double ms = 0;                    ///< computation, without waiting for any copy
  /// Of running it again, where that is cheaper (a batch norm from its saved statistics);
  /// negative: as `ms`.
  double replay_ms = -1;
  /// What running it again reads, if that is not `reads`: it computes one of them by the way, from
  /// these, which nobody has written since (a product that is converted). Empty: the same.
  std::vector<TraceBlockId> replay_reads = {};
  /// Most bytes in use beside all blocks while it runs, its results from its beginning on: a
  /// temporary that has gone before a result comes takes no room of its own. See beside_results().
  Bytes workspace = 0;
  std::vector<TraceTemporary> temporaries;  ///< ascending by `begin`; empty if not recorded
  /// Running it again on the same bytes gives the same bits and has no other effect.
  bool repeatable = false;
  /// What the host takes until it has queued the operator, from when it had queued the one before:
  /// the program's own time, and that of all that is not the plan's. 0: not known.
  double host_ms = 0;
  /// The host waits here until the device has computed all that is queued (somebody looks at a
  /// value).
  bool host_waits = false;

  /// What running it again takes.
  [[nodiscard]] double again_ms() const { return replay_ms < 0 ? ms : replay_ms; }
  [[nodiscard]] const std::vector<TraceBlockId>& again_reads() const {
    return replay_reads.empty() ? reads : replay_reads;
  }
  /// Running it again leaves the block alone.
  [[nodiscard]] bool spares(TraceBlockId block) const;
};

/// What a step did: a plain value. Positions in `operators` are the clock of plans.
struct Trace {
  int version = kTraceVersion;
  std::vector<TraceBlock> blocks;
  std::vector<TraceOperator> operators;

  /// What the block is called in the step in which it is born, if it was there when this one began.
  [[nodiscard]] TraceBlockId name_at_birth(TraceBlockId block) const {
    const std::int64_t from = blocks[block].carried_from;
    return from == kNoBlock ? block : static_cast<TraceBlockId>(from);
  }

  /// Everything that is inconsistent, a sentence each; empty if the trace can be used.
  [[nodiscard]] std::vector<std::string> validate() const;

  /// Bytes alive while each operator runs, its results and its workspace included. The largest is
  /// what the step takes in memory. The trace must be valid.
  [[nodiscard]] std::vector<Bytes> live_bytes() const;

  /// Bytes that must be there while each operator runs, whatever else is away: what cannot move,
  /// what it uses and makes, its workspace.
  [[nodiscard]] std::vector<Bytes> least_bytes() const;

  /// Of an operator, by its temporaries: its workspace is no less.
  [[nodiscard]] Bytes beside_results(const TraceOperator& op) const;

  /// Sum over the operators; 0: what the host takes is not known.
  [[nodiscard]] double host_ms() const;
};

/// Makes a trace in the order in which things happen in the step.
class TraceBuilder {
 public:
  /// A block that is there when the step begins. Call before the first operator.
  TraceBlockId existing(Bytes bytes);
  /// The block stays on the device all its life.
  void unmovable(TraceBlockId block);
  /// Each step's `block` is what the step before it made as `from`.
  void carried(TraceBlockId block, TraceBlockId from);
  /// The next operator. Returns its position.
  std::size_t run(std::string_view name, std::vector<TraceBlockId> reads,
                  std::vector<TraceBlockId> writes, double ms, Bytes workspace = 0);
  /// Memory that the last operator takes beside its results: see TraceTemporary. Its workspace is
  /// for the caller to give.
  void temporary(Bytes bytes, std::uint32_t begin, std::uint32_t end);
  /// The last operator may be run again, in this time: see TraceOperator::replay_ms.
  void repeatable(double replay_ms = -1);
  /// What running the last operator again reads: see TraceOperator::replay_reads.
  void reads_again(std::vector<TraceBlockId> blocks);
  /// Of what the last operator writes: running it again leaves the block alone.
  void spared(TraceBlockId block);
  /// What the host takes for the last operator: see TraceOperator::host_ms, host_waits.
  void on_host(double ms, bool waits = false);
  /// A result of the last operator.
  TraceBlockId result(Bytes bytes);
  /// The block dies after the last operator.
  void dies(TraceBlockId block);

  /// The trace. Throws Error with everything that is inconsistent.
  [[nodiscard]] Trace build() const;

 private:
  TraceBlock& at(TraceBlockId block);
  TraceOperator& last(const char* caller);

  Trace trace_;
};

}  // namespace lms
