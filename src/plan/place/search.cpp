#include "plan/place/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace lms {
namespace {

/// For every rectangle the logarithm of the time that it lasts, where a moment counts by how full
/// it is, to the power of `power`: what is there when it is tight comes out longest.
std::vector<float> crowded_time(const std::vector<Rectangle>& rectangles, std::int32_t period,
                                double power) {
  const std::vector<Bytes> taken = bytes_by_moment(rectangles, period);
  const auto most = static_cast<double>(std::ranges::max(taken));
  std::vector<double> until{0};  // of two periods
  until.reserve(2 * taken.size() + 1);
  for (std::size_t moment = 0; moment < 2 * taken.size(); ++moment) {
    const double full = static_cast<double>(taken[moment % taken.size()]) / most;
    until.push_back(until.back() + std::pow(full, power) + 1e-4);
  }
  std::vector<float> result;
  result.reserve(rectangles.size());
  for (const Rectangle& rectangle : rectangles) {
    const auto begin = static_cast<std::size_t>(rectangle.begin);
    const auto end = begin + static_cast<std::size_t>(rectangle.length);
    result.push_back(static_cast<float>(std::log(until[end] - until[begin])));
  }
  return result;
}

}  // namespace

PackingSearch::PackingSearch(const std::vector<Rectangle>& rectangles, std::int32_t period,
                             double seconds)
    : rectangles_(rectangles),
      period_(period),
      skyline_(rectangles, period),
      goal_(most_at_once(rectangles, period)),
      seconds_(seconds),
      begin_(Clock::now()),
      addresses_(rectangles.size()) {}

double PackingSearch::seconds_left() const {
  return seconds_ - std::chrono::duration<double>(Clock::now() - begin_).count();
}

/// How much earlier something is to be placed: mostly a little, now and then a lot.
float PackingSearch::lift() { return static_cast<float>(-std::log(1 - number())); }

std::size_t PackingSearch::any(std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
}

std::int32_t PackingSearch::any_moment_of(const Rectangle& rectangle) {
  const auto offset = any(static_cast<std::size_t>(rectangle.length));
  return (rectangle.begin + static_cast<std::int32_t>(offset)) % period_;
}

bool PackingSearch::there_at(const Rectangle& rectangle, std::int32_t moment) const {
  const std::int32_t offset = moment - rectangle.begin;
  return (offset < 0 ? offset + period_ : offset) < rectangle.length;
}

Bytes PackingSearch::run(std::vector<Bytes>& addresses) {
  start();
  const auto by_top = [](const Packing& packing) { return packing.top; };
  std::ranges::stable_sort(packings_, {}, by_top);
  // Each packing followed should get a few hundred changes.
  const double each = (seconds_ - seconds_left()) / static_cast<double>(packings_.size());
  const double changes = std::max(0.0, seconds_left()) / std::max(each, 1e-9);
  const auto followed = static_cast<std::size_t>(std::clamp(changes / 300, 1.0, 6.0));
  if (packings_.size() > followed) packings_.resize(followed);
  while (packings_.front().top > goal_ && seconds_left() > 0) {
    const double rounds = 1 + std::ceil(std::log2(packings_.size()));
    const double slice = seconds_left() / rounds / static_cast<double>(packings_.size());
    for (Packing& packing : packings_) follow(slice, packing);
    std::ranges::stable_sort(packings_, {}, by_top);
    packings_.resize((packings_.size() + 1) / 2);
  }
  addresses = std::move(packings_.front().addresses);
  return packings_.front().top;
}

void PackingSearch::start() {
  // The longest first; the larger may count too.
  constexpr std::array kPower{16.0, 0.0, 64.0, 4.0};
  constexpr std::array kTouch{0.0F, 1.0F, 3.0F};
  constexpr std::array kSize{0.0F, 0.3F, 1.0F};
  std::array<std::vector<float>, kPower.size()> times;
  for (const float size : kSize) {
    for (const float touch : kTouch) {
      for (std::size_t p = 0; p < kPower.size(); ++p) {
        if (!packings_.empty() && seconds_left() < 0.7 * seconds_) return;
        if (times[p].empty()) times[p] = crowded_time(rectangles_, period_, kPower[p]);
        Packing& packing = packings_.emplace_back();
        packing.keys = times[p];
        packing.touch = touch;
        packing.addresses.resize(rectangles_.size());
        for (std::size_t i = 0; i < rectangles_.size(); ++i) {
          packing.keys[i] += size * std::log(static_cast<float>(rectangles_[i].size));
        }
        packing.top = skyline_.pack(packing.keys, touch, packing.addresses,
                                    std::numeric_limits<Bytes>::max());
        if (packing.top == goal_) return;
      }
    }
  }
}

