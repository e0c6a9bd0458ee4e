#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace lms {

/// Whether steps may leave their plans and come back (Detour): where, without that, most operators
/// run under no plan. Loops that are planned as they are gain nothing by it, and the search for a
/// way back has its own mistakes. If no more operators run under a plan with it than did without,
/// and they are no quicker (parts of steps may have followed plans of their own), it is off until a
/// longer step is known.
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
    if (!open_ && usable()) open(0, 0);
  }

  /// After so many steps, none of which was like another, they are looked at roughly.
  [[nodiscard]] int least_steps() const { return rule_ == Rule::kOpen ? kSoon : kPatience; }

  /// A step of so many operators is known from now on: with some more, all may be.
  void know(std::uint64_t operators) {
    if (operators > longest_ && !open_) tried_ = false;  // what was tried were parts of it
    longest_ = std::max(longest_, operators);
    if (open_ || ++known_ > kMany) return;
    // What is learnt and never comes again takes no turns.
    if (!std::exchange(ended_, false)) return;
    all_ /= 2;
    following_ /= 2;
  }
  /// A step that is known has come to its end.
  void step_ended() { ended_ = any_ended_ = true; }
  /// An operator has ended, under a plan if it `follows` one, and no plan is being made. `now_ms`
  /// says the time, if it is asked.
  template <typename Now>
  void count(bool follows, Now now_ms) {
    if (longest_ == 0 || rule_ != Rule::kWhenNeeded || (tried_ && !open_)) return;
    // The time that it took to learn and to plan tells nothing.
    if (follows && !std::exchange(followed_, true)) all_ = 0;
    ++all_;
    if (follows) ++following_;
    if (++since_ >= kSample) take_time(now_ms());
    const std::uint64_t steps = any_ended_ || open_ ? kSteps : kInVain;
    if (all_ < std::max(kLeast, steps * longest_)) return;
    const double part = static_cast<double>(following_) / static_cast<double>(all_);
    const double each_ms = timed_ > 0 ? ms_ / static_cast<double>(timed_) : 0;
    all_ = following_ = timed_ = 0;
    ms_ = 0;
    const bool quicker = each_ms > 0 && each_ms < kQuicker * before_ms_;
    if (!open_) {
      if (part < kEnough) open(part, each_ms);
    } else if (settling_) {
      settling_ = false;  // plans are made meanwhile
    } else if (part <= before_ && !quicker) {
      open_ = false;
    }
  }

  /// Operators that are not counted.
  void pass() {
    since_ = 0;
    runs_ = false;
  }

 private:
  static constexpr std::uint64_t kSteps = 12;   ///< it is judged after so many of the longest step
  static constexpr std::uint64_t kInVain = 6;   ///< or so many, if none has ever come to its end
  static constexpr std::uint64_t kLeast = 512;  ///< and after so many operators
  static constexpr double kEnough = 0.9;        ///< of the operators
  static constexpr double kQuicker = 0.95;
  static constexpr std::uint64_t kSample = 64;  ///< operators between two looks at the clock
  static constexpr int kSoon = 4;
  static constexpr int kPatience = 6;  ///< steps, none of which was like another
  static constexpr int kMany = 12;     ///< more steps do not take turns

  void open(double before, double before_ms) {
    open_ = tried_ = settling_ = true;
    before_ = before;
    before_ms_ = before_ms;
    all_ = following_ = 0;
  }
  void take_time(double now_ms) {
    const double before_ms = std::exchange(looked_ms_, now_ms);
    const std::uint64_t operators = std::exchange(since_, 0);
    if (!std::exchange(runs_, true)) return;
    ms_ += now_ms - before_ms;
    timed_ += operators;
  }

  Rule rule_ = Rule::kClosed;
  bool open_ = false;
  bool tried_ = false;           ///< it has been open
  bool settling_ = false;        ///< it has been opened just now
  bool followed_ = false;        ///< a plan, ever
  bool ended_ = false;           ///< a step, since the last was learnt
  bool any_ended_ = false;       ///< ever
  int known_ = 0;                ///< steps
  std::uint64_t longest_ = 0;    ///< operators of the longest step known
  std::uint64_t all_ = 0;        ///< operators counted
  std::uint64_t following_ = 0;  ///< of those, under a plan
  double before_ = 0;            ///< the part of these before it opened
  double before_ms_ = 0;         ///< what one took then; 0: not known
  std::uint64_t since_ = 0;      ///< operators since the clock was last looked at
  double looked_ms_ = 0;         ///< at which it was
  bool runs_ = false;            ///< none has been passed since then
  std::uint64_t timed_ = 0;      ///< of those counted
  double ms_ = 0;                ///< what these took
};

}  // namespace lms
