#include "lab/datasets/augment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "lab/datasets/random.h"
#include "tests/datasets/fixtures.h"

namespace lms::data {
namespace {

using fixtures::error_of;

/// Every pixel's target is its place (below 255), its input the place in channel 0, x in 1, y in 2.
Sample image(std::int64_t height, std::int64_t width) {
  Sample sample;
  sample.name = "image";
  sample.input.shape = {3, height, width};
  sample.target.shape = {height, width};
  for (int channel = 0; channel < 3; ++channel) {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t place = (y * width + x) % 200;
        const std::int64_t value = channel == 0 ? place : channel == 1 ? x : y;
        sample.input.values.push_back(static_cast<float>(value));
        if (channel == 0) sample.target.values.push_back(static_cast<std::uint8_t>(place));
      }
    }
  }
  sample.extras = {sample.target};
  return sample;
}

Sample volume(std::int64_t depth, std::int64_t height, std::int64_t width) {
  Sample sample;
  sample.name = "volume";
  sample.input.shape = {2, depth, height, width};
  sample.target.shape = {1, depth, height, width};
  const std::int64_t count = depth * height * width;
  for (std::int64_t i = 0; i < 2 * count; ++i) {
    sample.input.values.push_back(static_cast<float>(i % count + 1));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    sample.target.values.push_back(static_cast<std::uint8_t>(i % 250 + 1));
  }
  return sample;
}

std::size_t place(const Array<std::uint8_t>& array, std::int64_t y, std::int64_t x) {
  return static_cast<std::size_t>(y * array.shape[1] + x);
}

TEST(Augment, CropsAreDrawnAndLabelsGoAlong) {
  Generator generator(3);
  const Transform crop = random_scale_crop(1, 1, 4, 5);
  std::array<bool, 7> tops{};
  for (int i = 0; i < 200; ++i) {
    Sample sample = image(10, 12);
    crop(sample, generator);
    ASSERT_EQ(sample.input.shape, (std::vector<std::int64_t>{3, 4, 5}));
    ASSERT_EQ(sample.target.shape, (std::vector<std::int64_t>{4, 5}));
    for (std::size_t at = 0; at < 20; ++at) {
      ASSERT_EQ(sample.input.values[at], sample.target.values[at]);
      ASSERT_EQ(sample.extras[0].values[at], sample.target.values[at]);
    }
    tops[sample.target.values[0] / 12] = true;
  }
  EXPECT_EQ(std::count(tops.begin(), tops.end(), true), 7);  // every top that there is
}

TEST(Augment, ScalingInterpolatesInputsAndPicksLabels) {
  Generator generator(5);
  for (const double scale : {0.5, 0.8, 1.5, 2.0}) {
    Sample sample = image(10, 12);
    const auto height = static_cast<std::int64_t>(std::llround(10 * scale));
    const auto width = static_cast<std::int64_t>(std::llround(12 * scale));
    random_scale_crop(scale, scale, height, width)(sample, generator);
    const std::int64_t count = height * width;
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const auto at = static_cast<std::size_t>(y * width + x);
        // Channels 1 and 2 are linear, so interpolation gives the source's very place.
        const double from_x = std::clamp(
            (static_cast<double>(x) + 0.5) * 12 / static_cast<double>(width) - 0.5, 0.0, 11.0);
        const double from_y = std::clamp(
            (static_cast<double>(y) + 0.5) * 10 / static_cast<double>(height) - 0.5, 0.0, 9.0);
        ASSERT_NEAR(sample.input.values[at + static_cast<std::size_t>(count)], from_x, 1e-5);
        ASSERT_NEAR(sample.input.values[at + static_cast<std::size_t>(2 * count)], from_y, 1e-5);
        const int label = sample.target.values[at];
        ASSERT_LE(std::abs(label % 12 - from_x), 0.5 + 1e-9);
        ASSERT_LE(std::abs(label / 12 - from_y), 0.5 + 1e-9);
      }
    }
  }
}

