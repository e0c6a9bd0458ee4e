#include "lab/datasets/random.h"

#include <cmath>
#include <numbers>
#include <numeric>

namespace lms::data {

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  // The finaliser of splitmix64, once for each number.
  const auto scramble = [](std::uint64_t x) {
    x += 0x9E3779B97F4A7C15U;
    x = (x ^ x >> 30U) * 0xBF58476D1CE4E5B9U;
    x = (x ^ x >> 27U) * 0x94D049BB133111EBU;
    return x ^ x >> 31U;
  };
  return scramble(scramble(a) ^ b);
}

double uniform(Generator& generator) { return static_cast<double>(generator() >> 11U) * 0x1p-53; }

double uniform(Generator& generator, double least, double most) {
  return least + (most - least) * uniform(generator);
}

std::int64_t below(Generator& generator, std::int64_t count) {
  const auto n = static_cast<std::uint64_t>(count);
  const std::uint64_t unfair = (0 - n) % n;  // this many values would come once more than others
  std::uint64_t value = generator();
  while (value < unfair) value = generator();
  return static_cast<std::int64_t>(value % n);
}

bool chance(Generator& generator, double probability) { return uniform(generator) < probability; }

double normal(Generator& generator) {
  const double radius = std::sqrt(-2 * std::log(1 - uniform(generator)));
  return radius * std::cos(2 * std::numbers::pi * uniform(generator));
}

std::vector<std::size_t> permutation(std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  Generator generator(seed);
  for (std::size_t i = count; i > 1; --i) {
    const auto other = static_cast<std::size_t>(below(generator, static_cast<std::int64_t>(i)));
    std::swap(order[i - 1], order[other]);
  }
  return order;
}

}  // namespace lms::data
