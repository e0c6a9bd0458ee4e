#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "engine/policy.h"

namespace lms {

/// What a ForesightPolicy goes by, beside what each block says (Block::expected_use).
struct Foresight {
  std::atomic<bool> trusted{false};
  std::atomic<std::uint64_t> now{0};  ///< by the clock of Block::expected_use
};

/// What is not needed for the longest time leaves first, and of several the one that costs least to
/// have back, as long as what is foretold is to be trusted. Else the least recently used.
class ForesightPolicy final : public LruPolicy {
 public:
  explicit ForesightPolicy(std::shared_ptr<const Foresight> foresight)
      : foresight_(std::move(foresight)) {}

  Block* victim(Bytes want) override;
  [[nodiscard]] double cost(const Block& block, std::uint64_t clock) const override;

  /// Operators until the block is needed: as foretold, else as many as have gone by without it.
  [[nodiscard]] static double until_needed(const Block& block, std::uint64_t now,
                                           std::uint64_t clock);

 private:
  std::shared_ptr<const Foresight> foresight_;
};

}  // namespace lms
