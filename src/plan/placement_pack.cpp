#include "plan/placement_pack.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "plan/placement_skyline.h"

namespace lms {
namespace {

constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

/// Looks for the keys by which the skyline packs best: starts from simple rules, then lifts the
/// keys of rectangles that ended up high, so that they are placed earlier, and keeps what is no
/// worse.
class Search {
 public:
  Search(const std::vector<Rectangle>& rectangles, std::int32_t period, double seconds)
      : rectangles_(rectangles),
        skyline_(rectangles, period),
        goal_(most_at_once(rectangles, period)),
        addresses_(rectangles.size()),
        trial_(rectangles.size()),
        end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  Bytes run() {
    start();
    while (top_ > goal_ && Clock::now() < end_) improve();
    return top_;
  }
  [[nodiscard]] const std::vector<Bytes>& addresses() const { return addresses_; }

 private:
  using Clock = std::chrono::steady_clock;

  double number() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  std::size_t any(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }

  void start() {
    // The longest first; and the more, the larger counts too.
    constexpr std::array kWeightsOfSize{0.0, 0.15, 0.3, 0.5, 1.0, 2.0};
    std::vector<double> keys(rectangles_.size());
    for (const double weight : kWeightsOfSize) {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        keys[i] = kBase + std::log(static_cast<double>(rectangles_[i].length)) +
                  weight * std::log(static_cast<double>(rectangles_[i].size));
      }
      try_keys(keys, top_);
      if (top_ == goal_) return;
    }
  }

  void try_keys(const std::vector<double>& keys, Bytes limit) {
    const Bytes top = skyline_.pack(keys, trial_, limit);
    if (top >= limit) return;
    top_ = top;
    keys_ = keys;
    addresses_.swap(trial_);
  }

  void improve() {
    std::vector<double> keys = keys_;
    const Bytes level = top_ - static_cast<Bytes>(number() * static_cast<double>(top_ - goal_));
    std::vector<std::size_t> high;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (addresses_[i] + rectangles_[i].size > level) high.push_back(i);
    }
    for (std::size_t lifts = 1 + any(3); lifts > 0 && !high.empty(); --lifts) {
      keys[high[any(high.size())]] -= 0.7 * std::log(1 - number());
    }
    for (std::size_t shakes = any(4); shakes > 0; --shakes) {
      keys[any(keys.size())] += 2 * number() - 1;
    }
    try_keys(keys, top_ + 1);
  }

  // Keys stay positive, however often they are shaken.
  static constexpr double kBase = 1e6;

  const std::vector<Rectangle>& rectangles_;
  Skyline skyline_;
  Bytes goal_;
  Bytes top_ = kNoLimit;
  std::vector<double> keys_;
  std::vector<Bytes> addresses_;
  std::vector<Bytes> trial_;
  std::mt19937_64 random_{1};
  Clock::time_point end_;
};

}  // namespace

Bytes most_at_once(const std::vector<Rectangle>& rectangles, std::int32_t period) {
  std::vector<Bytes> change(static_cast<std::size_t>(period) + 1);
  Bytes now = 0;
  for (const Rectangle& rectangle : rectangles) {
    if (rectangle.length >= period) {
      now += rectangle.size;
      continue;
    }
    std::int32_t end = rectangle.begin + rectangle.length;
    if (end > period) {
      now += rectangle.size;
      end -= period;
    }
    change[static_cast<std::size_t>(rectangle.begin)] += rectangle.size;
    change[static_cast<std::size_t>(end)] -= rectangle.size;
  }
  Bytes most = now;
  for (std::int32_t moment = 0; moment < period; ++moment) {
    now += change[static_cast<std::size_t>(moment)];
    most = std::max(most, now);
  }
  return most;
}

Bytes pack(std::vector<Rectangle>& rectangles, std::int32_t period, double seconds) {
  // What is always there may as well lie at the bottom.
  Bytes bottom = 0;
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < rectangles.size(); ++i) {
    if (rectangles[i].length == 0) {
      rectangles[i].address = 0;
    } else if (rectangles[i].length < period) {
      others.push_back(i);
    } else {
      rectangles[i].address = bottom;
      bottom += rectangles[i].size;
    }
  }
  if (others.empty()) return bottom;
  std::ranges::stable_sort(others, {}, [&](std::size_t i) { return rectangles[i].begin; });
  std::vector<Rectangle> sorted;
  sorted.reserve(others.size());
  for (const std::size_t i : others) sorted.push_back(rectangles[i]);
  Search search(sorted, period, seconds);
  const Bytes top = search.run();
  for (std::size_t i = 0; i < others.size(); ++i) {
    rectangles[others[i]].address = bottom + search.addresses()[i];
  }
  return bottom + top;
}

}  // namespace lms
