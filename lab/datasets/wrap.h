#pragma once

// Data sets made of others. Each keeps those it is made of, and passes on their classes, names and
// colours.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lab/datasets/dataset.h"

namespace lms::data {

using DatasetPtr = std::shared_ptr<const Dataset>;

/// The samples at `indices`, in that order. Throws DataError for one that is out of range.
DatasetPtr subset(DatasetPtr base, std::vector<std::size_t> indices);

/// All samples in an order that is drawn once from `seed`. (A Loader draws one anew every epoch.)
DatasetPtr shuffled(DatasetPtr base, std::uint64_t seed);

/// Two parts without a common sample: `share` of them (of a drawn order), and the rest. None is
/// empty: throws DataError where that cannot be.
std::pair<DatasetPtr, DatasetPtr> split(DatasetPtr base, double share, std::uint64_t seed);

/// Every sample `times` times, each time with other random numbers: an epoch of a small data set.
DatasetPtr repeated(DatasetPtr base, std::size_t times);

/// One after the other. Throws DataError if they differ in their number of classes.
DatasetPtr concatenated(std::vector<DatasetPtr> parts);

/// Samples as `transforms` change them, in order, with a generator seeded by the sample's seed.
/// DataErrors of transforms get the sample's name in front.
DatasetPtr transformed(DatasetPtr base, std::vector<Transform> transforms);

/// Keeps samples in memory, the first that fit into `bytes`. For a base that draws nothing from its
/// seed, as all decoding ones are; so under transformed(), not above.
DatasetPtr cached(DatasetPtr base, std::size_t bytes);

}  // namespace lms::data
