// What is done to volumes and their labels.

#include <cmath>
#include <numbers>

#include "lab/datasets/files.h"
#include "lab/datasets/planes.h"
#include "lab/datasets/random.h"

namespace lms::data {
namespace {

using Sides = std::array<std::int64_t, 3>;
using Point = std::array<double, 3>;
using Matrix = std::array<Point, 3>;

Sides sides_of(const Sample& sample) {
  return {sample.input.shape[1], sample.input.shape[2], sample.input.shape[3]};
}

void check_sides(const Sides& size, const char* transform) {
  if (*std::min_element(size.begin(), size.end()) < 1) {
    throw BadSetting(std::string(transform) + ": sides are to be at least 1");
  }
}

/// A part of every channel, 0 where there is none.
template <typename T>
void cut3d(Array<T>& array, const Sides& begin, const Sides& size) {
  const Sides old = {array.shape[1], array.shape[2], array.shape[3]};
  const std::int64_t channels = array.shape[0];
  std::vector<T> values(static_cast<std::size_t>(channels * size[0] * size[1] * size[2]));
  const std::int64_t first = std::clamp<std::int64_t>(-begin[2], 0, size[2]);
  const std::int64_t last = std::clamp<std::int64_t>(old[2] - begin[2], first, size[2]);
  T* to = values.data();
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t d = begin[0]; d < begin[0] + size[0]; ++d) {
      for (std::int64_t h = begin[1]; h < begin[1] + size[1]; ++h, to += size[2]) {
        if (d < 0 || d >= old[0] || h < 0 || h >= old[1] || first == last) continue;
        const T* row = array.values.data() + ((channel * old[0] + d) * old[1] + h) * old[2];
        std::copy(row + begin[2] + first, row + begin[2] + last, to + first);
      }
    }
  }
  array.shape = {channels, size[0], size[1], size[2]};
  array.values = std::move(values);
}

void cut3d_sample(Sample& sample, const Sides& begin, const Sides& size) {
  cut3d(sample.input, begin, size);
  cut3d(sample.target, begin, size);
  for (Array<std::uint8_t>& extra : sample.extras) cut3d(extra, begin, size);
}

