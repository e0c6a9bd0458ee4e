// What colours images have: jitter, blur, normalisation.

#include <cmath>
#include <utility>

#include "lab/datasets/files.h"
#include "lab/datasets/planes.h"
#include "lab/datasets/random.h"

namespace lms::data {
namespace {

struct Planes {
  float* red;
  float* green;
  float* blue;
  std::int64_t count;
};

/// The luma of ITU-R BT.601, as elsewhere in imaging.
float grey(float red, float green, float blue) {
  return 0.299F * red + 0.587F * green + 0.114F * blue;
}

float clamped(float value) { return std::clamp(value, 0.0F, 1.0F); }

void brighten(const Planes& planes, float factor) {
  for (float* plane : {planes.red, planes.green, planes.blue}) {
    for (std::int64_t i = 0; i < planes.count; ++i) plane[i] = clamped(plane[i] * factor);
  }
}

void contrast_by(const Planes& planes, float factor) {
  double sum = 0;
  for (std::int64_t i = 0; i < planes.count; ++i) {
    sum += grey(planes.red[i], planes.green[i], planes.blue[i]);
  }
  const auto mean = static_cast<float>(sum / static_cast<double>(planes.count));
  for (float* plane : {planes.red, planes.green, planes.blue}) {
    for (std::int64_t i = 0; i < planes.count; ++i) {
      plane[i] = clamped(mean + (plane[i] - mean) * factor);
    }
  }
}

void saturate(const Planes& planes, float factor) {
  for (std::int64_t i = 0; i < planes.count; ++i) {
    const float level = grey(planes.red[i], planes.green[i], planes.blue[i]);
    for (float* plane : {planes.red, planes.green, planes.blue}) {
      plane[i] = clamped(level + (plane[i] - level) * factor);
    }
  }
}

/// Turns the hue of HSV by a share of its circle; value and saturation stay.
void turn_hue(const Planes& planes, float turn) {
  for (std::int64_t i = 0; i < planes.count; ++i) {
    const float r = planes.red[i];
    const float g = planes.green[i];
    const float b = planes.blue[i];
    const float high = std::max({r, g, b});
    const float range = high - std::min({r, g, b});
    if (range <= 0) continue;
    float hue = high == r ? (g - b) / range : high == g ? 2 + (b - r) / range : 4 + (r - g) / range;
    hue += 6 * turn;
    // Each colour falls from its peak (at 0, 2, 4) by `range` where the hue is 1 to 2 away, of 6.
    const auto part = [&](float peak) {
      float away = std::abs(hue - peak);
      away -= 6 * std::floor(away / 6);
      away = std::min(away, 6 - away);
      return high - range * std::clamp(away - 1, 0.0F, 1.0F);
    };
    planes.red[i] = part(0);
    planes.green[i] = part(2);
    planes.blue[i] = part(4);
  }
}

/// Weights from the middle on, which add up to 1 with those of the other side.
std::vector<float> gaussian(double sigma) {
  const auto radius = static_cast<std::int64_t>(std::ceil(3 * sigma));
  std::vector<double> weights;
  double sum = 0;
  for (std::int64_t i = 0; i <= radius; ++i) {
    const double at = static_cast<double>(i) / sigma;
    weights.push_back(std::exp(-at * at / 2));
    sum += weights.back() * (i == 0 ? 1 : 2);
  }
  std::vector<float> scaled;
  scaled.reserve(weights.size());
  for (const double weight : weights) scaled.push_back(static_cast<float>(weight / sum));
  return scaled;
}

/// The border is repeated outwards.
void blur_plane(float* plane, std::int64_t height, std::int64_t width,
                const std::vector<float>& weights, std::vector<float>& scratch) {
  const std::int64_t radius = std::ssize(weights) - 1;
  scratch.resize(static_cast<std::size_t>(height * width));
  for (std::int64_t y = 0; y < height; ++y) {
    const float* from = plane + y * width;
    float* to = scratch.data() + y * width;
    const auto at = [&](std::int64_t x) { return from[std::clamp<std::int64_t>(x, 0, width - 1)]; };
    for (std::int64_t x = 0; x < width; ++x) {
      float sum = weights[0] * from[x];
      const bool inner = x >= radius && x + radius < width;
      for (std::int64_t i = 1; i <= radius; ++i) {
        const float both = inner ? from[x - i] + from[x + i] : at(x - i) + at(x + i);
        sum += weights[static_cast<std::size_t>(i)] * both;
      }
      to[x] = sum;
    }
  }
  for (std::int64_t y = 0; y < height; ++y) {
    float* to = plane + y * width;
    const auto row = [&](std::int64_t at) {
      return scratch.data() + std::clamp<std::int64_t>(at, 0, height - 1) * width;
    };
    const float* middle = row(y);
    for (std::int64_t x = 0; x < width; ++x) to[x] = weights[0] * middle[x];
    for (std::int64_t i = 1; i <= radius; ++i) {
      const float* above = row(y - i);
      const float* below_it = row(y + i);
      const float weight = weights[static_cast<std::size_t>(i)];
      for (std::int64_t x = 0; x < width; ++x) to[x] += weight * (above[x] + below_it[x]);
    }
  }
}

}  // namespace

Transform color_jitter(double brightness, double contrast, double saturation, double hue) {
  for (const double amount : {brightness, contrast, saturation}) {
    if (!(amount >= 0 && amount <= 1)) throw BadSetting("color_jitter: amounts from 0 to 1");
  }
  if (!(hue >= 0 && hue <= 0.5)) throw BadSetting("color_jitter: a hue from 0 to 0.5");
  return [=](Sample& sample, Generator& generator) {
    check_sample(sample, 3, "color_jitter");
    if (sample.input.shape[0] != 3) fail("color_jitter", "is for RGB images");
    const std::int64_t count = sample.input.shape[1] * sample.input.shape[2];
    float* values = sample.input.values.data();
    const Planes planes{values, values + count, values + 2 * count, count};
    const std::vector<std::size_t> order = permutation(4, generator());
    const auto factor = [&](double amount) {
      return static_cast<float>(uniform(generator, 1 - amount, 1 + amount));
    };
    for (const std::size_t step : order) {
      if (step == 0 && brightness > 0) brighten(planes, factor(brightness));
      if (step == 1 && contrast > 0) contrast_by(planes, factor(contrast));
      if (step == 2 && saturation > 0) saturate(planes, factor(saturation));
      if (step == 3 && hue > 0) turn_hue(planes, static_cast<float>(uniform(generator, -hue, hue)));
    }
  };
}

Transform random_blur(double least, double most, double probability) {
  if (!(least > 0 && least <= most && most <= 50)) {
    throw BadSetting("random_blur: a sigma from more than 0 to at most 50");
  }
  return [=](Sample& sample, Generator& generator) {
    check_sample(sample, 3, "random_blur");
    if (!chance(generator, probability)) return;
    const std::vector<float> weights = gaussian(uniform(generator, least, most));
    const std::int64_t height = sample.input.shape[1];
    const std::int64_t width = sample.input.shape[2];
    std::vector<float> scratch;
    for (std::int64_t channel = 0; channel < sample.input.shape[0]; ++channel) {
      blur_plane(sample.input.values.data() + channel * height * width, height, width, weights,
                 scratch);
    }
  };
}

Transform normalize(std::vector<float> mean, std::vector<float> deviation) {
  if (mean.size() != deviation.size() ||
      std::any_of(deviation.begin(), deviation.end(), [](float value) { return !(value > 0); })) {
    throw BadSetting("normalize: as many means as deviations, which are to be above 0");
  }
  return [mean = std::move(mean), deviation = std::move(deviation)](Sample& sample,
                                                                    Generator& /*generator*/) {
    const auto channels = sample.input.shape.empty() ? 0 : sample.input.shape[0];
    if (channels != std::ssize(mean)) {
      fail("normalize", "the input has " + std::to_string(channels) + " channels; means of " +
                            std::to_string(mean.size()) + " are given");
    }
    const std::size_t count = sample.input.values.size() / mean.size();
    for (std::size_t channel = 0; channel < mean.size(); ++channel) {
      float* plane = sample.input.values.data() + channel * count;
      for (std::size_t i = 0; i < count; ++i) {
        plane[i] = (plane[i] - mean[channel]) / deviation[channel];
      }
    }
  };
}

}  // namespace lms::data
