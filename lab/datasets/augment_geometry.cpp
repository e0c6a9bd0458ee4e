// Where pixels of images lie: scaling, cropping, flipping, padding.

#include <cmath>
#include <utility>

#include "lab/datasets/files.h"
#include "lab/datasets/planes.h"
#include "lab/datasets/random.h"

namespace lms::data {
namespace {

/// Source positions of one axis: a linear mixture of two pixels each.
struct Taps {
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  std::vector<float> weight;  // of the high one
  std::vector<bool> inside;
};

/// For `count` pixels from `begin` on of an axis of `side` pixels, resampled to `scaled`: pixel
/// centres correspond.
Taps taps(std::int64_t side, std::int64_t scaled, std::int64_t begin, std::int64_t count) {
  Taps taps;
  const double step = static_cast<double>(side) / static_cast<double>(scaled);
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const double at =
        std::clamp((static_cast<double>(i) + 0.5) * step - 0.5, 0.0, static_cast<double>(side - 1));
    const auto low = static_cast<std::int64_t>(at);
    taps.low.push_back(low);
    taps.high.push_back(std::min(low + 1, side - 1));
    taps.weight.push_back(static_cast<float>(at - static_cast<double>(low)));
    taps.inside.push_back(i >= 0 && i < scaled);
  }
  return taps;
}

/// The nearest source pixel of the same mapping.
std::int64_t nearest(const Taps& taps, std::size_t i) {
  return taps.weight[i] < 0.5F ? taps.low[i] : taps.high[i];
}

float filled(const std::vector<float>& fill, std::int64_t channel) {
  const auto at = static_cast<std::size_t>(channel);
  return at < fill.size() ? fill[at] : 0.0F;
}

void resample_input(Array<float>& input, const Taps& rows, const Taps& columns,
                    const std::vector<float>& fill) {
  const auto height = static_cast<std::int64_t>(rows.low.size());
  const auto width = static_cast<std::int64_t>(columns.low.size());
  const std::int64_t channels = input.shape[0];
  const std::int64_t old_width = input.shape[2];
  const std::int64_t old_plane = input.shape[1] * old_width;
  std::vector<float> values(static_cast<std::size_t>(channels * height * width));
  float* to = values.data();
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const float* plane = input.values.data() + channel * old_plane;
    const float other = filled(fill, channel);
    for (std::size_t y = 0; y < rows.low.size(); ++y, to += width) {
      if (!rows.inside[y]) {
        std::fill_n(to, width, other);
        continue;
      }
      const float* above = plane + rows.low[y] * old_width;
      const float* below_it = plane + rows.high[y] * old_width;
      const float down = rows.weight[y];
      for (std::size_t x = 0; x < columns.low.size(); ++x) {
        const std::int64_t left = columns.low[x];
        const std::int64_t right = columns.high[x];
        const float across = columns.weight[x];
        const float top = above[left] + (above[right] - above[left]) * across;
        const float bottom = below_it[left] + (below_it[right] - below_it[left]) * across;
        to[x] = columns.inside[x] ? top + (bottom - top) * down : other;
      }
    }
  }
  input.shape = {channels, height, width};
  input.values = std::move(values);
}

void resample_labels(Array<std::uint8_t>& labels, const Taps& rows, const Taps& columns,
                     std::uint8_t outside) {
  const std::size_t axes = labels.shape.size();
  const std::int64_t old_width = labels.shape[axes - 1];
  const std::int64_t old_plane = labels.shape[axes - 2] * old_width;
  const std::int64_t planes = static_cast<std::int64_t>(labels.values.size()) / old_plane;
  std::vector<std::uint8_t> values(static_cast<std::size_t>(planes) * rows.low.size() *
                                   columns.low.size());
  std::uint8_t* to = values.data();
  for (std::int64_t plane = 0; plane < planes; ++plane) {
    for (std::size_t y = 0; y < rows.low.size(); ++y) {
      const std::uint8_t* from =
          labels.values.data() + plane * old_plane + nearest(rows, y) * old_width;
      for (std::size_t x = 0; x < columns.low.size(); ++x) {
        *to++ = rows.inside[y] && columns.inside[x] ? from[nearest(columns, x)] : outside;
      }
    }
  }
  labels.shape[axes - 2] = static_cast<std::int64_t>(rows.low.size());
  labels.shape[axes - 1] = static_cast<std::int64_t>(columns.low.size());
  labels.values = std::move(values);
}

