#include <algorithm>
#include <iterator>
#include <map>
#include <span>

#include "plan/place/placement.h"
#include "plan/producers.h"

namespace lms {
namespace {

/// Carries out several steps in a row in an arena of which it knows every stretch in use.
class PlacementVerifier {
 public:
  PlacementVerifier(const Trace& trace, const Plan& plan, const Placement& placement,
                    Bytes alignment)
      : trace_(trace),
        producers_(trace),
        plan_(plan),
        placement_(placement),
        alignment_(alignment),
        where_(trace.blocks.size(), kNoAddress),
        first_(trace.blocks.size(), kNoAddress),
        other_(trace.blocks.size(), kNoAddress),
        dead_(trace.blocks.size()) {}

  std::vector<std::string> run() {
    check_shape();
    if (!notes_.empty()) return std::move(notes_);
    begin();
    // Three, because two blocks that take turns are where they were after two.
    for (step_ = 0; step_ < 3 && notes_.empty(); ++step_) {
      if (step_ > 0) go_round();
      take_turns();
      one_step();
    }
    if (notes_.empty() && most_ != placement_.lower_bound) {
      notes_.push_back("the lower bound is " + std::to_string(placement_.lower_bound) +
                       " bytes, but " + std::to_string(most_) + " are in use at one moment");
    }
    return std::move(notes_);
  }

 private:
  static constexpr std::int64_t kTemporary = -1;
  struct Stretch {
    Bytes size = 0;
    std::int64_t owner = kTemporary;  // else a block
  };
  /// What gives a block its address: an operator and the number of its allocation, or kDirective
  /// and the number of the directive.
  using Source = std::pair<std::size_t, std::size_t>;
  static constexpr std::size_t kDirective = SIZE_MAX;

  static std::string name_of(std::int64_t owner) {
    return owner == kTemporary ? "a temporary" : "block " + std::to_string(owner);
  }
  void note(std::int64_t owner, const std::string& what) {
    notes_.push_back("step " + std::to_string(step_) + ", operator " + std::to_string(now_) + ": " +
                     name_of(owner) + " " + what);
  }

  void check_shape() {
    notes_ = trace_.validate();
    if (!notes_.empty()) return;
    if (placement_.arrivals.size() != plan_.directives.size()) {
      notes_.push_back(std::to_string(placement_.arrivals.size()) + " addresses of arrivals for " +
                       std::to_string(plan_.directives.size()) + " directives");
    }
    if (placement_.remakes.size() != plan_.directives.size()) {
      notes_.push_back("allocations of " + std::to_string(placement_.remakes.size()) +
                       " rematerialisations for " + std::to_string(plan_.directives.size()) +
                       " directives");
    }
    for (const Directive& directive : plan_.directives) {
      if (directive.block >= where_.size()) notes_.emplace_back("a directive for no block");
    }
    if (!notes_.empty()) return;
    for (std::size_t d = 0; d < plan_.directives.size(); ++d) check_remake(d);
    if (placement_.allocations.size() != trace_.operators.size()) {
      notes_.push_back("allocations of " + std::to_string(placement_.allocations.size()) +
                       " operators, the trace has " + std::to_string(trace_.operators.size()));
      return;
    }
    for (std::size_t k = 0; k < trace_.operators.size(); ++k) {
      const std::size_t count = count_of(trace_.operators[k]);
      if (placement_.allocations[k].size() == count) continue;
      notes_.push_back("operator " + std::to_string(k) + " makes " + std::to_string(count) +
                       " allocations, the placement has " +
                       std::to_string(placement_.allocations[k].size()));
    }
  }

  void check_remake(std::size_t index) {
    const Directive& directive = plan_.directives[index];
    std::size_t count = 0;
    if (directive.action == Action::kRematerialise) {
      const auto lineage = producers_.at(directive.block, directive.before);
      const bool born = !lineage.empty() && trace_.blocks[directive.block].born_in_step;
      if (!born) notes_.push_back("block " + std::to_string(directive.block) + " has no lineage");
      for (const std::size_t at : lineage) count += count_of(trace_.operators[at]);
    }
    if (placement_.remakes[index].size() == count) return;
    notes_.push_back("directive " + std::to_string(index) + " makes " + std::to_string(count) +
                     " allocations, the placement has " +
                     std::to_string(placement_.remakes[index].size()));
  }

