#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "steps/step_log.h"

namespace lms {

/// When blocks will be used next, foretold from how the stream of operators went before. It goes
/// along the stream as it was when the same operators ran the last time: what an operator's second
/// tensor of then was used for next, its second tensor of now will be. Where the stream turns out
/// to be another it looks for the place where it goes on, nearby first: operators may be missing,
/// more, or of other sizes.
///
/// Its clock counts operators of the past: where the stream leaves some of them out, it jumps.
/// Cost: constant for every operator and use. Memory: bounded. Not thread-safe.
class Forecast {
 public:
  explicit Forecast(std::size_t most_operators = 1U << 16U);

  /// What is expected of a block, by this clock.
  struct Expected {
    std::uint64_t at = 0;  ///< 0: nobody knows
    bool ends = false;     ///< it dies then, and nobody uses it before
  };

  void begin_operator(OperatorKey key);
  /// The operator that has begun last uses the block. Returns what comes next.
  Expected touch(BlockUid uid);
  void released(BlockUid uid);
  /// What has been fed so far goes on somewhere else: something has not been fed.
  void lose_track();
  void clear();

  /// Where it is. Grows, except where the stream repeats more of itself than it did.
  [[nodiscard]] std::uint64_t now() const { return at_ + shift_; }
  /// It has mostly been right lately.
  [[nodiscard]] bool trusted() const { return trusted_; }
  [[nodiscard]] double right() const { return right_; }

  /// Whoever is expected to be used at `moment` (of its clock, later than now(), at most
  /// horizon()), to `visit`. Blocks may have died meanwhile.
  void for_expected(std::uint64_t moment, const std::function<void(BlockUid)>& visit) const;
  /// One past the last moment of which anything is known.
  [[nodiscard]] std::uint64_t horizon() const { return end_ == 0 ? shift_ : end_ - 1 + shift_; }

 private:
  static constexpr std::uint64_t kNone = UINT64_MAX;
  static constexpr std::size_t kContext = 4;

  struct PastUse {
    std::uint64_t op = 0;
    std::uint64_t before = kNone;  ///< of the same block: its number
    std::uint64_t next = kNone;    ///< likewise
    std::uint64_t death = kNone;   ///< the operator after which the block died, if that came next
    BlockUid uid = 0;
    BlockUid expected = 0;  ///< who is, when the stream comes along there again; 0: the same one
    std::int8_t faith = 0;  ///< in what follows from it: less than 0, if that has been wrong
  };
  struct PastOperator {
    OperatorKey key = 0;
    std::uint64_t first_use = 0;
    std::uint64_t before = kNone;  ///< the last operator that came after the same ones
  };
  struct Known {
    std::uint64_t last = kNone;  ///< its last use
    Expected expected;
    std::uint64_t told = 0;  ///< when that was foretold
    Expected believed;       ///< `expected`, unless the like of it has been wrong
  };

  [[nodiscard]] PastUse& use(std::uint64_t n) { return uses_[n & (uses_.size() - 1)]; }
  [[nodiscard]] const PastUse& use(std::uint64_t n) const { return uses_[n & (uses_.size() - 1)]; }
  [[nodiscard]] PastOperator& op(std::uint64_t n) { return operators_[n & (most_ - 1)]; }
  [[nodiscard]] const PastOperator& op(std::uint64_t n) const {
    return operators_[n & (most_ - 1)];
  }
  [[nodiscard]] std::uint64_t first() const { return end_ > most_ ? end_ - most_ : 0; }
  [[nodiscard]] bool use_known(std::uint64_t n) const {
    return n != kNone && n < uses_end_ && n + uses_.size() >= uses_end_ + 1 && use(n).op >= first();
  }
  [[nodiscard]] bool operator_known(std::uint64_t n) const { return n >= first() && n + 1 < end_; }
  void go_on(OperatorKey key);
  [[nodiscard]] std::uint64_t nearby(OperatorKey key) const;
  [[nodiscard]] std::uint64_t same_context(std::uint64_t from) const;
  void move_to(std::uint64_t place);
  void vote(std::uint64_t number);
  [[nodiscard]] std::uint64_t partner(std::uint64_t number) const;
  void judge(const Known& known);
  void make_room();

  std::size_t most_;
  std::vector<PastOperator> operators_;
  std::vector<PastUse> uses_;
  std::uint64_t end_ = 0;
  std::uint64_t uses_end_ = 0;
  std::unordered_map<BlockUid, Known> known_;

  std::array<OperatorKey, kContext> recent_{};
  std::uint64_t context_ = 0;          ///< hash of recent_
  std::vector<std::uint64_t> places_;  ///< by context: the operator that came last after it

  std::uint64_t at_ = 0;     ///< the operator of the past that is being done again
  std::uint64_t firm_ = 0;   ///< the last that was certain
  std::uint64_t shift_ = 0;  ///< of the clock, for jumps from one run of a step to another
  bool aligned_ = false;
  int agreed_ = 0;    ///< operators in a row that were the expected ones
  int lost_for_ = 0;  ///< operators since the last that was certain
  std::uint64_t lag_voted_ = 0;
  int votes_ = 0;
  double right_ = 0;
  bool trusted_ = false;
};

}  // namespace lms
