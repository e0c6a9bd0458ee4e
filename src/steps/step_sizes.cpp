#include "steps/step_sizes.h"

#include <algorithm>
#include <span>

namespace lms {
namespace {

/// The bytes of an operator's workspace, if its allocations have these sizes; without what is
/// beyond. `beyond`: what is of it in the trace.
Bytes workspace_of(const TraceOperator& op, std::span<const Bytes> allocations, Bytes beyond) {
  return op.temporaries.empty() ? op.workspace - beyond
                                : beside_results(allocations, op.temporaries);
}

}  // namespace

Bytes bytes_needed(const StepShape& shape, const StepSizes& sizes) {
  const auto& blocks = shape.trace.blocks;
  std::vector<bool> used(blocks.size());
  for (const auto& op : shape.operators) {
    for (const auto& touch : op.touches) used[static_cast<std::size_t>(touch.block)] = true;
  }
  const auto size_of = [&](std::size_t id) {
    return blocks[id].stays() ? blocks[id].bytes : sizes.blocks[id];
  };
  Bytes live = 0;
  for (std::size_t id = 0; id < blocks.size(); ++id) {
    if (!blocks[id].born_in_step && used[id]) live += size_of(id);
  }
  Bytes most = 0;
  std::size_t allocated = 0;
  for (std::size_t i = 0; i < shape.operators.size(); ++i) {
    const TraceOperator& op = shape.trace.operators[i];
    for (const TraceBlockId id : op.allocs) live += size_of(id);
    const std::span allocations =
        std::span(sizes.allocations).subspan(allocated, shape.operators[i].allocations.size());
    const Bytes workspace = workspace_of(op, allocations, shape.operators[i].beyond);
    most = std::max(most, live + workspace + sizes.beyond[i]);
    for (const TraceBlockId id : op.frees) {
      if (blocks[id].born_in_step || used[id]) live -= size_of(id);
    }
    allocated += allocations.size();
  }
  return most;
}

Bytes bytes_needed(const StepShape& shape) { return bytes_needed(shape, StepSizes::of(shape)); }

bool same_allocations(const StepShape& a, const StepShape& b) {
  return std::ranges::equal(a.operators, b.operators, [](const auto& left, const auto& right) {
    return std::ranges::equal(
        left.allocations, right.allocations,
        [](const auto& x, const auto& y) { return x.block == y.block && x.inside == y.inside; });
  });
}

bool same_form(const StepShape& a, const StepShape& b) {
  if (a.operators.size() != b.operators.size()) return false;
  const auto alike = [](const TraceBlock& x, const TraceBlock& y) {
    return x.born_in_step == y.born_in_step && x.carried_from == y.carried_from;
  };
  const auto& blocks = a.trace.blocks;
  if (!std::ranges::equal(blocks, b.trace.blocks, alike)) return false;
  for (std::size_t i = 0; i < a.operators.size(); ++i) {
    const auto& left = a.operators[i];
    const auto& right = b.operators[i];
    const bool same = left.key == right.key &&
                      std::ranges::equal(left.touches, right.touches,
                                         [](const auto& x, const auto& y) {
                                           return x.block == y.block && x.writes == y.writes;
                                         }) &&
                      a.trace.operators[i].allocs == b.trace.operators[i].allocs &&
                      a.trace.operators[i].frees == b.trace.operators[i].frees;
    if (!same) return false;
    for (const auto& touch : left.touches) {
      const auto id = static_cast<std::size_t>(touch.block);
      const TraceBlock& other = b.trace.blocks[id];
      const bool counts = blocks[id].lasts() && !blocks[id].stays() && !other.stays();
      if (touch.writes && counts && blocks[id].bytes != other.bytes) return false;
    }
  }
  return true;
}

StepSizes StepSizes::of(const StepShape& shape) {
  StepSizes sizes;
  for (const TraceBlock& block : shape.trace.blocks) sizes.blocks.push_back(block.bytes);
  for (const auto& op : shape.operators) {
    for (const auto& one : op.allocations) sizes.allocations.push_back(one.bytes);
    sizes.beyond.push_back(op.beyond);
  }
  return sizes;
}

void StepSizes::put_into(StepShape& shape) const {
  auto& known = shape.trace.blocks;
  for (std::size_t id = 0; id < blocks.size(); ++id) {
    if (!known[id].stays()) known[id].bytes = blocks[id];
  }
  for (TraceBlock& block : known) {
    if (block.carried_from == kNoBlock) continue;
    TraceBlock& from = known[static_cast<std::size_t>(block.carried_from)];
    block.bytes = from.bytes = std::max(block.bytes, from.bytes);
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < shape.operators.size(); ++i) {
    TraceOperator& op = shape.trace.operators[i];
    std::size_t temporary = 0;
    for (auto& one : shape.operators[i].allocations) {
      one.bytes = allocations[next++];
      if (one.block != kNoBlock) {
        one.bytes = known[static_cast<std::size_t>(one.block)].bytes;
      } else if (temporary < op.temporaries.size()) {
        op.temporaries[temporary++].bytes = one.bytes;
      }
    }
    Bytes& known_beyond = shape.operators[i].beyond;
    op.workspace =
        op.temporaries.empty() ? op.workspace - known_beyond : shape.trace.beside_results(op);
    op.workspace += known_beyond = beyond[i];
  }
}

void StepSizes::widen(const StepSizes& other, double more) {
  constexpr Bytes kUnit = 512;
  const auto larger = [more](std::vector<Bytes>& mine, const std::vector<Bytes>& theirs) {
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (theirs[i] <= mine[i]) continue;
      const auto margin = static_cast<Bytes>(more * static_cast<double>(theirs[i] - mine[i]));
      mine[i] = theirs[i] + round_up(margin, kUnit);
    }
  };
  larger(blocks, other.blocks);
  larger(allocations, other.allocations);
  larger(beyond, other.beyond);
}

std::vector<double> longer_by(const StepShape& shape, const StepSizes& seen) {
  std::vector<double> factors;
  for (const auto& op : shape.operators) {
    Bytes now = 0;
    Bytes then = 0;
    for (const auto& touch : op.touches) {
      const auto id = static_cast<std::size_t>(touch.block);
      if (shape.trace.blocks[id].stays()) continue;
      now += shape.trace.blocks[id].bytes;
      then += seen.blocks[id];
    }
    factors.push_back(then > 0 ? static_cast<double>(now) / static_cast<double>(then) : 1);
  }
  return factors;
}

}  // namespace lms
