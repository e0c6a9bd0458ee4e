#include "foresight/foresight_policy.h"

namespace lms {

double ForesightPolicy::until_needed(const Block& block, std::uint64_t now, std::uint64_t clock) {
  if (block.expected_use > now) return static_cast<double>(block.expected_use - now);
  // What should have been used by now, and has not, is the later the longer nobody comes.
  if (block.expected_use != 0) return static_cast<double>(now - block.expected_use) + 1;
  return static_cast<double>(clock - block.last_use) + 1;
}

double ForesightPolicy::cost(const Block& block, std::uint64_t clock) const {
  if (!foresight_->trusted) return LruPolicy::cost(block, clock);
  // Copies that it takes: out, if there is none below that is valid, and back in.
  constexpr double kFree = 0.1;
  const bool back = !block.expected_end || block.expected_use <= foresight_->now;
  const double copies = (block.copy_valid ? 0 : 1) + (back ? 1 : 0);
  return (copies > 0 ? copies / 2 : kFree) / until_needed(block, foresight_->now, clock);
}

Block* ForesightPolicy::victim(Bytes want) {
  if (!foresight_->trusted || oldest() == nullptr) return LruPolicy::victim(want);
  const std::uint64_t clock = newest()->last_use;
  Block* best = nullptr;
  double least = 0;
  for (Block* block = oldest(); block != nullptr; block = block->newer) {
    const double one = cost(*block, clock);
    if (best != nullptr && one >= least) continue;
    best = block;
    least = one;
  }
  return best;
}

}  // namespace lms
