#include "plan/place/live_ranges.h"

#include <algorithm>
#include <utility>

namespace lms {

LiveRanges::LiveRanges(const Trace& trace, const Plan& plan, Bytes alignment)
    : trace_(trace), producers_(trace), alignment_(alignment), blocks_(trace.blocks.size()) {
  std::vector<bool> absent(trace.blocks.size());
  for (const TraceBlockId id : plan.absent_at_start) absent[id] = true;
  at_start_.assign(trace.blocks.size(), kNone);
  for (TraceBlockId id = 0; id < trace.blocks.size(); ++id) {
    if (trace.blocks[id].born_in_step || absent[id]) continue;
    at_start_[id] = take(trace.blocks[id].bytes, 0);
    blocks_[id].open = blocks_[id].at_start = at_start_[id];
  }
  auto directive = plan.directives.begin();
  for (std::size_t k = 0; k <= trace.operators.size(); ++k) {
    for (; directive != plan.directives.end() && directive->before == k; ++directive) {
      obey(*directive);
    }
    if (k < trace.operators.size()) operate(trace.operators[k]);
  }
  go_round();
}

LiveRanges::Index LiveRanges::take(Bytes bytes, std::int32_t begin) {
  rectangles_.push_back({begin, 0, round_up(bytes, alignment_), 0});
  return rectangles_.size() - 1;
}

void LiveRanges::give(TraceBlockId block) {
  Index& open = blocks_[block].open;
  if (open == kNone) return;
  rectangles_[open].length = now_ - rectangles_[open].begin;
  open = kNone;
}

void LiveRanges::obey(const Directive& directive) {
  Index arrival = kNone;
  if (directive.action == Action::kFinishOut || directive.action == Action::kDrop) {
    give(directive.block);
  } else if (directive.action == Action::kStartIn) {
    arrival = take(trace_.blocks[directive.block].bytes, now_);
    blocks_[directive.block].open = arrival;
  }
  arrivals_.push_back(arrival);
  auto& remade = remakes_.emplace_back();
  if (directive.action == Action::kRematerialise) {
    for (const std::size_t at : producers_.at(directive.block, directive.before)) {
      const auto made = allocate(trace_.operators[at], directive.block);
      remade.insert(remade.end(), made.begin(), made.end());
    }
  }
  ++now_;
}

std::vector<LiveRanges::Index> LiveRanges::allocate(const TraceOperator& op, std::int64_t wanted) {
  const std::size_t count = op.allocs.size() + op.temporaries.size();
  const auto moments = static_cast<std::int32_t>(std::max<std::size_t>(1, count));
  std::vector<Index> made(count, kNone);
  for (const TraceTemporary& temporary : op.temporaries) {
    const auto begin = static_cast<std::int32_t>(temporary.begin);
    made[temporary.begin] = take(temporary.bytes, now_ + begin);
    rectangles_.back().length =
        std::max<std::int32_t>(1, static_cast<std::int32_t>(temporary.end) - begin);
  }
  auto next = made.begin();
  for (const TraceBlockId id : op.allocs) {
    next = std::find(next, made.end(), kNone);
    *next = take(trace_.blocks[id].bytes, now_);
    if (wanted == kNoBlock || wanted == id) {
      blocks_[id].open = *next;
    } else {
      rectangles_.back().length = moments;
    }
  }
  if (op.temporaries.empty() && op.workspace > 0) {
    whole_.resize(rectangles_.size() + 1);
    whole_.back() = true;
    take(op.workspace, now_);
    rectangles_.back().length = moments;
  }
  now_ += moments;
  return made;
}

void LiveRanges::operate(const TraceOperator& op) {
  allocations_.push_back(allocate(op));
  for (const TraceBlockId id : op.frees) give(id);
}

/// What is there when the step ends is what the next one finds.
void LiveRanges::go_round() {
  std::vector<Index> last(blocks_.size());
  for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
    last[id] = blocks_[id].open;
    give(id);
  }
  most_at_once_ = lms::most_at_once(rectangles_, now_);
  whole_.resize(rectangles_.size());
  early_.assign(blocks_.size(), kNone);
  for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
    const Index first = blocks_[id].at_start;
    if (first == kNone) continue;
    const std::int64_t carried = trace_.blocks[id].carried_from;
    const Index before = last[carried == kNoBlock ? id : static_cast<std::size_t>(carried)];
    if (before == kNone || before == first) continue;
    Rectangle& early = rectangles_[first];
    Rectangle& late = rectangles_[before];
    if (early.length > late.begin) {
      taking_turns_.push_back(id);
      for (Rectangle* each : {&early, &late}) *each = {0, now_, std::max(early.size, late.size), 0};
      continue;
    }
    // One rectangle, from the later stay over the end to the end of the earlier.
    late.length += early.length;
    late.size = std::max(late.size, early.size);
    early.length = 0;
    at_start_[id] = before;
    early_[id] = first;
  }
}

