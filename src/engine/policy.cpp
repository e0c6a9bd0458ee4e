#include "engine/policy.h"

namespace lms {

double Policy::cost(const Block& block, std::uint64_t clock) const {
  // Least recently used first, and what need not be copied before what must.
  return (block.copy_valid ? 0.5 : 1.0) / (static_cast<double>(clock - block.last_use) + 1);
}

void LruPolicy::offer(Block& block) {
  withdraw(block);
  // One that was only copied, or moved, comes back to where it was: that is looked for from both
  // ends at once.
  Block* older = newest_;
  for (Block* newer = oldest_; older != nullptr && older->last_use > block.last_use;
       older = older->older, newer = newer->newer) {
    if (newer->last_use <= block.last_use) continue;
    older = newer->older;
    break;
  }
  block.older = older;
  block.newer = older != nullptr ? older->newer : oldest_;
  (block.older != nullptr ? block.older->newer : oldest_) = &block;
  (block.newer != nullptr ? block.newer->older : newest_) = &block;
  block.listed = true;
}

void LruPolicy::withdraw(Block& block) noexcept {
  if (!block.listed) return;
  (block.older != nullptr ? block.older->newer : oldest_) = block.newer;
  (block.newer != nullptr ? block.newer->older : newest_) = block.older;
  block.older = block.newer = nullptr;
  block.listed = false;
}

Block* LruPolicy::victim(Bytes /*want*/) { return oldest_; }

Block* LruPolicy::victim_of_size(Bytes least, Bytes most) {
  for (Block* block = oldest_; block != nullptr; block = block->newer) {
    if (block->size >= least && block->size <= most) return block;
  }
  return nullptr;
}

void LruPolicy::for_each(const std::function<void(Block&)>& visit) {
  for (Block* block = oldest_; block != nullptr;) {
    Block* next = block->newer;
    visit(*block);
    block = next;
  }
}

std::vector<Block*> EvictEverythingPolicy::after_operator() {
  std::vector<Block*> all;
  for_each([&](Block& block) { all.push_back(&block); });
  return all;
}

}  // namespace lms