void resample(Sample& sample, const Taps& rows, const Taps& columns,
              const std::vector<float>& fill) {
  resample_input(sample.input, rows, columns, fill);
  if (sample.target.shape.size() == 2) resample_labels(sample.target, rows, columns, kVoid);
  for (Array<std::uint8_t>& extra : sample.extras) resample_labels(extra, rows, columns, 0);
}

void cut_sample(Sample& sample, std::int64_t top, std::int64_t left, std::int64_t height,
                std::int64_t width, const std::vector<float>& fill) {
  cut<float>(sample.input, top, left, height, width, fill);
  if (sample.target.shape.size() == 2) {
    cut<std::uint8_t>(sample.target, top, left, height, width, {kVoid});
  }
  for (Array<std::uint8_t>& extra : sample.extras) {
    cut<std::uint8_t>(extra, top, left, height, width, {});
  }
}

/// Where a part of `wanted` begins on an axis of `side`: drawn where the axis is longer, else so
/// that the image is in the middle.
std::int64_t drawn_begin(std::int64_t side, std::int64_t wanted, Generator& generator) {
  return side > wanted ? below(generator, side - wanted + 1) : -((wanted - side) / 2);
}

/// The mean over the source pixels that each new one covers, along one axis with `stride`.
void shrink_axis(std::vector<float>& values, std::int64_t outer, std::int64_t side,
                 std::int64_t inner, std::int64_t wanted) {
  std::vector<float> result(static_cast<std::size_t>(outer * wanted * inner), 0.0F);
  const double step = static_cast<double>(side) / static_cast<double>(wanted);
  for (std::int64_t i = 0; i < wanted; ++i) {
    const double begin = static_cast<double>(i) * step;
    const double end = begin + step;
    for (auto from = static_cast<std::int64_t>(begin);
         from < side && static_cast<double>(from) < end; ++from) {
      const auto position = static_cast<double>(from);
      const auto share =
          static_cast<float>((std::min(end, position + 1) - std::max(begin, position)) / step);
      for (std::int64_t row = 0; row < outer; ++row) {
        const float* source = values.data() + (row * side + from) * inner;
        float* to = result.data() + (row * wanted + i) * inner;
        for (std::int64_t j = 0; j < inner; ++j) to[j] += share * source[j];
      }
    }
  }
  values = std::move(result);
}

template <typename T>
void mirror_rows(Array<T>& array) {
  const std::int64_t width = array.shape.back();
  for (std::size_t at = 0; at < array.values.size(); at += static_cast<std::size_t>(width)) {
    std::reverse(array.values.data() + at, array.values.data() + at + width);
  }
}

}  // namespace

void check_sample(const Sample& sample, std::size_t axes, const char* transform) {
  const std::vector<std::int64_t>& shape = sample.input.shape;
  const auto refuse = [&](const char* what) { fail(transform, what); };
  if (shape.size() != axes || sample.input.values.empty()) {
    refuse(axes == 3 ? "is for images (an input of channels x height x width)"
                     : "is for volumes (an input of channels x depth x height x width)");
  }
  const auto fits = [&](const Array<std::uint8_t>& array) {
    return array.shape.size() + 1 >= axes && !array.values.empty() &&
           std::equal(shape.begin() + 1, shape.end(), array.shape.end() - (std::ssize(shape) - 1));
  };
  if (sample.target.shape.size() != 1 && !fits(sample.target)) {
    refuse("target and input differ in their sides");
  }
  for (const Array<std::uint8_t>& extra : sample.extras) {
    if (!fits(extra)) refuse("an extra and the input differ in their sides");
  }
}

