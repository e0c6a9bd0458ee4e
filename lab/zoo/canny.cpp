#include "lab/zoo/canny.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace lms::zoo {
namespace {

constexpr std::int32_t kTan22 = 13573;  // tan(22.5°) in 15 fractional bits

/// Everything has a border of one pixel, whose magnitude is 0, so that neighbours need no checks.
struct Gradients {
  explicit Gradients(const ImageRef& image)
      : stride(image.width + 2),
        magnitude((image.height + 2) * stride),
        dx(magnitude.size()),
        dy(magnitude.size()) {}

  std::int64_t stride;
  std::vector<std::int32_t> magnitude;
  std::vector<std::int16_t> dx;
  std::vector<std::int16_t> dy;
};

void add_channel(const ImageRef& image, std::int64_t channel, Gradients& gradients) {
  const std::uint8_t* plane = image.pixels + channel * image.height * image.width;
  for (std::int64_t y = 0; y < image.height; ++y) {
    const std::uint8_t* above = plane + std::max<std::int64_t>(y - 1, 0) * image.width;
    const std::uint8_t* row = plane + y * image.width;
    const std::uint8_t* below = plane + std::min(y + 1, image.height - 1) * image.width;
    const std::int64_t offset = (y + 1) * gradients.stride + 1;
    for (std::int64_t x = 0; x < image.width; ++x) {
      const std::int64_t left = std::max<std::int64_t>(x - 1, 0);
      const std::int64_t right = std::min(x + 1, image.width - 1);
      const int dx = (above[right] + 2 * row[right] + below[right]) -
                     (above[left] + 2 * row[left] + below[left]);
      const int dy =
          (below[left] + 2 * below[x] + below[right]) - (above[left] + 2 * above[x] + above[right]);
      const int magnitude = std::abs(dx) + std::abs(dy);
      if (channel == 0 || magnitude > gradients.magnitude[offset + x]) {
        gradients.magnitude[offset + x] = magnitude;
        gradients.dx[offset + x] = static_cast<std::int16_t>(dx);
        gradients.dy[offset + x] = static_cast<std::int16_t>(dy);
      }
    }
  }
}

/// Whether no neighbour along the gradient is stronger. Of two equals across a horizontal or
/// vertical edge the first stays; of two across a diagonal, neither.
bool is_ridge(const Gradients& gradients, std::int64_t at) {
  const std::int32_t* m = gradients.magnitude.data() + at;
  const std::int64_t stride = gradients.stride;
  const int dx = gradients.dx[at];
  const int dy = gradients.dy[at];
  const std::int32_t flat = std::abs(dx) * kTan22;
  const std::int32_t steep = flat + (std::abs(dx) << 16);  // tan(67.5°) = tan(22.5°) + 2
  const std::int32_t rise = std::abs(dy) << 15;
  if (rise < flat) return m[0] > m[-1] && m[0] >= m[1];
  if (rise > steep) return m[0] > m[-stride] && m[0] >= m[stride];
  const std::int64_t slant = (dx ^ dy) < 0 ? -1 : 1;
  return m[0] > m[-stride - slant] && m[0] > m[stride + slant];
}

}  // namespace

void canny(const ImageRef& image, double low, double high, std::uint8_t* edges) {
  const auto weak = static_cast<std::int32_t>(std::floor(std::min(low, high)));
  const auto strong = static_cast<std::int32_t>(std::floor(std::max(low, high)));
  Gradients gradients(image);
  for (std::int64_t channel = 0; channel < image.channels; ++channel) {
    add_channel(image, channel, gradients);
  }

  enum : std::uint8_t { kNone, kCandidate, kEdge };
  std::vector<std::uint8_t> state(gradients.magnitude.size(), kNone);
  std::vector<std::int64_t> open;
  for (std::int64_t y = 1; y <= image.height; ++y) {
    for (std::int64_t x = 1; x <= image.width; ++x) {
      const std::int64_t at = y * gradients.stride + x;
      const std::int32_t magnitude = gradients.magnitude[at];
      if (magnitude <= weak || !is_ridge(gradients, at)) continue;
      state[at] = magnitude > strong ? kEdge : kCandidate;
      if (magnitude > strong) open.push_back(at);
    }
  }
  while (!open.empty()) {
    const std::int64_t at = open.back();
    open.pop_back();
    for (const std::int64_t row : {-gradients.stride, std::int64_t{0}, gradients.stride}) {
      for (const std::int64_t column : {-1, 0, 1}) {
        std::uint8_t& neighbour = state[at + row + column];
        if (neighbour != kCandidate) continue;
        neighbour = kEdge;
        open.push_back(at + row + column);
      }
    }
  }
  for (std::int64_t y = 0; y < image.height; ++y) {
    const std::uint8_t* row = state.data() + (y + 1) * gradients.stride + 1;
    std::transform(row, row + image.width, edges + y * image.width,
                   [](std::uint8_t s) { return s == kEdge ? 255 : 0; });
  }
}

}  // namespace lms::zoo
