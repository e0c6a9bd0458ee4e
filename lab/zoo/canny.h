#pragma once

#include <cstdint>

namespace lms::zoo {

/// A picture whose channels lie one after the other, row by row.
struct ImageRef {
  const std::uint8_t* pixels;
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;
};

/// Canny's edges (1986) as OpenCV's cv2.Canny(image, low, high) finds them, bit for bit: gradients
/// by Sobel's 3×3 filter with the border repeated, of each pixel's channel that changes most
/// (|dx| + |dy|; the first of equals); thinned along the gradient in four directions; kept above
/// `high`, or above `low` where connected to such. `edges`: height×width, becomes 255 at edges and
/// 0 elsewhere. Thread-safe.
void canny(const ImageRef& image, double low, double high, std::uint8_t* edges);

}  // namespace lms::zoo
