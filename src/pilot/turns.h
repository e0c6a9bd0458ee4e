#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "steps/step_log.h"

namespace lms {

/// The places of a step where another block may serve each time (a batch of several that are kept),
/// who has served there, and who is expected next. A place is a block of the step's trace. Belongs
/// to all scripts of one step. Not thread-safe.
class Turns {
 public:
  explicit Turns(const StepShape& shape);

  /// True if another block may serve there, and the step is the same: it is one that was there
  /// before, and the step only reads it, or others have served there when the step was learnt.
  [[nodiscard]] bool may_turn(TraceBlockId place) const { return may_turn_[place]; }
  /// True if others have served there.
  [[nodiscard]] bool turns(TraceBlockId place) const { return turning_[place] != kNone; }
  /// True if no operator uses it.
  [[nodiscard]] bool idle(TraceBlockId place) const { return last_use_[place] == 0; }
  /// True if no operator from this moment on uses it any more in this step, or none has yet: who is
  /// meant is the one that serves next.
  [[nodiscard]] bool between(TraceBlockId place, std::size_t moment) const {
    return moment >= last_use_[place] || moment <= first_use_[place];
  }
  /// All that turn.
  [[nodiscard]] std::span<const TraceBlockId> all() const { return all_; }
  /// The places that turn and are used for the last time by the operator before this moment.
  [[nodiscard]] std::span<const TraceBlockId> done(std::size_t moment) const;

  /// The block has served there in the step that has ended. For places that may_turn().
  void serves(TraceBlockId place, BlockUid uid);
  /// Who has followed this block there before; 0 if that is not known, or guesses have been wrong
  /// lately.
  [[nodiscard]] BlockUid next(TraceBlockId place, BlockUid uid) const;
  /// Who served there in the last step that has ended, or in the one before that; 0: nobody.
  [[nodiscard]] BlockUid last(TraceBlockId place) const;
  [[nodiscard]] BlockUid last_but_one(TraceBlockId place) const;

 private:
  static constexpr std::int32_t kNone = -1;
  struct Place {
    BlockUid last = 0;
    BlockUid last_but_one = 0;
    std::unordered_map<BlockUid, BlockUid> next;
    int doubt = 0;  ///< guesses that must be right until they are believed again
  };
  void turn(TraceBlockId place);

  std::vector<bool> may_turn_;
  std::vector<std::size_t> first_use_;  ///< the operator; as many as there are, if idle
  std::vector<std::size_t> last_use_;   ///< one past the operator; 0: idle
  std::vector<BlockUid> only_;          ///< who serves where nobody else has
  std::vector<std::int32_t> turning_;   ///< in places_
  std::vector<Place> places_;
  std::vector<TraceBlockId> all_;  ///< beside places_
  std::unordered_map<std::size_t, std::vector<TraceBlockId>> done_;
};

}  // namespace lms