TEST(Augment, WhatLiesOutsideIsVoid) {
  Generator generator(1);
  for (const double scale : {1.0, 0.5}) {
    Sample sample = image(8, 8);
    random_scale_crop(scale, scale, 12, 10, {7})(sample, generator);
    const auto inside = static_cast<std::int64_t>(64 * scale * scale);
    EXPECT_EQ(std::count(sample.target.values.begin(), sample.target.values.end(), kVoid),
              120 - inside);
    for (std::size_t at = 0; at < 120; ++at) {
      if (sample.target.values[at] != kVoid) continue;
      ASSERT_EQ(sample.input.values[at], 7);
      ASSERT_EQ(sample.input.values[at + 120], 0);
      ASSERT_EQ(sample.extras[0].values[at], 0);
    }
  }
  Sample padded = image(5, 6);
  pad_to_multiple(4)(padded, generator);
  EXPECT_EQ(padded.target.shape, (std::vector<std::int64_t>{8, 8}));
  EXPECT_EQ(padded.target.values[place(padded.target, 4, 5)], 29);
  EXPECT_EQ(padded.target.values[place(padded.target, 5, 0)], kVoid);
  Sample middle = image(9, 9);
  center_crop(3, 13)(middle, generator);
  EXPECT_EQ(middle.target.values[place(middle.target, 1, 6)], 4 * 9 + 4);
  EXPECT_EQ(middle.target.values[0], kVoid);
}

TEST(Augment, ResizingKeepsMeans) {
  Generator generator(1);
  Sample sample = image(12, 20);
  const double mean =
      std::accumulate(sample.input.values.begin() + 240, sample.input.values.begin() + 480, 0.0) /
      240;
  resize(4, 5)(sample, generator);
  ASSERT_EQ(sample.input.shape, (std::vector<std::int64_t>{3, 4, 5}));
  const double smaller =
      std::accumulate(sample.input.values.begin() + 20, sample.input.values.begin() + 40, 0.0) / 20;
  EXPECT_NEAR(smaller, mean, 1e-4);
  EXPECT_NEAR(sample.input.values[20], 1.5, 1e-5);  // of x = 0, 1, 2, 3
  resize(16, 5)(sample, generator);
  EXPECT_EQ(sample.target.shape, (std::vector<std::int64_t>{16, 5}));
}

TEST(Augment, FlipsMirrorEverything) {
  Generator generator(1);
  Sample sample = image(2, 3);
  random_flip(1)(sample, generator);
  EXPECT_EQ(sample.target.values, (std::vector<std::uint8_t>{2, 1, 0, 5, 4, 3}));
  EXPECT_EQ(sample.extras[0].values, sample.target.values);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(sample.input.values[i], sample.target.values[i]);
  random_flip(0)(sample, generator);
  EXPECT_EQ(sample.target.values[0], 2);
}

Sample pixel(float red, float green, float blue) {
  Sample sample;
  sample.input = {{3, 1, 1}, {red, green, blue}};
  sample.target = {{1, 1}, {0}};
  return sample;
}

TEST(Augment, HueTurnsInHsv) {
  // A third of a turn of pure red lies between green and blue; value and saturation stay.
  bool moved = false;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Generator generator(seed);
    Sample sample = pixel(0.8F, 0.4F, 0.2F);
    color_jitter(0, 0, 0, 0.5)(sample, generator);
    const auto [low, high] =
        std::minmax_element(sample.input.values.begin(), sample.input.values.end());
    EXPECT_NEAR(*high, 0.8F, 1e-6);
    EXPECT_NEAR(*low, 0.2F, 1e-6);
    moved = moved || sample.input.values[0] < 0.5F;
  }
  EXPECT_TRUE(moved);
  Generator generator(1);
  Sample grey = pixel(0.5F, 0.5F, 0.5F);
  color_jitter(0, 0.9, 0.9, 0.5)(grey, generator);
  for (const float value : grey.input.values) EXPECT_NEAR(value, 0.5F, 1e-5);
}

TEST(Augment, BrightnessAndSaturationAreFactors) {
  double least = 1;
  double most = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Generator generator(seed);
    Sample sample = pixel(0.4F, 0.2F, 0.1F);
    color_jitter(0.25, 0, 0, 0)(sample, generator);
    const double factor = sample.input.values[0] / 0.4;
    EXPECT_NEAR(sample.input.values[2] / 0.1, factor, 1e-5);
    least = std::min(least, factor);
    most = std::max(most, factor);
  }
  EXPECT_NEAR(least, 0.75, 0.02);
  EXPECT_NEAR(most, 1.25, 0.02);
}

