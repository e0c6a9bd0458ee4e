// Edges of labels: distance transforms cut at a small radius need only look that far.

#include <utility>

#include "lab/datasets/planes.h"

namespace lms::data {

Transform label_edges(std::size_t classes, int radius, bool frame) {
  if (radius < 1 || radius > 64) throw BadSetting("label_edges: a radius from 1 to 64");
  std::vector<std::pair<int, int>> offsets;  // y, x
  for (int y = -radius; y <= radius; ++y) {
    for (int x = -radius; x <= radius; ++x) {
      const int squared = x * x + y * y;
      if (squared > 0 && squared <= radius * radius) offsets.emplace_back(y, x);
    }
  }
  return [=](Sample& sample, Generator& /*generator*/) {
    check_sample(sample, 3, "label_edges");
    if (sample.target.shape.size() != 2) throw DataError("label_edges: is for class ids of pixels");
    const std::int64_t height = sample.target.shape[0];
    const std::int64_t width = sample.target.shape[1];
    const std::vector<std::uint8_t>& labels = sample.target.values;
    const auto kind = [&](std::int64_t y, std::int64_t x) {
      const std::uint8_t label = labels[static_cast<std::size_t>(y * width + x)];
      return label < classes ? label : kVoid;
    };
    Array<std::uint8_t> edges{sample.target.shape, std::vector<std::uint8_t>(labels.size())};
    const auto is_edge = [&](std::int64_t y, std::int64_t x) {
      const std::uint8_t own = kind(y, x);
      for (const auto& [down, across] : offsets) {
        const std::int64_t other_y = y + down;
        const std::int64_t other_x = x + across;
        if (other_y < 0 || other_y >= height || other_x < 0 || other_x >= width) {
          if (frame && own != kVoid) return true;
        } else if (kind(other_y, other_x) != own) {
          return true;
        }
      }
      return false;
    };
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        edges.values[static_cast<std::size_t>(y * width + x)] = is_edge(y, x) ? 1 : 0;
      }
    }
    sample.extras.push_back(std::move(edges));
  };
}

}  // namespace lms::data
