#include "engine/policy.h"

namespace lms {

void LruPolicy::offer(Block& block) {
  withdraw(block);
  block.older = newest_;
  block.newer = nullptr;
  if (newest_ != nullptr) newest_->newer = &block;
  newest_ = &block;
  if (oldest_ == nullptr) oldest_ = &block;
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
