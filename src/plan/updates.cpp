#include "plan/updates.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace lms {
namespace {

using Ids = std::vector<TraceBlockId>;

void add_once(Ids& ids, TraceBlockId id) {
  if (!is_among(ids, id)) ids.push_back(id);
}

/// Sets of blocks that are used together.
class Sets {
 public:
  explicit Sets(std::size_t count) : parents_(count) {
    std::iota(parents_.begin(), parents_.end(), TraceBlockId{0});
  }
  TraceBlockId of(TraceBlockId id) {
    while (parents_[id] != id) id = parents_[id] = parents_[parents_[id]];
    return id;
  }
  void join(TraceBlockId one, TraceBlockId other) { parents_[of(one)] = of(other); }

 private:
  Ids parents_;
};

class UpdateFinder {
 public:
  UpdateFinder(const Trace& trace, MayWait may_wait)
      : trace_(trace), born_(trace.blocks.size(), kNowhere), made_(trace.blocks.size(), false) {
    for (std::size_t at = 0; at < trace.operators.size(); ++at) {
      const TraceOperator& op = trace.operators[at];
      for (const TraceBlockId id : op.allocs) born_[id] = at;
      if (!may_wait(op.name)) continue;
      for (UpdatePart& part : parts_of(op)) {
        part.op = at;
        for (const TraceBlockId id : part.makes) made_[id] = true;
        parts_.push_back(std::move(part));
      }
    }
    std::erase_if(parts_, [&](const UpdatePart& part) {
      return part.makes.empty() && only_gradients(part.writes);
    });
  }

  std::vector<WeightUpdate> run() {
    Sets sets(trace_.blocks.size());
    for (const UpdatePart& part : parts_) {
      const Ids all = blocks_of(part);
      for (const TraceBlockId id : all) sets.join(id, all.front());
    }
    std::vector<Ids> parts_of_set(trace_.blocks.size());
    Ids order;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const TraceBlockId set = sets.of(blocks_of(parts_[i]).front());
      if (parts_of_set[set].empty()) order.push_back(set);
      parts_of_set[set].push_back(static_cast<TraceBlockId>(i));
    }
    std::vector<WeightUpdate> updates;
    for (const TraceBlockId set : order) {
      auto update = update_of(parts_of_set[set]);
      if (!update) continue;
      update->group = updates.size();
      updates.push_back(std::move(*update));
    }
    return updates;
  }

 private:
  static constexpr std::size_t kNowhere = SIZE_MAX;

  [[nodiscard]] TraceBlockId name_of(TraceBlockId id) const { return trace_.name_at_birth(id); }
  [[nodiscard]] bool is_gradient(TraceBlockId id) const {
    return !trace_.blocks[name_of(id)].lasts() && !made_[name_of(id)];
  }
  [[nodiscard]] bool only_gradients(const Ids& ids) const {
    return std::ranges::all_of(ids, [&](TraceBlockId id) { return is_gradient(id); });
  }
  [[nodiscard]] Ids blocks_of(const UpdatePart& part) const {
    Ids all;
    for (const Ids* const ids : {&part.reads, &part.writes, &part.makes}) {
      for (const TraceBlockId id : *ids) add_once(all, name_of(id));
    }
    return all;
  }