/// A part deformed: where in the volume each of its voxels is from.
class Warp {
 public:
  Warp(const Sides& begin, const Sides& size, const Deformation& deformation, Generator& generator)
      : size_(size), spacing_(deformation.warp_grid) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      middle_[axis] = (static_cast<double>(size[axis]) - 1) / 2;
      target_[axis] = static_cast<double>(begin[axis]) + middle_[axis];
    }
    const double scale = uniform(generator, 1 - deformation.scale, 1 + deformation.scale);
    matrix_ = {Point{1 / scale, 0, 0}, Point{0, 1 / scale, 0}, Point{0, 0, 1 / scale}};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      rotate(axis, uniform(generator, -deformation.rotation, deformation.rotation));
    }
    if (deformation.warp <= 0) return;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      nodes_[axis] = static_cast<std::int64_t>(static_cast<double>(size[axis]) / spacing_) + 2;
      set_between(axis);
    }
    shifts_.resize(static_cast<std::size_t>(nodes_[0] * nodes_[1] * nodes_[2]));
    for (Point& shift : shifts_) {
      for (double& part : shift) part = deformation.warp * normal(generator);
    }
  }

  /// Calls `each(to, source)` for every voxel of the part, in order.
  template <typename Each>
  void for_each_voxel(const Each& each) const {
    std::vector<Point> shifts(static_cast<std::size_t>(nodes_[2]));
    std::int64_t to = 0;
    for (std::int64_t d = 0; d < size_[0]; ++d) {
      for (std::int64_t h = 0; h < size_[1]; ++h) {
        const Point start = row_start(d, h);
        if (!shifts_.empty()) blend_row(d, h, shifts);
        for (std::int64_t w = 0; w < size_[2]; ++w) {
          const auto place = static_cast<double>(w);
          Point from = start;
          for (std::size_t axis = 0; axis < 3; ++axis) from[axis] += matrix_[axis][2] * place;
          if (!shifts_.empty()) {
            const Between& at = between_[2][static_cast<std::size_t>(w)];
            const Point& low = shifts[static_cast<std::size_t>(at.low)];
            const Point& high = shifts[static_cast<std::size_t>(at.low + 1)];
            for (std::size_t axis = 0; axis < 3; ++axis) {
              from[axis] += low[axis] + (high[axis] - low[axis]) * at.part;
            }
          }
          each(to++, from);
        }
      }
    }
  }

  [[nodiscard]] const Sides& size() const { return size_; }

 private:
  void rotate(std::size_t axis, double degrees) {
    const double angle = degrees * std::numbers::pi / 180;
    const std::size_t a = (axis + 1) % 3;
    const std::size_t b = (axis + 2) % 3;
    for (Point& row : matrix_) {
      const double first = row[a];
      const double second = row[b];
      row[a] = first * std::cos(angle) + second * std::sin(angle);
      row[b] = second * std::cos(angle) - first * std::sin(angle);
    }
  }

  /// Where a voxel lies between two nodes of an axis; smoothed, so that there are no kinks at
  /// nodes.
  struct Between {
    std::int64_t low;
    double part;
  };

  void set_between(std::size_t axis) {
    for (std::int64_t i = 0; i < size_[axis]; ++i) {
      const double place = static_cast<double>(i) / spacing_;
      const auto low = std::min(static_cast<std::int64_t>(place), nodes_[axis] - 2);
      const double rest = place - static_cast<double>(low);
      between_[axis].push_back({low, rest * rest * (3 - 2 * rest)});
    }
  }

  [[nodiscard]] Point row_start(std::int64_t d, std::int64_t h) const {
    const Point at = {static_cast<double>(d) - middle_[0], static_cast<double>(h) - middle_[1],
                      -middle_[2]};
    Point start = target_;
    for (std::size_t row = 0; row < 3; ++row) {
      for (std::size_t column = 0; column < 3; ++column) {
        start[row] += matrix_[row][column] * at[column];
      }
    }
    return start;
  }

  /// The shifts of a row's nodes: between those of four rows.
  void blend_row(std::int64_t d, std::int64_t h, std::vector<Point>& shifts) const {
    const Between& down = between_[0][static_cast<std::size_t>(d)];
    const Between& across = between_[1][static_cast<std::size_t>(h)];
    for (std::int64_t node = 0; node < nodes_[2]; ++node) {
      Point& sum = shifts[static_cast<std::size_t>(node)];
      sum = {};
      for (std::int64_t corner = 0; corner < 4; ++corner) {
        const std::int64_t i = corner & 1;
        const std::int64_t j = corner >> 1;
        const double weight =
            (i == 1 ? down.part : 1 - down.part) * (j == 1 ? across.part : 1 - across.part);
        const std::int64_t row = (down.low + i) * nodes_[1] + across.low + j;
        const Point& shift = shifts_[static_cast<std::size_t>(row * nodes_[2] + node)];
        for (std::size_t axis = 0; axis < 3; ++axis) sum[axis] += weight * shift[axis];
      }
    }
  }

  Sides size_;
  double spacing_;
  Point middle_{};
  Point target_{};
  Matrix matrix_{};
  Sides nodes_{};
  std::array<std::vector<Between>, 3> between_;
  std::vector<Point> shifts_;
};

/// std::floor() is a call; this is not.
std::int64_t floored(double value) {
  const auto whole = static_cast<std::int64_t>(value);
  return whole - (value < static_cast<double>(whole) ? 1 : 0);
}

