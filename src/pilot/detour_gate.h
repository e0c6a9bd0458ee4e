#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace lms {

/// Whether steps may leave their plans and come back (Detour): where, without that, most operators
/// run under no plan. Loops that are planned as they are gain nothing by it, and the search for a
/// way back has its own mistakes. If no more operators run under a plan with it than did without,
/// it is off until a longer step is known.
class DetourGate {
 public:
  enum class Rule : std::uint8_t {
    kClosed,
    kWhenNeeded,  ///< see above
    kOpen,
  };

  void start(Rule rule) {
    *this = {};
    rule_ = rule;
    open_ = rule == Rule::kOpen;
  }
  [[nodiscard]] bool open() const { return open_; }
  /// It may open, or is open.
  [[nodiscard]] bool usable() const { return open_ || (rule_ == Rule::kWhenNeeded && !tried_); }

  /// A step is known that makes sense with detours alone.
  void open_at_once() {
    if (!open_ && usable()) open(0);
  }

  /// After so many steps, none of which was like another, they are looked at roughly.
  [[nodiscard]] int least_steps() const { return rule_ == Rule::kOpen ? kSoon : kPatience; }

  /// A step of so many operators is known from now on: with some more, all may be.
  void know(std::uint64_t operators) {
    if (operators > longest_ && !open_) tried_ = false;  // what was tried were parts of it
    longest_ = std::max(longest_, operators);
    if (open_ || ++known_ > kMany) return;
    all_ /= 2;
    following_ /= 2;
  }
  /// An operator has ended, under a plan if it `follows` one, and no plan is being made.
  void count(bool follows) {
    if (longest_ == 0 || rule_ != Rule::kWhenNeeded || (tried_ && !open_)) return;
    // The time that it took to learn and to plan tells nothing.
    if (follows && !std::exchange(followed_, true)) all_ = 0;
    ++all_;
    if (follows) ++following_;
    if (all_ < std::max(kLeast, kSteps * longest_)) return;
    const double part = static_cast<double>(following_) / static_cast<double>(all_);
    all_ = following_ = 0;
    if (!open_) {
      if (part < kEnough) open(part);
    } else if (settling_) {
      settling_ = false;  // plans are made meanwhile
    } else if (part <= before_) {
      open_ = false;
    }
  }

 private:
  static constexpr std::uint64_t kSteps = 12;   ///< it is judged after so many of the longest step
  static constexpr std::uint64_t kLeast = 512;  ///< and after so many operators
  static constexpr double kEnough = 0.9;        ///< of the operators
  static constexpr int kSoon = 4;
  static constexpr int kPatience = 6;  ///< steps, none of which was like another
  static constexpr int kMany = 12;     ///< more steps do not take turns

  void open(double before) {
    open_ = tried_ = settling_ = true;
    before_ = before;
    all_ = following_ = 0;
  }

  Rule rule_ = Rule::kClosed;
  bool open_ = false;
  bool tried_ = false;           ///< it has been open
  bool settling_ = false;        ///< it has been opened just now
  bool followed_ = false;        ///< a plan, ever
  int known_ = 0;                ///< steps
  std::uint64_t longest_ = 0;    ///< operators of the longest step known
  std::uint64_t all_ = 0;        ///< operators counted
  std::uint64_t following_ = 0;  ///< of those, under a plan
  double before_ = 0;            ///< the part of these before it opened
};

}  // namespace lms
