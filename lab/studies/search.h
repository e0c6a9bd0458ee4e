#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lab/records/record.h"

namespace lms::studies {

using records::Outcome;

/// How a size turned out.
struct Tried {
  std::string outcome = Outcome::kFailed;
  double used = 0;  ///< share of the cap that it took at its peak; 0: not known
};

struct SearchOptions {
  std::int64_t start = 1;
  std::int64_t step = 1;
  double power = 1;  ///< memory grows with the size to this power: 1 of batches, 2 or 3 of sides
};

/// Which size to try next, for the largest multiple of `step` that trains; nothing when it is
/// known: the next one failed, or the smallest did. Doubling, then halving the interval; where the
/// memory of a size that trains is known, the size that would just fill it comes first. `tried` is
/// all that there is to know, so a search goes on wherever it was left. Sizes that kFailed count as
/// failed.
std::optional<std::int64_t> next_size(const std::map<std::int64_t, Tried>& tried,
                                      const SearchOptions& options);

/// The largest that trains, and the smallest beyond it that does not.
struct Edge {
  std::optional<std::int64_t> largest_ok;
  std::optional<std::int64_t> smallest_failed;
};
Edge edge_of(const std::map<std::int64_t, Tried>& tried);

}  // namespace lms::studies
