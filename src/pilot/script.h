#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/node_allocator.h"
#include "pilot/plan_trial.h"
#include "pilot/step_lengths.h"
#include "pilot/turns.h"
#include "plan/beyond_room.h"
#include "plan/search.h"
#include "plan/timing/link.h"
#include "plan/timing/timing.h"
#include "steps/step_log.h"
#include "steps/step_sizes.h"

namespace lms {

/// A step that is known, and, once it has been planned, what to do in it. Immutable while followed.
struct Script {
  StepShape shape;
  /// Scripts of the same form have the same number here: they are one step in several sizes, see
  /// same_form(), with the same allocations.
  std::uint64_t form = 0;
  std::uint64_t grown_from = 0;  ///< the form of a shorter one that this one is to replace; 0: none
  Bytes needed = 0;              ///< bytes_needed(), when it was learnt
  /// Blocks smaller than this may be there in one size of the step and, too small to be managed,
  /// not in another.
  Bytes marginal = 0;
  Bytes least = 0;             ///< smaller blocks are not managed: nobody hears of them
  std::size_t updated_by = 0;  ///< lms::updated_by()
  /// Beside trace.blocks: the operator from which on its use tells the place, as it was made long
  /// before; kNever: it is not made in the step, or too many use it.
  std::vector<std::size_t> telling_from;
  static constexpr std::size_t kNever = SIZE_MAX / 2;
  bool planned = false;
  Plan plan;
  Placement placement;
  std::vector<Unplaced> unplaced;  ///< of the placement
  PlanTiming predicted;
  bool hopeless = false;  ///< planning it has failed: it stays reactive
  int hurried = 0;        ///< so often another's plan has been given up for its first one
  int followed = 0;       ///< so many steps have followed its plan
  int awaited = 0;        ///< so many steps have been timed in vain that might have been this
  int hope = 16;          ///< so many may be, until it comes
  /// Blocks that every step reads and none writes, by uid, ascending. If somebody writes them
  /// between two of its rounds, they may be parts of a longer step.
  std::vector<BlockUid> only_read;
  /// How often it has ended early, and the operator (of all ever seen) until which it is not to be
  /// taken up again: perhaps it is only part of a longer step.
  int ended_early = 0;
  int patience = 2;  ///< so often it may end early before it is shunned (again)
  std::uint64_t shunned_until = 0;
  bool left = false;       ///< the last step that began as it was another
  bool has_parts = false;  ///< rounds of a shorter one that has been suspected
  bool suspected = false;  ///< of being a part of a longer one
  bool waits = false;      ///< for its plan, before it is followed: its parts are meanwhile
  bool is_part = false;    ///< of a step, by all that is known: micro-batches, say
  StepLengths lengths;     ///< of its steps, where they take detours
  Bytes budget = 0;        ///< that the plan was made for
  Bytes room = 0;          ///< bytes on the device that there were for it
  Bytes page = 0;          ///< in which they can be scattered; 0: they cannot
  bool addresses = false;  ///< the placement is to be followed
  bool kept = false;       ///< its plan comes from an earlier start
  bool refined = false;    ///< planned with the times of steps that followed a plan
  bool measured = false;   ///< a step under this plan has been timed since it was refined
  LinkModel link;          ///< that the plan was made for
  /// What the updates write that had better wait; until the device has been told.
  std::vector<BlockUid> deferred;
  /// directives of the moment before operator i: [starts[i], starts[i + 1]) of plan.directives
  std::vector<std::size_t> starts;
  std::vector<bool> recorded;  ///< operators that a rematerialisation of the plan runs again
  std::vector<bool> ghosts;    ///< blocks that the plan computes again after their end
  /// Blocks that the plan has leave between their last use in a step and their first in the next.
  std::vector<bool> leaves_between;
  /// Of the step, not of the plan; guarded by the pilot's lock.
  std::shared_ptr<Turns> turns;
  /// Whether the plan stays; null: it does. Guarded likewise.
  std::shared_ptr<PlanTrial> trial;