void PackingSearch::follow(double seconds, Packing& packing) {
  const double until = seconds_left() - seconds;
  while (packing.top > goal_ && seconds_left() > std::max(until, 0.0)) change(packing);
}

void PackingSearch::change(Packing& packing) {
  const auto depth = static_cast<Bytes>(static_cast<double>(packing.top - goal_) * number());
  high_.clear();
  for (std::size_t i = 0; i < rectangles_.size(); ++i) {
    if (packing.addresses[i] + rectangles_[i].size >= packing.top - depth) high_.push_back(i);
  }
  keys_ = packing.keys;
  float touch = packing.touch;
  switch (any(8)) {
    case 0:
    case 1:
      lift_high();
      break;
    case 2:
      lift_moment();
      break;
    case 3:
      lift_below_high();
      break;
    case 4:
      lift_size();
      break;
    case 5:
      lift_stretch();
      break;
    case 6:
      weigh_size();
      break;
    default:
      touch = std::max(0.0F, touch + between(-0.75, 0.75));
      for (std::size_t times = any(3); times > 0; --times) keys_[any_high()] += lift();
  }
  const Bytes top = skyline_.pack(keys_, touch, addresses_, packing.top + 1);
  if (top > packing.top) return;
  packing.keys.swap(keys_);
  packing.addresses.swap(addresses_);
  packing.touch = touch;
  packing.top = top;
}

void PackingSearch::lift_high() {
  for (std::size_t times = 1 + any(3); times > 0; --times) keys_[any_high()] += lift();
  for (std::size_t times = any(4); times > 0; --times) keys_[any(keys_.size())] += between(-1, 1);
}

/// Everything that is there at one moment.
void PackingSearch::lift_moment() {
  const std::int32_t moment =
      any(2) == 0 ? any_moment_of(rectangles_[any_high()])
                  : static_cast<std::int32_t>(any(static_cast<std::size_t>(period_)));
  const float by = any(4) == 0 ? -lift() : lift();
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (there_at(rectangles_[i], moment)) keys_[i] += by;
  }
}

/// A few that are there together with something high.
void PackingSearch::lift_below_high() {
  constexpr int kPatience = 200;
  for (std::size_t times = 1 + any(3); times > 0; --times) {
    const std::int32_t moment = any_moment_of(rectangles_[any_high()]);
    for (int tries = 0; tries < kPatience; ++tries) {
      const std::size_t i = any(keys_.size());
      if (!there_at(rectangles_[i], moment)) continue;
      keys_[i] += lift();
      break;
    }
  }
}

/// Everything of one size.
void PackingSearch::lift_size() {
  const Bytes size = rectangles_[any(2) == 0 ? any_high() : any(keys_.size())].size;
  const float by = between(-0.8, 1.2);
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (rectangles_[i].size == size) keys_[i] += by;
  }
}

/// Everything that comes and goes within one stretch of time.
void PackingSearch::lift_stretch() {
  const auto begin = static_cast<std::int32_t>(any(static_cast<std::size_t>(period_)));
  const auto length = static_cast<std::int32_t>(number() * static_cast<double>(period_ >> any(6)));
  const float by = between(-1, 1);
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    std::int32_t offset = rectangles_[i].begin - begin;
    if (offset < 0) offset += period_;
    if (offset + rectangles_[i].length <= length) keys_[i] += by;
  }
}

void PackingSearch::weigh_size() {
  const float by = between(-0.25, 0.25);
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    keys_[i] += by * std::log(static_cast<float>(rectangles_[i].size));
  }
}

}  // namespace lms
