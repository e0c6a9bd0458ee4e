#include "core/unfold.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "plan/producers.h"

namespace lms {
namespace {

class Unfolder {
 public:
  Unfolder(const Trace& trace, const Plan& plan)
      : trace_(trace),
        plan_(plan),
        producers_(trace),
        life_(trace.blocks.size(), kNoBlock),
        dead_(trace.blocks.size()) {}

  Unfolded run() {
    result_.trace.blocks = trace_.blocks;
    result_.plan.absent_at_start = plan_.absent_at_start;
    for (TraceBlockId id = 0; id < trace_.blocks.size(); ++id) {
      result_.blocks.push_back(id);
      if (!trace_.blocks[id].born_in_step) life_[id] = id;
    }
    std::size_t next = 0;
    for (now_ = 0; now_ <= trace_.operators.size(); ++now_) {
      for (; next < plan_.directives.size() && plan_.directives[next].before == now_; ++next) {
        obey(next);
      }
      if (now_ < trace_.operators.size()) operate(trace_.operators[now_]);
    }
    for (TraceBlock& block : result_.trace.blocks) {
      if (block.carried_from == kNoBlock) continue;
      block.carried_from = life_of(static_cast<TraceBlockId>(block.carried_from));
    }
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(TraceBlockId id, const char* what) const {
    throw Error("unfold(): before operator " + std::to_string(now_) + ", block " +
                std::to_string(id) + " " + what);
  }
  [[nodiscard]] TraceBlockId life_of(TraceBlockId id) const {
    if (id >= life_.size() || life_[id] == kNoBlock) fail(id, "is not there");
    return static_cast<TraceBlockId>(life_[id]);
  }
  [[nodiscard]] std::vector<TraceBlockId> lives_of(const std::vector<TraceBlockId>& list) const {
    std::vector<TraceBlockId> result;
    result.reserve(list.size());
    for (const TraceBlockId id : list) result.push_back(life_of(id));
    return result;
  }

  TraceOperator& append(Unfolded::Part part, std::size_t directive) {
    result_.operators.push_back({part, now_, directive});
    swapped_ = false;
    return result_.trace.operators.emplace_back();
  }

  void obey(std::size_t index) {
    const auto& [before, action, id] = plan_.directives[index];
    switch (action) {
      case Action::kDrop:
        drop(id);
        return;
      case Action::kRematerialise:
        make_again(id, index);
        return;
      default:
        result_.plan.directives.push_back({result_.trace.operators.size(), action, life_of(id)});
        swapped_ = swapped_ || action != Action::kKeep;
    }
  }

  void drop(TraceBlockId id) {
    const TraceBlockId life = life_of(id);
    // It would come before them otherwise.
    if (swapped_ || result_.operators.empty()) append(Unfolded::Part::kPause, 0).name = "drop";
    result_.operators.back().drops.push_back(life);
    result_.trace.operators.back().frees.push_back(life);
    life_[id] = kNoBlock;
  }

  void make_again(TraceBlockId id, std::size_t directive) {
    const auto lineage = producers_.at(id, now_);
    if (life_[id] != kNoBlock) fail(id, "is rematerialised, but is there");
    if (lineage.empty()) fail(id, "is rematerialised, but has no lineage");
    TraceOperator& op = append(Unfolded::Part::kAgain, directive);
    op.ms = 0;
    for (const std::size_t at : lineage) {
      const TraceOperator& step = trace_.operators[at];
      op.name += (op.name.empty() ? "" : " + ") + step.name;
      op.ms += step.again_ms();
      for (const TraceBlockId read : step.again_reads()) {
        if (read == id || step.spares(read)) continue;
        const TraceBlockId life = life_of(read);
        if (std::ranges::find(op.reads, life) == op.reads.end()) op.reads.push_back(life);
      }
      Bytes beside = step.workspace;
      for (const TraceBlockId other : step.allocs) {
        beside += other == id ? 0 : trace_.blocks[other].bytes;
      }
      op.workspace = std::max(op.workspace, beside);
    }
    if (std::ranges::all_of(lineage, [this](std::size_t at) {
          const TraceOperator& step = trace_.operators[at];
          return step.workspace == 0 || !step.temporaries.empty();
        })) {
      op.temporaries = temporaries(id, lineage);
    }
    life_[id] = static_cast<std::int64_t>(result_.blocks.size());
    op.allocs.push_back(static_cast<TraceBlockId>(life_[id]));
    result_.blocks.push_back(id);
    result_.trace.blocks.push_back({.bytes = trace_.blocks[id].bytes,
                                    .born_in_step = true,
                                    .movable = trace_.blocks[id].movable && !dead_[id]});
  }

  /// All allocations of a lineage but that of the block itself.
  [[nodiscard]] std::vector<TraceTemporary> temporaries(
      TraceBlockId id, std::span<const std::size_t> lineage) const {
    std::vector<TraceTemporary> result;
    std::uint32_t first = 0;
    for (const std::size_t at : lineage) {
      const TraceOperator& step = trace_.operators[at];
      const auto count = static_cast<std::uint32_t>(step.allocs.size() + step.temporaries.size());
      auto temporary = step.temporaries.begin();
      auto made = step.allocs.begin();
      for (std::uint32_t number = 0; number < count; ++number) {
        if (temporary != step.temporaries.end() && temporary->begin == number) {
          result.push_back({temporary->bytes, first + number, first + temporary->end});
          ++temporary;
          continue;
        }
        const TraceBlockId other = *made++;
        if (other == id) continue;
        result.push_back({trace_.blocks[other].bytes, first + number, first + count});
      }
      first += count;
    }
    return result;
  }

  void operate(const TraceOperator& own) {
    TraceOperator& op = append(Unfolded::Part::kOwn, 0);
    op = own;
    op.reads = lives_of(own.reads);
    op.writes = lives_of(own.writes);
    op.spared = lives_of(own.spared);
    op.replay_reads.clear();  // nothing is run again any more
    op.frees.clear();
    for (const TraceBlockId id : own.allocs) life_[id] = id;
    for (const TraceBlockId id : own.frees) {
      if (life_[id] != kNoBlock) op.frees.push_back(life_of(id));
      life_[id] = kNoBlock;
      dead_[id] = true;
    }
  }

  const Trace& trace_;
  const Plan& plan_;
  Producers producers_;
  std::vector<std::int64_t> life_;  // by block of the step: that of the result that it is now
  std::vector<bool> dead_;          // by block of the step
  bool swapped_ = false;            // something other than a drop has come after the last operator
  std::size_t now_ = 0;
  Unfolded result_;
};

/// For each directive of a plan for `unfolded.trace`, what becomes of it.
enum class Fate : std::uint8_t { kStays, kGoes, kDrops };

std::vector<Fate> fates(const Unfolded& unfolded, const Plan& plan) {
  constexpr std::size_t kNone = SIZE_MAX;
  struct Leaving {
    std::size_t start = kNone;
    std::size_t finish = kNone;
  };
  std::vector<Leaving> leaving(unfolded.trace.blocks.size());
  std::vector<bool> dropped(unfolded.trace.blocks.size());
  for (const auto& op : unfolded.operators) {
    for (const TraceBlockId id : op.drops) dropped[id] = true;
  }
  std::vector<Fate> result(plan.directives.size(), Fate::kStays);
  for (std::size_t k = 0; k < plan.directives.size(); ++k) {
    const auto& [before, action, id] = plan.directives[k];
    Leaving& block = leaving.at(id);
    if (action == Action::kStartOut) block = {k, kNone};
    if (action == Action::kFinishOut) block.finish = k;
    if (action == Action::kStartIn) block = {};
    if (action == Action::kKeep && dropped[id]) result[k] = Fate::kGoes;
  }
  for (std::size_t id = 0; id < leaving.size(); ++id) {
    if (!dropped[id] || leaving[id].start == kNone) continue;
    result[leaving[id].start] = Fate::kGoes;
    if (leaving[id].finish != kNone) result[leaving[id].finish] = Fate::kDrops;
  }
  return result;
}

}  // namespace

Unfolded unfold(const Trace& trace, const Plan& plan) { return Unfolder(trace, plan).run(); }

Plan fold(const Unfolded& unfolded, const Plan& plan) {
  const std::vector<Fate> fate = fates(unfolded, plan);
  const auto& operators = unfolded.operators;
  const auto own = static_cast<std::size_t>(
      std::ranges::count(operators, Unfolded::Part::kOwn, &Unfolded::Operator::part));
  Plan result;
  result.absent_at_start = plan.absent_at_start;
  std::vector<bool> gone(unfolded.blocks.size());
  std::size_t next = 0;
  for (std::size_t k = 0; k <= operators.size(); ++k) {
    const std::size_t moment = k < operators.size() ? operators[k].moment : own;
    const auto tell = [&](Action action, TraceBlockId life) {
      result.directives.push_back({moment, action, unfolded.blocks[life]});
    };
    if (k > 0) {
      for (const TraceBlockId life : operators[k - 1].drops) {
        if (!gone[life]) tell(Action::kDrop, life);
      }
    }
    for (; next < plan.directives.size() && plan.directives[next].before == k; ++next) {
      const auto& [before, action, life] = plan.directives[next];
      if (action == Action::kDrop || action == Action::kRematerialise) {
        throw Error("fold(): the plan drops or rematerialises block " + std::to_string(life));
      }
      if (fate[next] == Fate::kStays) tell(action, life);
      if (fate[next] == Fate::kDrops) tell(Action::kDrop, life);
      if (fate[next] == Fate::kDrops) gone[life] = true;
    }
    if (k < operators.size() && operators[k].part == Unfolded::Part::kAgain) {
      tell(Action::kRematerialise, unfolded.trace.operators[k].allocs.front());
    }
  }
  return result;
}

}  // namespace lms
