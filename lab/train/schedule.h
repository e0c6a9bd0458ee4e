#pragma once

// The learning rate, as a factor on `lr`. No PyTorch.

#include <cstdint>
#include <limits>
#include <string>

namespace lms::train {

struct ScheduleOptions {
  std::string kind = "constant";  ///< constant, poly, cosine, plateau
  double exponent = 0.9;
  double least = 0;         ///< poly and cosine go from 1 to this; plateau not below
  std::int64_t warmup = 0;  ///< steps
  double warmup_from = 0;
  bool per_epoch = false;            ///< poly and cosine move at the ends of epochs only
  std::int64_t total_steps = 1;      ///< > 0
  std::int64_t steps_per_epoch = 1;  ///< > 0
  std::int64_t patience = 10;
  double plateau_factor = 0.5;
};

class Schedule {
 public:
  explicit Schedule(ScheduleOptions options);

  /// The factor for a step, counted from 0. With a warm-up of w steps it begins as
  /// warmup_from + (1 - warmup_from) * step / w, times what the schedule says.
  [[nodiscard]] double factor(std::int64_t step) const;

  /// After each validation, for plateau: more than `patience` in a row that are not below the best
  /// multiply the rate by `plateau_factor`.
  void observe(double loss);

  /// What observe() has learnt, to be saved and brought back.
  struct State {
    double best = std::numeric_limits<double>::infinity();
    std::int64_t bad = 0;
    double plateau = 1;
  };
  [[nodiscard]] const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  ScheduleOptions options_;
  State state_;
};

}  // namespace lms::train
