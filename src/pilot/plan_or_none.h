#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lms {

/// Whether it pays to follow plans at all, by the clock. Where one step repeats it does. Where
/// steps differ (batches of any length, layers left out) a plan may cost more than it gains: what
/// it has sent away in a large step, a small one waits for; and the host, which may be what a step
/// waits for, has more to do. Unless steps take what their plans say, or much less than before
/// there was a plan, some run without, and the quicker way is gone on with.
///
/// Times are of stretches of several steps each, a millisecond an operator: steps may differ in
/// size, and need not be known. Not thread-safe.
class PlanOrNone {
 public:
  void start(bool compares) {
    *this = {};
    compares_ = compares;
  }
  /// Plans are not to be followed for now.
  [[nodiscard]] bool rests() const { return stage_ != Stage::kPlans; }
  /// For good, as far as is known; not only to see.
  [[nodiscard]] bool settled_on_none() const { return stage_ == Stage::kNone; }

  /// An operator has ended, under a plan if it `follows` one. True if a stretch ends with it, of
  /// which note() is to be told.
  bool count(bool follows) {
    if (!compares_) return false;
    if (follows) ++following_;
    return ++operators_ >= stretch_;
  }
  /// A step of so many operators has followed its plan from its beginning to its end.
  void note_step(std::size_t operators, double took_ms, double predicted_ms) {
    whole_ += operators;
    took_ms_ += took_ms;
    predicted_ms_ += predicted_ms;
  }
  /// The stretch is none to go by: a plan is being made, or compared with another.
  void disturb() { disturbed_ = true; }
  /// There is a plan that had not been there.
  void plan_came();
  /// A stretch has ended; `longest`: operators of the longest step known.
  void note(double now_ms, std::size_t longest);

 private:
  enum class Stage : std::uint8_t {
    kPlans,  ///< they are followed
    kTry,    ///< they are not, to see
    kNone,   ///< they are not, as steps are quicker so
  };

  void go_on_in(Stage stage);
  void back_off(std::size_t times);
  void watch();
  void try_none();

  bool compares_ = false;
  Stage stage_ = Stage::kPlans;
  // Of the stretch that runs.
  std::size_t stretch_ = 1;
  std::size_t operators_ = 0;
  std::size_t following_ = 0;
  bool disturbed_ = true;  ///< so that the first one only sets the clock
  double begun_ms_ = 0;
  // Of those since stage_ has begun.
  std::size_t skipped_ = 1;  ///< so many more are left out: the memory is not yet as they leave it
  std::vector<double> each_ms_;  ///< a millisecond an operator
  std::size_t all_ = 0;          ///< operators
  std::size_t whole_ = 0;        ///< of these, in steps that were as planned
  double took_ms_ = 0;           ///< these
  double predicted_ms_ = 0;
  // For longer.
  double with_plans_ms_ = 0;  ///< an operator
  double without_ms_ = 0;     ///< without: before there was one, or in the last try; 0: not known
  std::size_t patience_ = 1;  ///< rounds until the other way is tried
  std::size_t back_off_ = 1;  ///< what it was set to last; 1: nothing has been tried
};

}  // namespace lms
