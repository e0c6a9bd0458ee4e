#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/recompute/derivations.h"
#include "plan/swap/gaps.h"
#include "plan/timing/link.h"

namespace lms {

/// What is to be computed again: a choice of gaps (indices into StepModel::gaps of the step's own
/// model), and how long what came back early stays.
struct Drops {
  std::vector<char> dropped;  ///< by gap: the block goes when the gap begins
  /// By gap: a block that came back as an input of another stays for what wants it next, if that
  /// comes within so many milliseconds of computation; otherwise it goes as soon as it has served.
  std::vector<float> hold_ms;
  /// By block: the same, of blocks that are computed again after their death.
  std::vector<float> ghost_hold_ms;
};

/// The step with its recomputations written out: a trace in which each kRematerialise is an
/// operator of its own, and every stay between a birth and a drop a block of its own. What swaps it
/// as well can so be planned as if nothing were computed again.
class Unrolled {
 public:
  /// The first three must outlive it.
  Unrolled(const Trace& trace, const StepModel& model, const Derivations& derivations,
           const HostCosts& host = {});

  /// Gaps that may be dropped, by StepModel's index.
  [[nodiscard]] bool can_drop(int gap) const {
    return gap_derivations_[static_cast<std::size_t>(gap)] != nullptr;
  }
  /// Of a gap that may be dropped.
  [[nodiscard]] const Derivation& derivation(int gap) const {
    return *gap_derivations_[static_cast<std::size_t>(gap)];
  }

  void write_out(const Drops& drops);

  /// Operators [from, to) of trace() in which a dropped block is away, of the gap's block.
  struct Absence {
    int gap = 0;
    int from = 0;
    int to = 0;
  };
  /// Of every drop but those of ghosts.
  [[nodiscard]] const std::vector<Absence>& absences() const { return absences_; }

  /// What write_out() has made; valid until it is called again. Operators have no names.
  [[nodiscard]] const Trace& trace() const { return out_; }
  [[nodiscard]] double recomputed_ms() const { return recomputed_ms_; }
  /// The step's own operator that the trace's operator `at` is, or, if it computes something again,
  /// is followed by.
  [[nodiscard]] int moment(int at) const { return items_[static_cast<std::size_t>(at)].moment; }
  /// The step's own gap that the trace's block lies in after the trace's operator `at` has used it;
  /// -1 if there is none, and for a ghost.
  [[nodiscard]] int own_gap(TraceBlockId block, int at) const;
  /// The own block that the trace's operator `at` computes again, or -1.
  [[nodiscard]] std::int64_t computes_again(int at) const {
    return items_[static_cast<std::size_t>(at)].again;
  }

  /// A plan for trace() that keeps and swaps, as one for the step itself.
  [[nodiscard]] Plan fold(const Plan& plan) const;

 private:
  static constexpr std::int64_t kNone = -1;
  struct Item {
    int moment = 0;
    std::int64_t again = kNone;
    std::vector<TraceBlockId> drops = {};  ///< own blocks, after the operator
  };
  /// A block that an operator of the step uses or makes, and its gap after that, or -1.
  struct Use {
    TraceBlockId block = 0;
    int gap = -1;
  };
  struct Stay {
    std::int64_t now = kNone;  ///< block of out_, if it is there
    int last = 0;              ///< operator of out_ that used it last
    int last_moment = 0;
    int gap = -1;  ///< dropped gap that it is in
    std::size_t absence = 0;
    bool dead = false;
  };

  TraceOperator& append(int moment, std::int64_t again);
  TraceBlockId new_block(TraceBlockId own, bool movable);
  void use(TraceBlockId own, std::vector<TraceBlockId>& list);
  /// The block is there after this.
  void want(TraceBlockId own, int moment);
  void drop(TraceBlockId own);
  void run(int moment);
  [[nodiscard]] bool holds(TraceBlockId own, int moment) const;
  void finish();

  const HostCosts host_;
  const Trace& trace_;
  const StepModel& model_;
  const Derivations& derivations_;
  std::vector<const Derivation*> gap_derivations_;
  std::vector<std::vector<Use>> uses_;        ///< by operator: of its reads, writes and results
  std::vector<std::vector<int>> block_gaps_;  ///< by block: its gaps, ascending by begin
  const Drops* drops_ = nullptr;
  Trace out_;
  std::size_t size_ = 0;  ///< operators of out_ so far; what lies beyond is kept for its memory
  std::vector<TraceOperator> spare_;
  std::vector<Item> items_;
  std::vector<TraceBlockId> origins_;
  std::vector<Stay> stays_;
  std::vector<Absence> absences_;
  double recomputed_ms_ = 0;
};

}  // namespace lms
