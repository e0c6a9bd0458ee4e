#pragma once

// Masks of polygons and of run lengths, pixel for pixel as pycocotools makes them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lms::data {

/// A mask of height × width as the positions, column by column (x·height + y), at which it changes
/// between 0 and 1, beginning with 0; in rising order, none twice.
struct Mask {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::int64_t> changes;

  [[nodiscard]] std::int64_t area() const;
  /// Row-major, 0 and 1.
  [[nodiscard]] std::vector<std::uint8_t> pixels() const;
  /// Writes `value` into a row-major image of height × width wherever the mask is 1.
  void draw(std::uint8_t* image, std::uint8_t value) const;
};

/// The inside of a polygon of points x, y, x, y, …, at least three, closed by itself. Coordinates
/// are pixels; all finite and below 2^24 in size (the caller has checked). Inside is what an odd
/// number of edges lies above.
///
/// pycocotools rounds points to a fifth of a pixel and walks between them in that grid; a column of
/// pixels is entered where the walk crosses its middle.
///
/// Throws DataError for a polygon that goes back and forth so often that more than kMostChanges
/// columns are entered.
inline constexpr std::size_t kMostChanges = std::size_t{1} << 24;
Mask polygon_mask(std::span<const double> points, std::int64_t height, std::int64_t width);

/// 1 where one of them is. All of one size, at least one.
Mask united(std::span<const Mask> masks);

/// COCO's run lengths, column by column, zeros first. Throws DataError, with `where` in front,
/// unless they are not negative and add up to height·width.
Mask runs_mask(std::span<const std::int64_t> runs, std::int64_t height, std::int64_t width,
               const std::string& where);

/// The same, as the string that COCO packs them into.
Mask packed_runs_mask(const std::string& packed, std::int64_t height, std::int64_t width,
                      const std::string& where);

}  // namespace lms::data
