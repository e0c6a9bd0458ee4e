#include "lab/datasets/polygon.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "lab/datasets/files.h"

namespace lms::data {
namespace {

constexpr std::int64_t kFine = 5;    // steps of the fine grid in a pixel
constexpr std::int64_t kMiddle = 2;  // a pixel's middle lies between steps 2 and 3

struct FinePoint {
  std::int64_t x;
  std::int64_t y;
};

/// Rounds towards zero after adding a half, as the reference does, negative numbers too.
// NOLINTNEXTLINE(bugprone-incorrect-roundings): it is that rounding that is wanted.
std::int64_t rounded(double value) { return static_cast<std::int64_t>(value + 0.5); }

/// The crossings of a polygon's edges with the middles of columns.
class Crossings {
 public:
  Crossings(std::int64_t height, std::int64_t width) : height_(height), width_(width) {}

  void add_edge(FinePoint from, FinePoint to) {
    const std::int64_t dx = std::abs(to.x - from.x);
    const std::int64_t dy = std::abs(to.y - from.y);
    if (dx == 0) return;
    const bool flat = dx >= dy;
    if (flat ? from.x > to.x : from.y > to.y) std::swap(from, to);
    const auto [first, last] = columns(std::min(from.x, to.x), std::max(from.x, to.x));
    if (last >= first && static_cast<std::size_t>(last - first) + changes_.size() >= kMostChanges) {
      throw DataError("the outline goes back and forth more than any object's would");
    }
    for (std::int64_t column = first; column <= last; ++column) {
      const std::int64_t x = kFine * column + kMiddle;
      put(column, flat ? flat_crossing(from, to, x) : steep_crossing(from, to, x));
    }
  }

  std::vector<std::int64_t> take() {
    std::sort(changes_.begin(), changes_.end());
    return std::move(changes_);
  }

 private:
  /// The columns whose middle lies within [least, most] of the fine grid.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> columns(std::int64_t least,
                                                              std::int64_t most) const {
    // x = 5·column + 2 and x + 1 are both on the edge.
    const std::int64_t first = least <= kMiddle ? 0 : (least - kMiddle + kFine - 1) / kFine;
    const std::int64_t last = most - 1 < kMiddle ? -1 : (most - 1 - kMiddle) / kFine;
    return {first, std::min(last, width_ - 1)};
  }

  /// One step in x each: the higher of the two points on either side of the middle.
  static std::int64_t flat_crossing(FinePoint from, FinePoint to, std::int64_t x) {
    const double slope = static_cast<double>(to.y - from.y) / static_cast<double>(to.x - from.x);
    const auto y_at = [&](std::int64_t at) {
      return rounded(static_cast<double>(from.y) + slope * static_cast<double>(at - from.x));
    };
    return std::min(y_at(x), y_at(x + 1));
  }

  /// One step in y each: the last point before x passes the middle.
  static std::int64_t steep_crossing(FinePoint from, FinePoint to, std::int64_t x) {
    const std::int64_t steps = to.y - from.y;
    const double slope = static_cast<double>(to.x - from.x) / static_cast<double>(steps);
    const bool rising = to.x > from.x;
    const auto passed = [&](std::int64_t step) {
      const std::int64_t at =
          rounded(static_cast<double>(from.x) + slope * static_cast<double>(step));
      return rising ? at > x : at <= x;
    };
    std::int64_t before = 0;
    std::int64_t after = steps;
    while (after - before > 1) {
      const std::int64_t middle = before + (after - before) / 2;
      (passed(middle) ? after : before) = middle;
    }
    return from.y + before;
  }

  void put(std::int64_t column, std::int64_t fine_y) {
    const double y = (static_cast<double>(fine_y) + 0.5) / kFine - 0.5;
    const double clamped = std::clamp(y, 0.0, static_cast<double>(height_));
    changes_.push_back(column * height_ + static_cast<std::int64_t>(std::ceil(clamped)));
  }

  std::int64_t height_;
  std::int64_t width_;
  std::vector<std::int64_t> changes_;
};

/// Changes at the same place undo each other; one at the end changes nothing.
void tidy(Mask& mask) {
  std::vector<std::int64_t>& changes = mask.changes;
  std::size_t kept = 0;
  for (const std::int64_t change : changes) {
    if (kept > 0 && changes[kept - 1] == change) {
      --kept;
    } else {
      changes[kept++] = change;
    }
  }
  while (kept > 0 && changes[kept - 1] >= mask.height * mask.width) --kept;
  changes.resize(kept);
}

/// Calls `each(begin, end)` for every stretch of ones.
template <typename Each>
void for_each_run(const Mask& mask, const Each& each) {
  for (std::size_t i = 0; i < mask.changes.size(); i += 2) {
    const bool open = i + 1 == mask.changes.size();
    each(mask.changes[i], open ? mask.height * mask.width : mask.changes[i + 1]);
  }
}

}  // namespace