TEST(Augment, BlurKeepsTheMeanAndSpreads) {
  Generator generator(1);
  Sample sample = image(21, 31);
  std::fill(sample.input.values.begin(), sample.input.values.end(), 0.0F);
  sample.input.values[10 * 31 + 15] = 1;
  random_blur(1.2, 1.2)(sample, generator);
  const float* plane = sample.input.values.data();
  EXPECT_NEAR(std::accumulate(plane, plane + 21 * 31, 0.0), 1, 1e-5);
  EXPECT_NEAR(plane[10 * 31 + 15], 0.1106, 1e-3);  // 1 / (2 pi 1.44)
  EXPECT_NEAR(plane[11 * 31 + 15] / plane[10 * 31 + 15], std::exp(-1 / 2.88), 1e-4);
  EXPECT_NEAR(plane[10 * 31 + 13] / plane[10 * 31 + 15], std::exp(-4 / 2.88), 1e-4);
  Sample flat = image(4, 5);
  std::fill(flat.input.values.begin(), flat.input.values.end(), 0.5F);
  random_blur(1.2, 1.2)(flat, generator);
  for (const float value : flat.input.values) EXPECT_NEAR(value, 0.5F, 1e-6);
}

TEST(Augment, NormalizingIsByChannel) {
  Generator generator(1);
  Sample sample = pixel(1, 2, 3);
  normalize({1, 1, 1}, {1, 2, 4})(sample, generator);
  EXPECT_EQ(sample.input.values, (std::vector<float>{0, 0.5F, 0.5F}));
  EXPECT_NE(error_of([&] { normalize({1}, {1})(sample, generator); }), "");
  EXPECT_THROW(normalize({1}, {0}), BadSetting);
}

/// By the definition: for each class the distance to the nearest pixel outside of it, from inside,
/// and to the nearest of it, from outside; beyond the frame there is no class.
std::vector<std::uint8_t> slow_edges(const Array<std::uint8_t>& labels, int classes,
                                     double radius) {
  const std::int64_t height = labels.shape[0];
  const std::int64_t width = labels.shape[1];
  std::vector<std::uint8_t> edges(labels.values.size());
  for (int label = 0; label < classes; ++label) {
    const auto of_class = [&](std::int64_t y, std::int64_t x) {
      return y >= 0 && y < height && x >= 0 && x < width &&
             labels.values[place(labels, y, x)] == label;
    };
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        double nearest = 1e9;
        for (std::int64_t v = -1; v <= height; ++v) {
          for (std::int64_t u = -1; u <= width; ++u) {
            if (of_class(v, u) == of_class(y, x)) continue;
            nearest = std::min(nearest,
                               std::hypot(static_cast<double>(v - y), static_cast<double>(u - x)));
          }
        }
        if (nearest <= radius) edges[place(labels, y, x)] = 1;
      }
    }
  }
  return edges;
}

TEST(Augment, EdgesAreTheDistanceTransforms) {
  Generator generator(11);
  for (int round = 0; round < 6; ++round) {
    Sample sample;
    sample.input = {{1, 14, 17}, std::vector<float>(14 * 17)};
    sample.target = {{14, 17}, std::vector<std::uint8_t>(14 * 17, 1)};
    for (int patch = 0; patch < 4; ++patch) {
      const std::int64_t top = below(generator, 12);
      const std::int64_t left = below(generator, 14);
      const auto label = static_cast<std::uint8_t>(patch == 0 ? kVoid : below(generator, 3));
      for (std::int64_t y = top; y < std::min<std::int64_t>(14, top + 6); ++y) {
        for (std::int64_t x = left; x < std::min<std::int64_t>(17, left + 5); ++x) {
          sample.target.values[place(sample.target, y, x)] = label;
        }
      }
    }
    for (const int radius : {1, 2, 3}) {
      Sample copy = sample;
      label_edges(3, radius)(copy, generator);
      ASSERT_EQ(copy.extras.size(), 1U);
      EXPECT_EQ(copy.extras[0].values, slow_edges(sample.target, 3, radius)) << radius;
    }
  }
  Sample whole;
  whole.input = {{1, 9, 9}, std::vector<float>(81)};
  whole.target = {{9, 9}, std::vector<std::uint8_t>(81, 2)};
  label_edges(3, 2, false)(whole, generator);
  EXPECT_EQ(whole.extras[0].values, std::vector<std::uint8_t>(81));
}

