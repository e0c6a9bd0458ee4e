#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>

namespace lms {

struct Script;

/// How many operators the last steps took that began as a script. Not thread-safe.
class StepLengths {
 public:
  /// One took so many; the script has `size`. `right`: it was as the script in all of them.
  void note(std::uint64_t operators, std::uint64_t size, bool right) {
    const std::uint64_t trifle = std::max(size / kTrifle, kFew);
    longer_ = push(longer_, operators > size + trifle);
    right_ = push(right_, right);
    seen_ = std::min(seen_ + 1, kLast);
    longest_ = std::max(longest_, operators);
    much_longer_ = push(much_longer_, operators > size + size / kLittle);
  }
  /// At least half of the last ones did more than the script has.
  [[nodiscard]] bool mostly_longer() const {
    return seen_ == kLast && 2 * std::popcount(longer_) >= kLast;
  }
  /// Likewise, so that a longer script is worth the search: for what they do more there is no plan
  /// and no room. Where that is little (a layer), a quarter: those that do less have not much to
  /// leave out.
  [[nodiscard]] bool outgrown() const {
    const bool quarter = seen_ == kLast && 4 * std::popcount(longer_) >= kLast;
    return mostly_longer() || (quarter && much_longer_ == 0);
  }
  /// None of the last ones was as the script.
  [[nodiscard]] bool never_right() const { return seen_ == kLast && right_ == 0; }
  /// Most of the last ones, few as they may be, were not as the script: they left it for a while.
  [[nodiscard]] bool mostly_other() const { return 2 * std::popcount(right_) < seen_; }
  /// What any took at the most.
  [[nodiscard]] std::uint64_t longest() const { return longest_; }

 private:
  static constexpr std::uint64_t kTrifle = 32;  ///< one part of so many: what is logged, say
  static constexpr std::uint64_t kFew = 8;
  static constexpr std::uint64_t kLittle = 4;  ///< one part of so many
  static constexpr int kLast = 8;

  static std::uint8_t push(std::uint8_t bits, bool bit) {
    return static_cast<std::uint8_t>((bits << 1U) | (bit ? 1U : 0U));
  }

  std::uint8_t longer_ = 0;       ///< a bit for each of the last steps
  std::uint8_t much_longer_ = 0;  ///< likewise
  std::uint8_t right_ = 0;        ///< likewise
  int seen_ = 0;
  std::uint64_t longest_ = 0;
};

/// The search for a longer script. Operators are counted as the pilot counts all it has ever seen.
struct Growth {
  std::size_t longer_than = 0;           ///< a step of more operators is listened for; 0: none is
  std::shared_ptr<const Script> script;  ///< as which it begins; null: nobody knows
  std::uint64_t look_at = 0;             ///< the operator by which it will have been heard
  std::uint64_t not_before = 0;          ///< the one from which on the next may be listened for
  std::uint64_t patience = 8;            ///< half of the steps between two tries, after one in vain
};

}  // namespace lms
