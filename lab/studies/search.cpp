#include "lab/studies/search.h"

#include <algorithm>
#include <cmath>

namespace lms::studies {

Edge edge_of(const std::map<std::int64_t, Tried>& tried) {
  Edge edge;
  for (const auto& [size, result] : tried) {
    if (result.outcome == Outcome::kOk) edge.largest_ok = size;
  }
  for (const auto& [size, result] : tried) {
    if (result.outcome == Outcome::kOk) continue;
    if (edge.largest_ok && size < *edge.largest_ok) continue;
    edge.smallest_failed = size;
    break;
  }
  return edge;
}

std::optional<std::int64_t> next_size(const std::map<std::int64_t, Tried>& tried,
                                      const SearchOptions& options) {
  const std::int64_t step = options.step;
  const auto down = [&](double size) {
    return static_cast<std::int64_t>(std::floor(size / static_cast<double>(step) + 1e-9)) * step;
  };
  const Edge edge = edge_of(tried);
  if (!edge.largest_ok) {
    if (!edge.smallest_failed) return std::max(step, down(static_cast<double>(options.start)));
    const std::int64_t half = down(static_cast<double>(*edge.smallest_failed) / 2);
    if (half >= step) return half;
    return *edge.smallest_failed > step ? std::optional(step) : std::nullopt;
  }
  const std::int64_t ok = *edge.largest_ok;
  const double used = tried.at(ok).used;
  std::optional<std::int64_t> fills;
  // Caches may fill the memory long before it is needed: what was asked for by that once, and
  // trained, is not believed again.
  const bool misled = tried.contains(ok - step) && tried.at(ok - step).outcome == Outcome::kOk;
  if (used > 0 && !misled) {
    const double factor = std::pow(1 / used, 1 / options.power);
    fills = down(static_cast<double>(ok) * std::clamp(factor, 1.0, 4.0));
  }
  if (!edge.smallest_failed) return std::max(ok + step, fills.value_or(2 * ok));
  const std::int64_t bad = *edge.smallest_failed;
  const std::int64_t least = down(static_cast<double>(ok)) + step;
  if (least >= bad) return std::nullopt;
  if (fills && *fills < bad) return std::max(least, *fills);
  const std::int64_t middle = down((static_cast<double>(ok) + static_cast<double>(bad)) / 2);
  return std::clamp(middle, least, bad - 1);
}

}  // namespace lms::studies
