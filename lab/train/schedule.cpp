#include "lab/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace lms::train {

Schedule::Schedule(ScheduleOptions options) : options_(std::move(options)) {}

double Schedule::factor(std::int64_t step) const {
  double warm = 1;
  if (step < options_.warmup) {
    const double part = static_cast<double>(step) / static_cast<double>(options_.warmup);
    warm = options_.warmup_from + (1 - options_.warmup_from) * part;
  }
  std::int64_t done = step;
  if (options_.per_epoch) done -= step % options_.steps_per_epoch;
  const double x =
      std::min(1.0, static_cast<double>(done) / static_cast<double>(options_.total_steps));
  double shape = 1;
  if (options_.kind == "poly") {
    shape = options_.least + (1 - options_.least) * std::pow(1 - x, options_.exponent);
  } else if (options_.kind == "cosine") {
    shape = options_.least + (1 - options_.least) * (1 + std::cos(std::numbers::pi * x)) / 2;
  } else if (options_.kind == "plateau") {
    shape = std::max(options_.least, state_.plateau);
  }
  return warm * shape;
}

void Schedule::observe(double loss) {
  if (options_.kind != "plateau") return;
  if (loss < state_.best) {
    state_.best = loss;
    state_.bad = 0;
    return;
  }
  if (++state_.bad > options_.patience) {
    state_.plateau *= options_.plateau_factor;
    state_.bad = 0;
  }
}

}  // namespace lms::train