  [[nodiscard]] std::size_t size() const { return shape.operators.size(); }
  /// It is known, but no plan can be made of it.
  [[nodiscard]] bool in_vain() const { return hopeless && !planned; }
  /// Its plan is that of estimated times, or of times without a plan, and could be made again by
  /// now.
  [[nodiscard]] bool wants_better() const {
    constexpr int kOften = 2;
    constexpr int kInVain = 8;
    return planned && !refined && !hopeless && followed >= kOften && awaited < kInVain;
  }
  /// Steps are timed in the hope that they are this one, which costs the host an event and some
  /// queries an operator: but not for ever, as it may be no more.
  [[nodiscard]] bool is_hoped_for() const { return awaited < hope; }
  /// It has come.
  void has_come() {
    // One that comes seldom had been given up before.
    constexpr int kMost = 1 << 14;
    if (!planned && awaited >= hope) hope = std::min(2 * hope, kMost);
    awaited = 0;
  }
  /// A detour of another's plan is better.
  [[nodiscard]] bool is_poor() const { return in_vain() || (!planned && lengths.never_right()); }
  /// `predicted` again, with when everything happens.
  [[nodiscard]] PlanTiming timeline() const { return time_plan(shape.trace, plan, link, true); }
  /// True if the plan wants this operator to be run again.
  [[nodiscard]] bool records(std::size_t op) const { return op < recorded.size() && recorded[op]; }
  /// Fills what follows from the plan, and sets `planned`.
  void finish();
  /// Fills `telling_from`, from the shape.
  void find_telling();
  /// What has been learnt of the step since this script was followed.
  void take_standing(const Script& followed);

 private:
  void find_recorded();
};

/// True if the first `count` operators of both look the same while they happen: keys, sizes and
/// order of uses and allocations.
bool same_beginning(const StepShape& a, const StepShape& b, std::size_t count);
/// True if both are the same step: same_beginning() over all of both.
bool same_step(const StepShape& a, const StepShape& b);
/// True if the same blocks of their traces do the same in both, which are the same step: a plan of
/// the one is one of the other.
bool same_blocks(const StepShape& a, const StepShape& b);

/// There are steps of these operators in other sizes, too.
[[nodiscard]] bool of_several_sizes(const std::vector<std::shared_ptr<Script>>& scripts,
                                    const Script& script);

/// Walks along a script while the step runs, and tells who is who: which of the device's blocks is
/// which block of the trace. Each function that returns false has found a difference and has
/// changed nothing; `why()` then has it in words. Not thread-safe.
class Walk {
 public:
  /// Which sizes what is made in the step may have, and what takes turns; weights have theirs.
  enum class Sizes : std::uint8_t {
    kEqual,   ///< those of the script
    kWithin,  ///< no larger, but for a trifle altogether: what is planned has room for it
    kAny,
  };

  explicit Walk(const Script& script);

  [[nodiscard]] const Script& script() const { return *script_; }
  /// The operator that runs, or will be the next to.
  [[nodiscard]] std::size_t position() const { return position_; }
  [[nodiscard]] bool inside() const { return inside_; }
  [[nodiscard]] const std::string& why() const { return why_; }

  bool begin(OperatorKey key);
  bool touch(BlockUid uid, Bytes bytes, bool writes, void* block);
  /// True if the walk goes on as touch() does, with a block that has been met at this very place
  /// before. Else nothing has changed, and touch() says more.
  bool touch_known(BlockUid uid, Bytes bytes, bool writes, const void* block) {
    const auto& op = script_->shape.operators[position_];
    if (!inside_ || touches_ >= op.touches.size()) return false;
    const auto& expected = op.touches[touches_];
    const auto id = static_cast<TraceBlockId>(expected.block);
    const Bound& who = bound_[id];
    if (who.uid != uid || who.block != block || expected.writes != writes ||
        script_->shape.trace.blocks[id].bytes != bytes) {
      return false;
    }
    meet(id);
    ++touches_;
    return true;
  }
  /// Where the plan wants this allocation, or kNoAddress: what is larger than planned does not fit.
  bool alloc(BlockUid uid, Bytes bytes, Bytes* address);
  void release(BlockUid uid);
  /// What the operator has done so far was in vain: it begins anew.
  void restart();
  /// The operator has ended. True if it was the last: the walk is at the step's start again.
  bool end();