/// The value at a place between voxels, linear; outside it is 0.
float linear(const float* volume, const Sides& sides, const Point& at) {
  Sides low{};
  std::array<float, 3> part{};
  bool all = true;  // eight voxels are there
  for (std::size_t axis = 0; axis < 3; ++axis) {
    low[axis] = floored(at[axis]);
    part[axis] = static_cast<float>(at[axis] - static_cast<double>(low[axis]));
    all = all && low[axis] >= 0 && low[axis] + 1 < sides[axis];
  }
  if (all) {
    const std::int64_t plane = sides[1] * sides[2];
    const float* from = volume + low[0] * plane + low[1] * sides[2] + low[2];
    const auto row = [&](const float* pair) { return pair[0] + (pair[1] - pair[0]) * part[2]; };
    const auto layer = [&](const float* first) {
      const float upper = row(first);
      return upper + (row(first + sides[2]) - upper) * part[1];
    };
    const float front = layer(from);
    return front + (layer(from + plane) - front) * part[0];
  }
  float sum = 0;
  for (std::int64_t corner = 0; corner < 8; ++corner) {
    const Sides place = {low[0] + (corner & 1), low[1] + (corner >> 1 & 1),
                         low[2] + (corner >> 2 & 1)};
    float weight = 1;
    bool inside = true;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      weight *= place[axis] == low[axis] ? 1 - part[axis] : part[axis];
      inside = inside && place[axis] >= 0 && place[axis] < sides[axis];
    }
    if (inside) sum += weight * volume[(place[0] * sides[1] + place[1]) * sides[2] + place[2]];
  }
  return sum;
}

/// Offset of the nearest voxel, or -1.
std::int64_t nearest(const Sides& sides, const Point& at) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const auto place = floored(at[axis] + 0.5);
    if (place < 0 || place >= sides[axis]) return -1;
    offset = offset * sides[axis] + place;
  }
  return offset;
}

void warp_sample(Sample& sample, const Warp& warp) {
  const Sides old = sides_of(sample);
  const Sides& size = warp.size();
  const std::int64_t old_count = old[0] * old[1] * old[2];
  const std::int64_t count = size[0] * size[1] * size[2];
  const auto empty_like = [&](const auto& array) {
    auto result = array;
    result.shape = {array.shape[0], size[0], size[1], size[2]};
    result.values.assign(static_cast<std::size_t>(array.shape[0] * count), 0);
    return result;
  };
  Array<float> input = empty_like(sample.input);
  std::vector<Array<std::uint8_t>*> labels = {&sample.target};
  for (Array<std::uint8_t>& extra : sample.extras) labels.push_back(&extra);
  std::vector<Array<std::uint8_t>> warped;
  warped.reserve(labels.size());
  for (const Array<std::uint8_t>* array : labels) warped.push_back(empty_like(*array));

  warp.for_each_voxel([&](std::int64_t to, const Point& at) {
    for (std::int64_t channel = 0; channel < input.shape[0]; ++channel) {
      input.values[static_cast<std::size_t>(channel * count + to)] =
          linear(sample.input.values.data() + channel * old_count, old, at);
    }
    const std::int64_t from = nearest(old, at);
    if (from < 0) return;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      for (std::int64_t channel = 0; channel < warped[i].shape[0]; ++channel) {
        warped[i].values[static_cast<std::size_t>(channel * count + to)] =
            labels[i]->values[static_cast<std::size_t>(channel * old_count + from)];
      }
    }
  });
  sample.input = std::move(input);
  for (std::size_t i = 0; i < labels.size(); ++i) *labels[i] = std::move(warped[i]);
}

/// Axis i of the result is axis order[i] of the array, both after the channels; flipped ones are
/// turned around.
template <typename T>
void rearrange(Array<T>& array, const std::vector<std::size_t>& order,
               const std::array<bool, 3>& flipped) {
  const Sides old = {array.shape[1], array.shape[2], array.shape[3]};
  const Sides strides = {old[1] * old[2], old[2], 1};
  const Sides size = {old[order[0]], old[order[1]], old[order[2]]};
  std::int64_t start = 0;
  Sides step{};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const std::int64_t stride = strides[order[axis]];
    step[axis] = flipped[axis] ? -stride : stride;
    if (flipped[axis]) start += stride * (size[axis] - 1);
  }
  std::vector<T> values(array.values.size());
  T* to = values.data();
  const std::int64_t count = old[0] * old[1] * old[2];
  for (std::int64_t channel = 0; channel < array.shape[0]; ++channel) {
    const T* from = array.values.data() + channel * count + start;
    for (std::int64_t d = 0; d < size[0]; ++d) {
      for (std::int64_t h = 0; h < size[1]; ++h) {
        for (std::int64_t w = 0; w < size[2]; ++w) {
          *to++ = from[d * step[0] + h * step[1] + w * step[2]];
        }
      }
    }
  }
  array.shape = {array.shape[0], size[0], size[1], size[2]};
  array.values = std::move(values);
}