Transform random_scale_crop(double least, double most, std::int64_t height, std::int64_t width,
                            std::vector<float> fill) {
  if (!(least > 0 && least <= most && most <= 100) || height < 1 || width < 1) {
    throw BadSetting("random_scale_crop: scales from more than 0 to at most 100, and sides from 1");
  }
  return [=, fill = std::move(fill)](Sample& sample, Generator& generator) {
    check_sample(sample, 3, "random_scale_crop");
    const double scale = uniform(generator, least, most);
    const auto scaled = [&](std::int64_t side) {
      return std::max<std::int64_t>(1, std::llround(static_cast<double>(side) * scale));
    };
    const std::int64_t old_height = sample.input.shape[1];
    const std::int64_t old_width = sample.input.shape[2];
    const std::int64_t top = drawn_begin(scaled(old_height), height, generator);
    const std::int64_t left = drawn_begin(scaled(old_width), width, generator);
    if (scaled(old_height) == old_height && scaled(old_width) == old_width) {
      cut_sample(sample, top, left, height, width, fill);
      return;
    }
    // Only the part that is kept is computed.
    resample(sample, taps(old_height, scaled(old_height), top, height),
             taps(old_width, scaled(old_width), left, width), fill);
  };
}

Transform center_crop(std::int64_t height, std::int64_t width, std::vector<float> fill) {
  if (height < 1 || width < 1) throw BadSetting("center_crop: sides are to be at least 1");
  return [=, fill = std::move(fill)](Sample& sample, Generator& /*generator*/) {
    check_sample(sample, 3, "center_crop");
    const auto begin = [](std::int64_t side, std::int64_t wanted) {
      return side > wanted ? (side - wanted) / 2 : -((wanted - side) / 2);
    };
    cut_sample(sample, begin(sample.input.shape[1], height), begin(sample.input.shape[2], width),
               height, width, fill);
  };
}

Transform resize(std::int64_t height, std::int64_t width) {
  if (height < 1 || width < 1) throw BadSetting("resize: sides are to be at least 1");
  return [=](Sample& sample, Generator& /*generator*/) {
    check_sample(sample, 3, "resize");
    const std::int64_t channels = sample.input.shape[0];
    const std::int64_t old_height = sample.input.shape[1];
    const std::int64_t old_width = sample.input.shape[2];
    const Taps rows = taps(old_height, height, 0, height);
    const Taps columns = taps(old_width, width, 0, width);
    if (sample.target.shape.size() == 2) resample_labels(sample.target, rows, columns, kVoid);
    for (Array<std::uint8_t>& extra : sample.extras) resample_labels(extra, rows, columns, 0);
    // Shrunk axes by means, then the others by interpolation.
    if (height < old_height) {
      shrink_axis(sample.input.values, channels, old_height, old_width, height);
      sample.input.shape[1] = height;
    }
    if (width < old_width) {
      shrink_axis(sample.input.values, channels * sample.input.shape[1], old_width, 1, width);
      sample.input.shape[2] = width;
    }
    if (sample.input.shape[1] == height && sample.input.shape[2] == width) return;
    resample_input(sample.input, taps(sample.input.shape[1], height, 0, height),
                   taps(sample.input.shape[2], width, 0, width), {});
  };
}

Transform pad_to_multiple(std::int64_t divisor, std::vector<float> fill) {
  if (divisor < 1) throw BadSetting("pad_to_multiple: the divisor is to be at least 1");
  return [=, fill = std::move(fill)](Sample& sample, Generator& /*generator*/) {
    check_sample(sample, 3, "pad_to_multiple");
    const auto padded = [&](std::int64_t side) { return (side + divisor - 1) / divisor * divisor; };
    cut_sample(sample, 0, 0, padded(sample.input.shape[1]), padded(sample.input.shape[2]), fill);
  };
}

Transform random_flip(double probability) {
  return [=](Sample& sample, Generator& generator) {
    check_sample(sample, 3, "random_flip");
    if (!chance(generator, probability)) return;
    mirror_rows(sample.input);
    if (sample.target.shape.size() == 2) mirror_rows(sample.target);
    for (Array<std::uint8_t>& extra : sample.extras) mirror_rows(extra);
  };
}

}  // namespace lms::data