  [[nodiscard]] Sizes sizes() const { return sizes_; }
  /// Until the step ends.
  void allow(Sizes sizes);
  /// True if the last difference was one of size alone.
  [[nodiscard]] bool differs_in_size() const { return wrong_size_.has_value(); }
  /// True if all sizes of this step so far, and the one that was the last difference, are within
  /// those of a script of this form, but for a trifle.
  [[nodiscard]] bool within(const Script& script) const;
  /// Likewise true if these sizes are in sum larger than the script's own of the same blocks: of a
  /// batch that is larger the first operators tell as much as all.
  [[nodiscard]] bool outgrows(const Script& script) const;
  /// The sizes of this step so far, of what is still to come those of the script. Not with kEqual.
  [[nodiscard]] const StepSizes& seen() const { return *seen_; }
  /// The walk of a script of the same form at the same place.
  [[nodiscard]] Walk in_size_of(const Script& other) const;

  struct Bound {
    BlockUid uid = 0;       ///< 0: not met yet, or gone
    void* block = nullptr;  ///< as given to touch(); null until then
  };
  [[nodiscard]] const Bound& bound(TraceBlockId id) const { return bound_[id]; }
  /// Who the block was that has died in this step, if the plan still counts on it; else 0.
  [[nodiscard]] BlockUid ghost(TraceBlockId id) const {
    const auto found = ghosts_.find(id);
    return found == ghosts_.end() ? 0 : found->second;
  }
  /// Where the plan has the block now if it is on the device; kNoAddress if it does not say.
  [[nodiscard]] Bytes home(BlockUid uid) const;
  /// The block serves next at a place that turns (0, or one that serves elsewhere: nobody knows who
  /// will). Whoever is met there does in fact.
  void expect(TraceBlockId id, BlockUid uid, void* block);
  /// Who has served there in this step, or, if nobody has yet, in the one before.
  [[nodiscard]] BlockUid served(TraceBlockId id) const;
  /// An arrival of the plan has been begun.
  void set_home(TraceBlockId id, Bytes address) { home_[id] = address; }

  /// Which of the device's blocks was which of the trace's.
  using Names = PooledMap<BlockUid, TraceBlockId>;
  /// From now on, until taken, the names of all blocks of this step are kept, of those that die in
  /// it as well. To be called at its start.
  void keep_names() { names_ = ids_; }
  [[nodiscard]] Names take_names();

  /// What it has gone along with in this step, to a log; if it has jumped, the operator that runs
  /// alone. Blocks that are gone get other names.
  void retell(StepLog& log) const;
  /// A walk of `other` at the same place, if the operators so far were alike there; where sizes may
  /// differ, whatever theirs are there. Nothing, if it has jumped in this step.
  [[nodiscard]] std::optional<Walk> change_to(const Script& other) const;

  /// Goes along with all operators of the log from `from` on that have ended. False where one
  /// differs; the walk is of no use then.
  bool go_along(const StepLog& log, std::uint64_t from);
  /// Goes on at another operator of the script, as if it had come to it: those between are left
  /// out, or are to run once more. Until the step ends, what is made in it may be taken for one
  /// another where sizes agree.
  void jump(std::size_t position);
  /// What is still to come of the step is left out.
  void begin_next() { start_step(); }
  /// It has jumped in this step.
  [[nodiscard]] bool jumped() const { return jumped_; }
  /// Operators that were left out in this step.
  [[nodiscard]] std::size_t left_out() const { return left_out_; }
  /// True if operator `number` of the log looks like that of the script: what it is, how much it
  /// uses, and weights and their like. `*telling`: if so, there are such, or something that was
  /// made long before in this step (a weight's copy in another type, a saved activation).
  [[nodiscard]] bool is_like(const StepLog& log, std::uint64_t number, std::size_t position,
                             bool* telling) const;