  void begin() {
    std::vector<bool> here(where_.size());
    for (TraceBlockId id = 0; id < here.size(); ++id) here[id] = !trace_.blocks[id].born_in_step;
    for (const TraceBlockId id : plan_.absent_at_start) here.at(id) = false;
    for (const auto& [id, address] : placement_.at_start) {
      if (id >= here.size() || !here[id]) {
        note(id, "has an address, but is not there when the step begins");
        continue;
      }
      here[id] = false;
      first_[id] = address;
      come(id, address);
    }
    for (TraceBlockId id = 0; id < here.size(); ++id) {
      if (here[id]) note(id, "has no address when the step begins");
    }
    for (const TraceBlockId id : placement_.taking_turns) {
      if (id >= here.size() || first_[id] == kNoAddress ||
          trace_.blocks[id].carried_from == kNoBlock) {
        note(id, "has none to take turns with");
      }
    }
  }

  /// What the step that ends has left is what the next one begins with.
  void go_round() {
    now_ = 0;
    move();
    std::vector<Bytes> next(where_.size(), kNoAddress);
    for (TraceBlockId id = 0; id < where_.size(); ++id) {
      if (trace_.blocks[id].born_in_step) continue;
      const std::int64_t carried = trace_.blocks[id].carried_from;
      const std::size_t before = carried == kNoBlock ? id : static_cast<std::size_t>(carried);
      // Every step finds its blocks, even if nothing is known of where they come from.
      next[id] = dead_[before] ? first_[id] : where_[before];
      if (next[id] == first_[id]) continue;
      if (next[id] != kNoAddress && next[id] == other_[id]) continue;
      note(id, "is at " + std::to_string(next[id]) + " when the step begins, not at " +
                   std::to_string(first_[id]));
    }
    taken_.clear();
    sizes_.clear();
    used_ = 0;
    where_.assign(where_.size(), kNoAddress);
    dead_.assign(dead_.size(), false);
    for (TraceBlockId id = 0; id < next.size(); ++id) {
      if (next[id] != kNoAddress) come(id, next[id]);
    }
  }

  /// Both places of what moves between two steps are taken while it does. Nobody knows of what is
  /// neither freed nor carried.
  void move() {
    if (placement_.moved.empty()) return;
    std::vector<bool> goes_on(where_.size());
    for (TraceBlockId id = 0; id < where_.size(); ++id) {
      const TraceBlock& block = trace_.blocks[id];
      if (block.carried_from != kNoBlock) {
        goes_on[static_cast<std::size_t>(block.carried_from)] = true;
      } else if (!block.born_in_step) {
        goes_on[id] = true;
      }
    }
    for (TraceBlockId id = 0; id < where_.size(); ++id) {
      if (where_[id] != kNoAddress && !goes_on[id]) go(id);
    }
    for (const TraceBlockId id : placement_.moved) {
      const std::int64_t carried = trace_.blocks[id].carried_from;
      const std::size_t before = carried == kNoBlock ? id : static_cast<std::size_t>(carried);
      if (where_[before] == kNoAddress) {
        note(id, "is to move, but is not there");
        continue;
      }
      const auto owner = static_cast<std::int64_t>(before);
      if (!claim(first_[id], trace_.blocks[id].bytes, owner)) continue;
      unclaim(where_[before], owner);
      where_[before] = first_[id];
    }
  }

  /// Finds out where the blocks that take turns arrive last in this step.
  void take_turns() {
    turned_.clear();
    for (const TraceBlockId id : placement_.taking_turns) {
      const Source source = last_source(static_cast<TraceBlockId>(trace_.blocks[id].carried_from));
      other_[id] = written_address(source);
      if (where_[id] != first_[id]) turned_[source] = first_[id];
    }
  }
  [[nodiscard]] Source last_source(TraceBlockId id) const {
    for (std::size_t d = plan_.directives.size(); d-- > 0;) {
      if (plan_.directives[d].block == id && comes(plan_.directives[d])) {
        return {kDirective, d};
      }
    }
    const auto made = producers_.at(id, trace_.operators.size());
    if (made.empty()) return {kDirective, placement_.arrivals.size()};
    return {made.front(), own_number(id, made.front())};
  }
  /// The block's number among the allocations of the operator that makes it.
  [[nodiscard]] std::size_t own_number(TraceBlockId id, std::size_t maker) const {
    const auto& allocs = trace_.operators[maker].allocs;
    const auto found = std::ranges::find(allocs, id);
    return numbers_of(trace_.operators[maker])[static_cast<std::size_t>(found - allocs.begin())];
  }
  [[nodiscard]] Bytes written_address(const Source& source) const {
    if (source.first != kDirective) return placement_.allocations[source.first][source.second];
    if (source.second >= placement_.arrivals.size()) return kNoAddress;
    const auto& remade = placement_.remakes[source.second];
    if (remade.empty()) return placement_.arrivals[source.second];
    const Directive& directive = plan_.directives[source.second];
    const std::size_t maker = producers_.at(directive.block, directive.before).front();
    return remade[own_number(directive.block, maker)];
  }
  [[nodiscard]] Bytes address_of(const Source& source) const {
    const auto turned = turned_.find(source);
    return turned == turned_.end() ? written_address(source) : turned->second;
  }