  /// The positions of the operator's lists: those of weights, of gradients, and of state, one after
  /// the other. Nothing if they are not alike.
  [[nodiscard]] std::vector<UpdatePart> parts_of(const TraceOperator& op) const {
    const bool pass = op.name.starts_with(kListPass);
    const bool fused = pass || op.name.find("_fused_") != std::string::npos;
    const auto born = [&](TraceBlockId id) { return !trace_.blocks[id].lasts(); };
    const std::size_t count = fused
                                  ? static_cast<std::size_t>(std::ranges::count_if(op.reads, born))
                                  : std::max(op.writes.size(), op.allocs.size());
    if (count == 0 || op.reads.empty() || op.reads.size() % count != 0) return {};
    if (fused && op.reads.size() < 2 * count) return {};
    if (!fused && op.writes.size() % count + op.allocs.size() % count != 0) return {};
    // Which of the lists is that of gradients; in a pass, which has those first that it writes,
    // any.
    const auto first_born = std::ranges::find_if(op.reads, born) - op.reads.begin();
    const std::size_t gradients = pass ? static_cast<std::size_t>(first_born) / count : 1;
    std::vector<UpdatePart> parts(count);
    double all = 0;
    std::vector<double> bytes(count, 0);
    for (std::size_t i = 0; i < op.reads.size(); ++i) {
      const TraceBlockId id = op.reads[i];
      if (fused && born(id) != (i / count == gradients)) return {};
      parts[i % count].reads.push_back(id);
      if (is_among(op.writes, id)) parts[i % count].writes.push_back(id);
      bytes[i % count] += static_cast<double>(trace_.blocks[id].bytes);
      all += static_cast<double>(trace_.blocks[id].bytes);
    }
    // Others may have been born since the operator before.
    for (std::size_t i = 0; !fused && i < op.allocs.size(); ++i) {
      parts[i].makes.push_back(op.allocs[i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      // Else the lists are others than they seem.
      if (!fused && (parts[i].writes.empty() == parts[i].makes.empty() || !of_one_size(parts[i]))) {
        return {};
      }
      parts[i].ms = op.ms * bytes[i] / all;
    }
    return parts;
  }

  [[nodiscard]] bool of_one_size(const UpdatePart& part) const {
    const Bytes first = trace_.blocks[part.reads.front()].bytes;
    return std::ranges::all_of(blocks_of(part),
                               [&](TraceBlockId id) { return trace_.blocks[id].bytes == first; });
  }

  /// Nothing if it cannot wait.
  [[nodiscard]] std::optional<WeightUpdate> update_of(const Ids& parts) const {
    WeightUpdate update;
    Ids all;
    std::size_t gradients = 0;
    for (const TraceBlockId i : parts) {
      for (const TraceBlockId id : blocks_of(parts_[i])) {
        if (is_among(all, id)) continue;
        all.push_back(id);
        if (!trace_.blocks[id].movable) return std::nullopt;
        if (!is_gradient(id)) continue;
        update.gradient = id;
        ++gradients;
      }
    }
    if (gradients != 1 || born_[update.gradient] == kNowhere) return std::nullopt;
    update.gradient_born = born_[update.gradient];
    for (const TraceBlockId i : parts) update.parts.push_back(parts_[i]);
    std::ranges::stable_sort(update.parts, {}, [&](const UpdatePart& part) {
      return std::pair(part.op <= update.gradient_born, part.op);
    });
    for (const UpdatePart& part : update.parts) {
      update.ms += part.ms;
      for (const TraceBlockId id : part.reads) {
        if (!made_[name_of(id)]) add_once(update.blocks, name_of(id));
      }
      for (const TraceBlockId id : part.writes) {
        if (!made_[name_of(id)]) add_once(update.written, name_of(id));
      }
    }
    if (update.written.empty()) return std::nullopt;
    for (const TraceBlockId id : update.blocks) update.bytes += trace_.blocks[id].bytes;
    if (makes_for_others(update) || used_between(update, all)) return std::nullopt;
    const auto wanted = wanted_by(update, all);
    if (!wanted) return std::nullopt;
    update.wanted_by = *wanted;
    return update;
  }

  [[nodiscard]] bool uses(std::size_t at, const Ids& blocks) const {
    const TraceOperator& op = trace_.operators[at];
    const auto used = [&](TraceBlockId id) { return is_among(blocks, name_of(id)); };
    return std::ranges::any_of(op.reads, used) || std::ranges::any_of(op.writes, used);
  }

  /// The operator after this one; the next step's first after the last one.
  [[nodiscard]] std::size_t after(std::size_t at) const {
    return at + 1 == trace_.operators.size() ? 0 : at + 1;
  }

  /// True if others use what the parts make, or a part before it is made (state that is another
  /// tensor in each step).
  [[nodiscard]] bool makes_for_others(const WeightUpdate& update) const {
    Ids made;
    for (const UpdatePart& part : update.parts) {
      for (const TraceBlockId id : part.reads) {
        if (made_[name_of(id)] && !is_among(made, name_of(id))) return true;
      }
      made.insert(made.end(), part.makes.begin(), part.makes.end());
    }
    if (made.empty()) return false;
    for (std::size_t at = 0; at < trace_.operators.size(); ++at) {
      if (!is_of(update, at) && uses(at, made)) return true;
    }
    return false;
  }

  /// True if others use these blocks while the update is under way.
  [[nodiscard]] bool used_between(const WeightUpdate& update, const Ids& blocks) const {
    std::size_t at = update.parts.front().op;
    for (const UpdatePart& part : update.parts) {
      for (; at != part.op; at = after(at)) {
        if (!is_of(update, at) && uses(at, blocks)) return true;
      }
    }
    return false;
  }
  static bool is_of(const WeightUpdate& update, std::size_t at) {
    return std::ranges::find(update.parts, at, &UpdatePart::op) != update.parts.end();
  }

  /// Nothing if no other operator uses these blocks before there is a new gradient.
  [[nodiscard]] std::optional<std::size_t> wanted_by(const WeightUpdate& update,
                                                     const Ids& blocks) const {
    for (std::size_t at = after(update.op()); at != update.gradient_born; at = after(at)) {
      if (uses(at, blocks)) return at;
    }
    return std::nullopt;
  }

  const Trace& trace_;
  std::vector<std::size_t> born_;  ///< by block: in which operator
  std::vector<bool> made_;         ///< by block: by a part
  std::vector<UpdatePart> parts_;
};

}  // namespace

std::vector<WeightUpdate> deferrable_updates(const Trace& trace, MayWait may_wait) {
  return UpdateFinder(trace, may_wait).run();
}

std::vector<WeightUpdate> in_groups(std::vector<WeightUpdate> updates, std::size_t operators,
                                    Bytes most) {
  const auto same_operators = [](const WeightUpdate& one, const WeightUpdate& other) {
    return std::ranges::equal(one.parts, other.parts, {}, &UpdatePart::op, &UpdatePart::op);
  };
  const auto wait = [&](const WeightUpdate& update) { return update.wait(operators); };
  for (auto first = updates.begin(); first != updates.end();) {
    Bytes bytes = first->bytes;
    auto end = std::next(first);
    while (end != updates.end() && same_operators(*first, *end) && bytes + end->bytes <= most) {
      bytes += end++->bytes;
    }
    const std::size_t wanted_by = std::ranges::min_element(first, end, {}, wait)->wanted_by;
    for (auto update = first; update != end; ++update) {
      update->group = first->group;
      update->wanted_by = wanted_by;
    }
    first = end;
  }
  return updates;
}

}  // namespace lms