 private:
  struct Temporary {
    BlockUid uid;
    Bytes bytes;
    std::size_t index;  ///< of the operator's allocations; kNowhere
    bool alive = true;
  };

  void start_step();
  void bind(TraceBlockId id, BlockUid uid, void* block);
  void unbind(TraceBlockId id);
  bool serve(TraceBlockId id, BlockUid uid, void* block);
  bool serve_after_jump(TraceBlockId id, BlockUid uid, void* block);
  [[nodiscard]] bool is_settled(TraceBlockId id) const;
  /// It has been met in this step, and its size is known.
  [[nodiscard]] bool is_there(TraceBlockId id) const;
  /// Its size may be another one each time.
  [[nodiscard]] bool is_elastic(TraceBlockId id) const;
  [[nodiscard]] bool is_marginal(Bytes bytes) const { return bytes < script_->marginal; }
  [[nodiscard]] std::optional<std::size_t> touch_of(BlockUid uid, Bytes bytes, bool writes) const;
  [[nodiscard]] std::optional<std::size_t> allocation_of(Bytes bytes) const;
  /// What the running operator works on is so many times as large as in the script; nothing: not
  /// known.
  [[nodiscard]] std::optional<double> scale() const;
  [[nodiscard]] bool is_unknown(Bytes bytes) const;
  [[nodiscard]] Bytes wanted_by(const Script& script) const;
  bool varies_here(std::string why, std::optional<std::size_t> elsewhere);
  enum class Of : std::uint8_t { kUses, kAllocations, kBeyond };
  /// `index`: of the operator's uses, or its allocations; of what is beyond these, none.
  bool may_have(Bytes bytes, Bytes expected, Of of, std::size_t index);
  void see(TraceBlockId id, Bytes bytes);
  [[nodiscard]] bool is_temporary(BlockUid uid) const;
  void settle_results();
  void settle_beyond();
  void note_unheard(std::size_t from, std::size_t to);
  void settle(std::size_t index, const Temporary& made);
  [[nodiscard]] bool fits(TraceBlockId id) const;
  [[nodiscard]] bool met(TraceBlockId id) const { return met_[id] == step_; }
  void meet(TraceBlockId id);
  bool differs(std::string why);

  const Script* script_;
  std::vector<Bound> bound_;
  std::vector<Bytes> home_;
  Names ids_;
  std::uint64_t step_ = 0;
  std::vector<std::uint64_t> met_;  ///< the last step in which an operator has used it
  std::vector<std::pair<TraceBlockId, BlockUid>> served_;  ///< in this step, for Turns
  std::vector<TraceBlockId> stand_ins_;  ///< places of this step that have another's block
  std::unordered_map<TraceBlockId, BlockUid> ghosts_;
  std::optional<Names> names_;          ///< kept, of this step
  std::vector<Temporary> temporaries_;  ///< of the operator at position_
  Bytes beyond_ = 0;                    ///< of those, what the script does not have
  std::size_t position_ = 0;
  std::size_t touches_ = 0;      ///< of the operator at position_
  std::size_t allocations_ = 0;  ///< likewise
  std::size_t allocated_ = 0;    ///< of all operators before
  bool inside_ = false;
  bool jumped_ = false;
  std::size_t left_out_ = 0;
  Sizes sizes_ = Sizes::kEqual;
  std::optional<StepSizes> seen_;  ///< unless sizes are equal
  Bytes excess_ = 0;               ///< of what is larger than in the script
  static constexpr std::size_t kNowhere = SIZE_MAX;
  struct WrongSize {
    Bytes bytes;  ///< 0: it is there in one size, and not in the other
    Of of;
    std::size_t index;
  };
  std::optional<WrongSize> wrong_size_;  ///< the last difference
  std::string why_;
};

}  // namespace lms