  static bool comes(const Directive& directive) {
    return directive.action == Action::kStartIn || directive.action == Action::kRematerialise;
  }
  static std::size_t count_of(const TraceOperator& op) {
    return op.allocs.size() + op.temporaries.size();
  }
  /// The numbers of an operator's results among its allocations.
  static std::vector<std::size_t> numbers_of(const TraceOperator& op) {
    std::vector<std::size_t> numbers;
    for (std::size_t number = 0; number < count_of(op); ++number) {
      const auto has_it = [number](const TraceTemporary& t) { return t.begin == number; };
      if (std::ranges::none_of(op.temporaries, has_it)) numbers.push_back(number);
    }
    return numbers;
  }

  void one_step() {
    std::size_t next = 0;
    for (now_ = 0; now_ <= trace_.operators.size(); ++now_) {
      for (; next < plan_.directives.size() && plan_.directives[next].before <= now_; ++next) {
        obey(next);
      }
      if (now_ < trace_.operators.size()) operate(trace_.operators[now_]);
    }
  }

  void obey(std::size_t index) {
    const Directive& directive = plan_.directives[index];
    if (directive.action == Action::kStartIn) {
      come(directive.block, address_of({kDirective, index}));
      return;
    }
    if (directive.action == Action::kRematerialise) remake(index);
    if (placement_.arrivals[index] != kNoAddress) {
      note(directive.block, "has an address at a directive that takes no memory");
    }
    if (directive.action == Action::kFinishOut || directive.action == Action::kDrop) {
      go(directive.block);
    }
  }

  void operate(const TraceOperator& op) {
    const auto numbers = numbers_of(op);
    for (std::size_t i = 0; i < op.allocs.size(); ++i) {
      come(op.allocs[i], address_of({now_, numbers[i]}));
    }
    hold_temporaries(op, placement_.allocations[now_]);
    for (const TraceBlockId id : op.frees) {
      if (where_[id] != kNoAddress) go(id);
      dead_[id] = true;
    }
  }

  /// `addresses` are those of the operator's allocations.
  void hold_temporaries(const TraceOperator& op, std::span<const Bytes> addresses) {
    const auto end = [&](const TraceTemporary& t) {
      return std::clamp<std::size_t>(t.end, t.begin + 1, count_of(op));
    };
    for (std::size_t number = 0; number <= count_of(op); ++number) {
      for (const TraceTemporary& temporary : op.temporaries) {
        if (end(temporary) == number) give(addresses[temporary.begin], kTemporary);
      }
      for (const TraceTemporary& temporary : op.temporaries) {
        if (temporary.begin == number) take(addresses[number], temporary.bytes, kTemporary);
      }
    }
    if (op.temporaries.empty() && op.workspace > 0) check_room(round_up(op.workspace, alignment_));
  }

  void remake(std::size_t index) {
    const Directive& directive = plan_.directives[index];
    std::span<const Bytes> addresses = placement_.remakes[index];
    for (const std::size_t at : producers_.at(directive.block, directive.before)) {
      const TraceOperator& op = trace_.operators[at];
      const auto numbers = numbers_of(op);
      for (std::size_t i = 0; i < op.allocs.size(); ++i) {
        if (op.allocs[i] == directive.block) {
          come(directive.block, address_of({kDirective, index}));
        } else {
          take(addresses[numbers[i]], trace_.blocks[op.allocs[i]].bytes, kTemporary);
        }
      }
      hold_temporaries(op, addresses);
      for (std::size_t i = 0; i < op.allocs.size(); ++i) {
        if (op.allocs[i] != directive.block) give(addresses[numbers[i]], kTemporary);
      }
      addresses = addresses.subspan(count_of(op));
    }
  }

  void check_room(Bytes workspace) {
    most_ = std::max(most_, used_ + workspace);
    Bytes end = 0;
    for (const auto& [address, stretch] : taken_) {
      if (address - end >= workspace) return;
      end = address + stretch.size;
    }
    if (placement_.bytes - end < workspace) note(kTemporary, "has no room as a workspace");
  }