std::int64_t Mask::area() const {
  std::int64_t sum = 0;
  for_each_run(*this, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  return sum;
}

void Mask::draw(std::uint8_t* image, std::uint8_t value) const {
  for_each_run(*this, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t x = begin / height;
    std::int64_t y = begin % height;
    for (std::int64_t i = begin; i < end; ++i) {
      image[y * width + x] = value;
      if (++y == height) {
        y = 0;
        ++x;
      }
    }
  });
}

std::vector<std::uint8_t> Mask::pixels() const {
  std::vector<std::uint8_t> image(static_cast<std::size_t>(height * width));
  draw(image.data(), 1);
  return image;
}

Mask polygon_mask(std::span<const double> points, std::int64_t height, std::int64_t width) {
  std::vector<FinePoint> fine;
  fine.reserve(points.size() / 2);
  for (std::size_t i = 0; i + 1 < points.size(); i += 2) {
    fine.push_back({rounded(kFine * points[i]), rounded(kFine * points[i + 1])});
  }
  Crossings crossings(height, width);
  for (std::size_t i = 0; i < fine.size(); ++i) {
    crossings.add_edge(fine[i], fine[(i + 1) % fine.size()]);
  }
  Mask mask{height, width, crossings.take()};
  tidy(mask);
  return mask;
}

Mask united(std::span<const Mask> masks) {
  Mask sum{masks[0].height, masks[0].width, {}};
  struct Step {
    std::int64_t at;
    int change;
  };
  std::vector<Step> steps;
  for (const Mask& mask : masks) {
    for_each_run(mask, [&](std::int64_t begin, std::int64_t end) {
      steps.push_back({begin, 1});
      steps.push_back({end, -1});
    });
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.at < b.at; });
  int depth = 0;
  for (std::size_t i = 0; i < steps.size();) {
    const std::int64_t at = steps[i].at;
    const int before = depth;
    for (; i < steps.size() && steps[i].at == at; ++i) depth += steps[i].change;
    if ((before > 0) != (depth > 0)) sum.changes.push_back(at);
  }
  tidy(sum);
  return sum;
}

Mask runs_mask(std::span<const std::int64_t> runs, std::int64_t height, std::int64_t width,
               const std::string& where) {
  const std::int64_t total = height * width;
  Mask mask{height, width, {}};
  std::int64_t at = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i] < 0 || runs[i] > total - at) {
      fail(where, "run " + std::to_string(i) + ": a length of " + std::to_string(runs[i]) +
                      " after " + std::to_string(at) + " of " + std::to_string(total) + " pixels");
    }
    at += runs[i];
    mask.changes.push_back(at);
  }
  if (at != total) {
    fail(where, "the run lengths add up to " + std::to_string(at) + " pixels; " +
                    std::to_string(height) + " x " + std::to_string(width) + " are expected");
  }
  tidy(mask);
  return mask;
}

Mask packed_runs_mask(const std::string& packed, std::int64_t height, std::int64_t width,
                      const std::string& where) {
  // Digits of 5 bits from '0' on, lowest first, with 32 added where more follow; the last digit's
  // highest bit is the sign. From the fourth run on, differences to the run before the last.
  std::vector<std::int64_t> runs;
  for (std::size_t at = 0; at < packed.size();) {
    std::uint64_t bits = 0;
    unsigned shift = 0;
    bool more = true;
    while (more) {
      const int digit = at < packed.size() ? packed[at] - '0' : -1;
      if (digit < 0 || digit > 63 || shift > 55) {
        fail(where, "broken run lengths at character " + std::to_string(at));
      }
      ++at;
      bits |= static_cast<std::uint64_t>(digit & 31) << shift;
      shift += 5;
      more = (digit & 32) != 0;
      if (!more && (digit & 16) != 0) bits |= ~std::uint64_t{0} << shift;
    }
    auto run = static_cast<std::int64_t>(bits);
    if (runs.size() > 2) run += runs[runs.size() - 2];
    if (run < 0 || run > height * width) {
      fail(where, "run " + std::to_string(runs.size()) + ": a length of " + std::to_string(run));
    }
    runs.push_back(run);
  }
  return runs_mask(runs, height, width, where);
}

}  // namespace lms::data
