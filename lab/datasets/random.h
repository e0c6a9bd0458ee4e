#pragma once

// Random numbers that are the same with every standard library.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lab/datasets/dataset.h"

namespace lms::data {

/// A seed from two numbers: every change of one changes it altogether.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b);

/// In [0, 1).
double uniform(Generator& generator);
/// In [least, most]; least <= most.
double uniform(Generator& generator, double least, double most);
/// In [0, count); count > 0.
std::int64_t below(Generator& generator, std::int64_t count);
bool chance(Generator& generator, double probability);
/// Mean 0, deviation 1.
double normal(Generator& generator);

/// 0 to count - 1 in a drawn order.
std::vector<std::size_t> permutation(std::size_t count, std::uint64_t seed);

}  // namespace lms::data