void rearrange_sample(Sample& sample, const std::vector<std::size_t>& order,
                      const std::array<bool, 3>& flipped) {
  rearrange(sample.input, order, flipped);
  rearrange(sample.target, order, flipped);
  for (Array<std::uint8_t>& extra : sample.extras) rearrange(extra, order, flipped);
}

void check_volume(const Sample& sample, const char* transform) {
  check_sample(sample, 4, transform);
  if (sample.target.shape.size() != 4) fail(transform, "is for targets of labels x sides");
  for (const Array<std::uint8_t>& extra : sample.extras) {
    if (extra.shape.size() != 4) fail(transform, "is for extras of labels x sides");
  }
}

}  // namespace

Transform random_crop3d(std::array<std::int64_t, 3> size, const Deformation& deformation) {
  check_sides(size, "random_crop3d");
  if (!(deformation.rotation >= 0 && deformation.scale >= 0 && deformation.scale < 1 &&
        deformation.warp >= 0 && deformation.warp_grid >= 1)) {
    throw BadSetting("random_crop3d: rotation and warp from 0, scale below 1, warp_grid from 1");
  }
  return [=](Sample& sample, Generator& generator) {
    check_volume(sample, "random_crop3d");
    const Sides old = sides_of(sample);
    Sides begin{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      begin[axis] = old[axis] > size[axis] ? below(generator, old[axis] - size[axis] + 1)
                                           : -((size[axis] - old[axis]) / 2);
    }
    if (deformation.rotation > 0 || deformation.scale > 0 || deformation.warp > 0) {
      warp_sample(sample, Warp(begin, size, deformation, generator));
    } else {
      cut3d_sample(sample, begin, size);
    }
  };
}

Transform center_crop3d(std::array<std::int64_t, 3> size) {
  check_sides(size, "center_crop3d");
  return [=](Sample& sample, Generator& /*generator*/) {
    check_volume(sample, "center_crop3d");
    const Sides old = sides_of(sample);
    Sides begin{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const std::int64_t more = old[axis] - size[axis];
      begin[axis] = more > 0 ? more / 2 : -(-more / 2);
    }
    cut3d_sample(sample, begin, size);
  };
}

Transform pad_to_multiple3d(std::int64_t divisor) {
  if (divisor < 1) throw BadSetting("pad_to_multiple3d: the divisor is to be at least 1");
  return [=](Sample& sample, Generator& /*generator*/) {
    check_volume(sample, "pad_to_multiple3d");
    Sides size = sides_of(sample);
    for (std::int64_t& side : size) side = (side + divisor - 1) / divisor * divisor;
    cut3d_sample(sample, {0, 0, 0}, size);
  };
}

Transform random_axes3d() {
  return [](Sample& sample, Generator& generator) {
    check_volume(sample, "random_axes3d");
    rearrange_sample(sample, permutation(3, generator()), {});
  };
}

Transform random_flip3d(double probability) {
  return [=](Sample& sample, Generator& generator) {
    check_volume(sample, "random_flip3d");
    std::array<bool, 3> flipped{};
    for (bool& axis : flipped) axis = chance(generator, probability);
    rearrange_sample(sample, {0, 1, 2}, flipped);
  };
}

Transform random_intensity3d(double scale, double shift) {
  return [=](Sample& sample, Generator& generator) {
    check_volume(sample, "random_intensity3d");
    const std::size_t count =
        sample.input.values.size() / static_cast<std::size_t>(sample.input.shape[0]);
    for (std::size_t begin = 0; begin < sample.input.values.size(); begin += count) {
      const auto factor = static_cast<float>(uniform(generator, 1 - scale, 1 + scale));
      const auto plus = static_cast<float>(uniform(generator, -shift, shift));
      for (std::size_t i = begin; i < begin + count; ++i) {
        sample.input.values[i] = sample.input.values[i] * factor + plus;
      }
    }
  };
}

}  // namespace lms::data
