#pragma once

#include <functional>
#include <vector>

#include "engine/block.h"

namespace lms {

/// Decides which blocks leave. Holds only blocks that may leave now: resident, not pinned, not
/// kept. Every call is made under the engine's lock.
class Policy {
 public:
  virtual ~Policy() = default;

  /// The block may leave from now on: its last pin went (or it was made evictable).
  virtual void offer(Block& block) = 0;
  /// The block may no longer leave. No effect if it was not offered.
  virtual void withdraw(Block& block) noexcept = 0;

  /// The block to evict when `want` more bytes are needed, or null. Does not withdraw it.
  virtual Block* victim(Bytes want) = 0;
  /// A block of at least `least` and at most `most` bytes whose hole an allocation could reuse
  /// whole, or null.
  virtual Block* victim_of_size(Bytes least, Bytes most) = 0;

  /// Blocks to evict now that an outermost operator has ended.
  virtual std::vector<Block*> after_operator() { return {}; }
  /// These are dropped rather, if they can be computed again.
  [[nodiscard]] virtual bool drops() const { return false; }
  /// What it costs that the block leaves, for each of its bytes, against how long its room will not
  /// be needed for itself. `clock`: the engine's.
  [[nodiscard]] virtual double cost(const Block& block, std::uint64_t clock) const;
  /// Every offered block, the next victim first.
  virtual void for_each(const std::function<void(Block&)>& visit) = 0;
};

/// Least recently used first, by the time of the last unpin.
class LruPolicy : public Policy {
 public:
  void offer(Block& block) override;
  void withdraw(Block& block) noexcept override;
  Block* victim(Bytes want) override;
  Block* victim_of_size(Bytes least, Bytes most) override;
  void for_each(const std::function<void(Block&)>& visit) override;

 protected:
  [[nodiscard]] const Block* newest() const { return newest_; }
  [[nodiscard]] Block* oldest() const { return oldest_; }

 private:
  Block* oldest_ = nullptr;
  Block* newest_ = nullptr;
};

/// The stress mode: everything that may leave does so after every outermost operator.
class EvictEverythingPolicy final : public LruPolicy {
 public:
  explicit EvictEverythingPolicy(bool drops = false) : drops_(drops) {}
  [[nodiscard]] bool drops() const override { return drops_; }
  std::vector<Block*> after_operator() override;

 private:
  const bool drops_;
};

}  // namespace lms