  void come(TraceBlockId id, Bytes address) {
    if (where_[id] != kNoAddress) note(id, "comes, but is there");
    where_[id] = address;
    take(address, trace_.blocks[id].bytes, id);
  }
  void go(TraceBlockId id) {
    if (where_[id] == kNoAddress) note(id, "goes, but is not there");
    give(where_[id], id);
    where_[id] = kNoAddress;
  }

  void take(Bytes address, Bytes bytes, std::int64_t owner) {
    if (!claim(address, bytes, owner)) return;
    used_ += round_up(bytes, alignment_);
    most_ = std::max(most_, used_);
  }
  void give(Bytes address, std::int64_t owner) { used_ -= unclaim(address, owner); }

  /// The stretches of memory at an address: of what is scattered, its pages.
  [[nodiscard]] std::vector<std::pair<Bytes, Bytes>> stretches(Bytes address, Bytes size) const {
    if (address < kScattered) return {{address, size}};
    std::vector<std::pair<Bytes, Bytes>> pages;
    for (const std::uint32_t page : placement_.scattered[index_of(address)]) {
      pages.emplace_back(page * placement_.page, placement_.page);
    }
    return pages;
  }
  static std::size_t index_of(Bytes address) {
    return static_cast<std::size_t>(address - kScattered);
  }

  /// False, with a note, if it cannot be there.
  bool claim(Bytes address, Bytes bytes, std::int64_t owner) {
    const std::size_t notes = notes_.size();
    const Bytes size = round_up(bytes, alignment_);
    if (address < 0) {
      note(owner, "has no address");
    } else if (address < kScattered && address % alignment_ != 0) {
      note(owner, "is not aligned: " + std::to_string(address));
    } else if (address >= kScattered && !has_pages(address, size)) {
      note(owner, "has other pages than it needs");
    }
    if (notes_.size() > notes) return false;
    for (const auto& [begin, length] : stretches(address, size)) {
      if (begin > placement_.bytes - length) note(owner, "lies beyond the end of the arena");
      const auto next = taken_.lower_bound(begin);
      if (next != taken_.end() && next->first < begin + length) {
        note(owner, "overlaps " + name_of(next->second.owner));
      } else if (next != taken_.begin() &&
                 std::prev(next)->first + std::prev(next)->second.size > begin) {
        note(owner, "overlaps " + name_of(std::prev(next)->second.owner));
      } else {
        taken_.emplace(begin, Stretch{length, owner});
      }
    }
    sizes_[{address, owner}] = size;
    return notes_.size() == notes;
  }
  [[nodiscard]] bool has_pages(Bytes address, Bytes size) const {
    const std::size_t index = index_of(address);
    return placement_.page > 0 && index < placement_.scattered.size() &&
           static_cast<Bytes>(placement_.scattered[index].size()) ==
               round_up(size, placement_.page) / placement_.page;
  }

  /// The bytes that were there; what overlapped when it came is not there, and has been noted.
  Bytes unclaim(Bytes address, std::int64_t owner) {
    const auto known = sizes_.find({address, owner});
    if (known == sizes_.end()) return 0;
    const Bytes size = known->second;
    sizes_.erase(known);
    for (const auto& [begin, length] : stretches(address, size)) {
      const auto stretch = taken_.find(begin);
      if (stretch != taken_.end() && stretch->second.owner == owner) taken_.erase(stretch);
    }
    return size;
  }

  const Trace& trace_;
  Producers producers_;
  const Plan& plan_;
  const Placement& placement_;
  Bytes alignment_;
  std::vector<Bytes> where_;  // of every block that is on the device
  std::vector<Bytes> first_;  // where the placement has it when the step begins
  std::vector<Bytes> other_;  // of a block that takes turns: where it may be instead
  std::vector<bool> dead_;
  std::map<Source, Bytes> turned_;  // addresses that differ from the placement's in this step
  std::map<Bytes, Stretch> taken_;
  std::map<std::pair<Bytes, std::int64_t>, Bytes> sizes_;  // of an owner's stay at an address
  std::vector<std::string> notes_;
  int step_ = 0;
  std::size_t now_ = 0;
  Bytes used_ = 0;
  Bytes most_ = 0;
};

}  // namespace

std::vector<std::string> verify_placement(const Trace& trace, const Plan& plan,
                                          const Placement& placement, Bytes alignment) {
  return PlacementVerifier(trace, plan, placement, alignment).run();
}

}  // namespace lms