Placement LiveRanges::placement() const {
  const auto address = [this](Index index) {
    return index == kNone ? kNoAddress : rectangles_[index].address;
  };
  const auto addresses = [&](const std::vector<std::vector<Index>>& lists) {
    std::vector<std::vector<Bytes>> result;
    result.reserve(lists.size());
    for (const auto& made : lists) {
      auto& list = result.emplace_back();
      list.reserve(made.size());
      for (const Index index : made) list.push_back(address(index));
    }
    return result;
  };
  Placement result;
  result.allocations = addresses(allocations_);
  result.remakes = addresses(remakes_);
  for (const Index index : arrivals_) result.arrivals.push_back(address(index));
  for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
    if (at_start_[id] != kNone) result.at_start.emplace_back(id, address(at_start_[id]));
  }
  result.taking_turns = taking_turns_;
  result.lower_bound = most_at_once_;
  return result;
}

/// Gives a rectangle its pages, as an address if they are neighbours.
void LiveRanges::share(Placement& result, Index index, const std::vector<std::uint32_t>& pages) {
  Rectangle& rectangle = rectangles_[index];
  result.bytes = std::max(result.bytes, (Bytes{pages.back()} + 1) * result.page);
  if (pages.back() - pages.front() + 1 == pages.size()) {
    rectangle.address = pages.front() * result.page;
    return;
  }
  rectangle.address = kScattered + static_cast<Bytes>(result.scattered.size());
  result.scattered.push_back(pages);
}

Placement LiveRanges::placement(const Scattering& scattering, Bytes page) {
  Placement pieces;
  pieces.page = page;
  std::vector<TraceBlockId> block_of(rectangles_.size());
  for (TraceBlockId id = 0; id < blocks_.size(); ++id) {
    if (early_[id] != kNone) block_of[at_start_[id]] = id;
  }
  for (const Index late : scattering.order) {
    // Two stays again, with a move from the later to the earlier.
    const TraceBlockId id = block_of[late];
    at_start_[id] = early_[id];
    share(pieces, early_[id], scattering.pages[late]);
    share(pieces, late, scattering.before_moving[late]);
    pieces.moved.push_back(id);
  }
  for (Index index = 0; index < rectangles_.size(); ++index) {
    const Rectangle& rectangle = rectangles_[index];
    if (!scattering.before_moving[index].empty() || rectangle.length == 0) continue;
    if (!scattering.pages[index].empty()) {
      share(pieces, index, scattering.pages[index]);
    } else {
      pieces.bytes = std::max(pieces.bytes, rectangle.address + rectangle.size);
    }
  }
  Placement result = placement();
  result.page = page;
  result.scattered = std::move(pieces.scattered);
  result.moved = std::move(pieces.moved);
  result.bytes = pieces.bytes;
  return result;
}

}  // namespace lms
