#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"

namespace lms {

/// One allocation, for ever: never used again for another.
using BlockUid = std::uint64_t;

/// What a StepLog knows of a block. Operators are meant by their numbers in the log.
struct KnownBlock {
  static constexpr std::int64_t kBefore = -1;
  static constexpr std::int64_t kNever = INT64_MAX;

  BlockUid uid = 0;
  Bytes bytes = 0;  ///< 0: nobody lives in this slot
  /// The operator that its allocation belongs to: the one that ran, or else the next one. kBefore:
  /// there before the first one.
  std::int64_t birth = kBefore;
  std::int64_t heard = kBefore;  ///< of one that was there before: the first that used it, if any
  /// The operator that its release belongs to: the one that ran, or else the last one.
  std::int64_t death = kNever;
  std::uint32_t place = 0;         ///< which of the allocations of `birth` it is
  std::uint32_t form_place = 0;    ///< likewise, of those that count for a form
  bool marginal = false;           ///< in another size of the step it may be too small to be seen
  bool died_inside = false;        ///< while the operator `death` ran
  bool touched = false;            ///< by any operator, ever
  std::int64_t used_by = kBefore;  ///< the last operator that has used it
  bool used_writing = false;       ///< and written it
  bool kept = false;               ///< it does not leave the device any more

  /// Dead before the operator that made it ended.
  [[nodiscard]] bool temporary() const {
    return birth != kBefore && (death < birth || (death == birth && died_inside));
  }
  /// Was it there when the operator began (apart from what belongs to that operator itself)?
  [[nodiscard]] bool alive_before(std::int64_t number) const {
    return birth < number && death >= number;
  }
};

/// The blocks that a log has to do with, each in a slot that it keeps until it is erased.
class KnownBlocks {
 public:
  [[nodiscard]] std::optional<std::uint32_t> find(BlockUid uid) const;
  /// `uid` must not be known. `bytes` > 0.
  std::uint32_t insert(BlockUid uid, Bytes bytes, std::int64_t birth);
  void erase(std::uint32_t slot);
  void clear();

  [[nodiscard]] KnownBlock& operator[](std::uint32_t slot) { return blocks_[slot]; }
  [[nodiscard]] const KnownBlock& operator[](std::uint32_t slot) const { return blocks_[slot]; }
  /// Slots are less than this. Some may be empty.
  [[nodiscard]] std::size_t slots() const { return blocks_.size(); }

 private:
  static constexpr std::uint32_t kNobody = UINT32_MAX;
  [[nodiscard]] std::size_t home(BlockUid uid) const;
  [[nodiscard]] std::size_t place_of(BlockUid uid) const;
  void grow();

  std::vector<KnownBlock> blocks_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> places_;  ///< hash table with linear probing, at most half full
  std::size_t count_ = 0;
  unsigned shift_ = 64;  ///< 64 less the logarithm of places_.size()
};

}  // namespace lms