TEST(Augment3d, CropsAxesAndFlipsGoTogether) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Generator generator(seed);
    Sample sample = volume(3, 4, 5);
    random_axes3d()(sample, generator);
    random_flip3d()(sample, generator);
    random_crop3d({2, 6, 3})(sample, generator);
    ASSERT_EQ(sample.input.shape, (std::vector<std::int64_t>{2, 2, 6, 3}));
    ASSERT_EQ(sample.target.shape, (std::vector<std::int64_t>{1, 2, 6, 3}));
    std::size_t zeros = 0;
    for (std::size_t i = 0; i < 36; ++i) {
      ASSERT_EQ(sample.input.values[i], sample.target.values[i]);
      ASSERT_EQ(sample.input.values[i], sample.input.values[36 + i]);
      zeros += sample.target.values[i] == 0 ? 1 : 0;
    }
    ASSERT_EQ(zeros % 6, 0U);  // whole rows are outside: axis 1 is of 3, 4 or 5
    ASSERT_GE(zeros, 6U);
  }
}

TEST(Augment3d, EveryOrderOfTheAxesComes) {
  std::map<std::vector<std::int64_t>, int> seen;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Generator generator(seed);
    Sample sample = volume(2, 3, 4);
    random_axes3d()(sample, generator);
    ++seen[sample.input.shape];
    // Where the voxel (1, 2, 3), the last, has gone: still the last.
    ASSERT_EQ(sample.target.values.back(), 24);
    ASSERT_EQ(sample.target.values.front(), 1);
  }
  EXPECT_EQ(seen.size(), 6U);
  for (const auto& [shape, count] : seen) EXPECT_GT(count, 25);
}

TEST(Augment3d, DeformationsAreSmallAndSmooth) {
  // A volume whose value is its place along W: a deformed one still rises, and labels follow.
  Sample sample;
  sample.name = "ramp";
  sample.input.shape = {1, 24, 24, 24};
  sample.target.shape = {1, 24, 24, 24};
  for (int i = 0; i < 24 * 24 * 24; ++i) {
    sample.input.values.push_back(static_cast<float>(i % 24));
    sample.target.values.push_back(i % 24 >= 12 ? 1 : 0);
  }
  Generator generator(4);
  Sample deformed = sample;
  random_crop3d({16, 16, 16}, {.rotation = 10, .scale = 0.1, .warp = 1, .warp_grid = 8})(deformed,
                                                                                         generator);
  ASSERT_EQ(deformed.input.shape, (std::vector<std::int64_t>{1, 16, 16, 16}));
  std::size_t smooth = 0;
  std::size_t agree = 0;
  for (std::size_t i = 0; i < 4096; ++i) {
    agree += (deformed.input.values[i] >= 11.5F) == (deformed.target.values[i] == 1) ? 1 : 0;
    if (i % 16 == 15) continue;
    const float step = deformed.input.values[i + 1] - deformed.input.values[i];
    smooth += step > 0.2F && step < 2 ? 1 : 0;
  }
  EXPECT_GT(agree, 3900U);
  EXPECT_GT(smooth, 3700U);  // of 3840: only across the volume's border values fall to 0
  EXPECT_NE(deformed.input.values[0], std::floor(deformed.input.values[0]));
  // None at all: the crop itself.
  Sample plain = sample;
  Sample still = sample;
  Generator one(7);
  Generator two(7);
  random_crop3d({16, 16, 16})(plain, one);
  random_crop3d({16, 16, 16}, {.warp = 1e-9})(still, two);
  EXPECT_EQ(plain.target.values, still.target.values);
  for (std::size_t i = 0; i < 4096; ++i) {
    ASSERT_NEAR(plain.input.values[i], still.input.values[i], 1e-3);
  }
}

TEST(Augment, WrongSamplesAreErrors) {
  Generator generator(1);
  Sample sample = image(4, 4);
  EXPECT_NE(error_of([&] { random_crop3d({2, 2, 2})(sample, generator); }), "");
  Sample other = volume(2, 2, 2);
  EXPECT_NE(error_of([&] { random_scale_crop(1, 1, 2, 2)(other, generator); }), "");
  Sample odd = image(4, 4);
  odd.target.shape = {4, 3};
  EXPECT_NE(error_of([&] { random_flip(1)(odd, generator); }), "");
  EXPECT_THROW(random_scale_crop(0, 1, 2, 2), BadSetting);
  EXPECT_THROW(random_scale_crop(1, 2, 0, 2), BadSetting);
  EXPECT_THROW(random_blur(0, 1), BadSetting);
}

}  // namespace
}  // namespace lms::data
