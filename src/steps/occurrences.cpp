#include "steps/occurrences.h"

#include <algorithm>
#include <unordered_set>

#include "base/mixed.h"

namespace lms {
namespace {

/// Of more steps than this that have come once, the oldest is forgotten.
constexpr std::size_t kMostSeen = 64;
/// Steps on more blocks are too large to be remembered on suspicion.
constexpr std::size_t kMostBlocks = 1U << 14U;

/// Uses, allocations and releases apart, and without temporaries: which of them came first is not
/// kept of what a script has told.
std::uint64_t hash_of(const StepLog& log, StepLog::Span span) {
  const KnownBlocks& blocks = log.blocks();
  std::uint64_t hash = span.end - span.begin;
  const auto add = [&](std::uint32_t slot, std::uint64_t what) {
    const KnownBlock& block = blocks[slot];
    if (block.temporary()) return;
    hash = mixed(hash, static_cast<std::uint64_t>(block.bytes) * 4 + what);
  };
  for (std::uint64_t n = span.begin; n < span.end; ++n) {
    const LoggedOperator& op = log.at(n);
    hash = mixed(hash, op.key);
    if (n > log.first()) {
      for (const auto& one : log.at(n - 1).changes) {
        if (one.alloc && !one.inside) add(one.slot, 2);
      }
    }
    for (const auto& one : op.changes) {
      if (one.alloc && one.inside) add(one.slot, 2);
    }
    for (const auto& touch : op.touches) add(touch.slot, touch.writes ? 1 : 0);
    for (const auto& one : op.changes) {
      if (!one.alloc) add(one.slot, 3);
    }
  }
  return hash;
}

}  // namespace

std::optional<std::vector<BlockUid>> Occurrences::note(const StepLog& log, StepLog::Span span) {
  if (span.begin >= span.end || span.begin < log.first() || span.end > log.end()) return {};
  Seen now = {hash_of(log, span), {}};
  const auto begin = static_cast<std::int64_t>(span.begin);
  std::unordered_set<std::uint32_t> met;
  for (std::uint64_t n = span.begin; n < span.end; ++n) {
    for (const auto& touch : log.at(n).touches) {
      const KnownBlock& block = log.blocks()[touch.slot];
      if (!block.alive_before(begin) || !met.insert(touch.slot).second) continue;
      now.before.push_back(block.uid);
    }
  }
  const auto same = std::ranges::find(seen_, now.hash, &Seen::hash);
  if (same != seen_.end()) {
    std::swap(same->before, now.before);
    return now.before;
  }
  if (now.before.size() > kMostBlocks) return {};
  if (seen_.size() == kMostSeen) seen_.pop_front();
  seen_.push_back(std::move(now));
  return {};
}

}  // namespace lms
