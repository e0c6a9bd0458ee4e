#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "plan/place/pack.h"
#include "plan/place/skyline.h"

namespace lms {

/// Looks for the keys by which the Skyline packs best: starts from simple rules, then changes the
/// keys of a few rectangles, or of many that have something in common, and keeps what is no worse.
/// Several starts are followed at first, the better half of them after each round.
class PackingSearch {
 public:
  /// As for Skyline. Ends after about `seconds` (at least one packing is made).
  PackingSearch(const std::vector<Rectangle>& rectangles, std::int32_t period, double seconds);

  /// Writes addresses and returns the end of the highest.
  Bytes run(std::vector<Bytes>& addresses);

 private:
  using Clock = std::chrono::steady_clock;
  struct Packing {
    std::vector<float> keys;
    float touch = 0;
    std::vector<Bytes> addresses;
    Bytes top = 0;
  };

  double number() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  float between(double low, double high) {
    return static_cast<float>(low + (high - low) * number());
  }
  float lift();
  std::size_t any(std::size_t count);
  std::size_t any_high() { return high_[any(high_.size())]; }
  std::int32_t any_moment_of(const Rectangle& rectangle);
  [[nodiscard]] bool there_at(const Rectangle& rectangle, std::int32_t moment) const;
  [[nodiscard]] double seconds_left() const;

  void start();
  void follow(double seconds, Packing& packing);
  void change(Packing& packing);
  void lift_high();
  void lift_moment();
  void lift_below_high();
  void lift_size();
  void lift_stretch();
  void weigh_size();

  const std::vector<Rectangle>& rectangles_;
  std::int32_t period_;
  Skyline skyline_;
  Bytes goal_;
  double seconds_;
  Clock::time_point begin_;
  std::vector<Packing> packings_;
  std::vector<std::size_t> high_;  // rectangles near the top of the packing that is changed
  std::vector<float> keys_;        // the changed ones
  std::vector<Bytes> addresses_;
  std::mt19937_64 random_{1};
};

}  // namespace lms
