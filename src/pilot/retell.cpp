#include <unordered_map>

#include "pilot/pilot.h"
#include "pilot/script.h"

namespace lms {

void Walk::retell(StepLog& log) const {
  const StepShape& shape = script_->shape;
  std::unordered_map<TraceBlockId, BlockUid> gone;
  const auto name = [&](BlockUid block) {
    const auto id = static_cast<TraceBlockId>(block);
    if (bound_[id].uid != 0) return bound_[id].uid;
    BlockUid& uid = gone[id];
    if (uid == 0) uid = Pilot::new_uid();
    return uid;
  };
  // Which operators it has jumped over it does not know any more.
  for (std::size_t i = jumped_ ? position_ : 0; i <= position_ && i < shape.operators.size(); ++i) {
    const StepShape::Operator& op = shape.operators[i];
    const TraceOperator& what = shape.trace.operators[i];
    const bool whole = i < position_;
    const std::size_t allocations = whole ? op.allocations.size() : allocations_;
    std::vector<BlockUid> temporaries;
    const auto allocate = [&](bool inside) {
      std::size_t mine = 0;
      for (std::size_t k = 0; k < allocations; ++k) {
        const auto& one = op.allocations[k];
        const bool passing = one.block == kNoBlock;
        const std::size_t number = passing ? mine++ : 0;
        if (one.inside != inside) continue;
        BlockUid uid = 0;
        if (!passing) {
          uid = name(static_cast<BlockUid>(one.block));
        } else if (whole || number >= temporaries_.size()) {
          uid = Pilot::new_uid();
          temporaries.push_back(uid);
        } else {
          uid = temporaries_[number].uid;
        }
        log.alloc(uid, one.bytes);
      }
    };
    allocate(/*inside=*/false);
    if (!whole && !inside_) return;
    log.begin_operator(op.key, what.name, what.repeatable, op.replay_cost);
    allocate(/*inside=*/true);
    const std::size_t touches = whole ? op.touches.size() : touches_;
    for (std::size_t k = 0; k < touches; ++k) {
      const auto& touch = op.touches[k];
      const auto id = static_cast<TraceBlockId>(touch.block);
      log.touch(name(touch.block), shape.trace.blocks[id].bytes, touch.writes);
    }
    for (const BlockUid uid : temporaries) log.release(uid);
    if (!whole) return;
    log.end_operator();
    for (const TraceBlockId id : what.frees) log.release(name(id));
  }
}

}  // namespace lms
