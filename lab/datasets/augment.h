#pragma once

// What is done to images and labels together. Targets and extras follow the input: labels are never
// interpolated, and what lies outside is void (255) in targets of class ids, 0 everywhere else.
//
// Samples are images (input C×H×W, target H×W or {1}) unless a function says volumes.

#include <array>
#include <cstdint>
#include <vector>

#include "lab/datasets/dataset.h"

namespace lms::data {

inline constexpr std::uint8_t kVoid = 255;

/// Both sides times a factor drawn from [`least`, `most`], then a part of height × width, drawn
/// uniformly where the image is larger, with void around it where it is smaller. Bilinear. Outside
/// of the image the input is `fill`, one value a channel (missing ones are 0).
Transform random_scale_crop(double least, double most, std::int64_t height, std::int64_t width,
                            std::vector<float> fill = {});

/// The middle part of height × width, with void around it where the image is smaller.
Transform center_crop(std::int64_t height, std::int64_t width, std::vector<float> fill = {});

/// Resamples to height × width: bilinear, and over all source pixels where it becomes smaller.
Transform resize(std::int64_t height, std::int64_t width);

/// Adds void at the right and at the bottom until the sides are multiples of `divisor`.
Transform pad_to_multiple(std::int64_t divisor, std::vector<float> fill = {});

/// Left to right, with `probability`.
Transform random_flip(double probability = 0.5);

/// Brightness, contrast and saturation by factors from [1 - x, 1 + x], hue by a turn from [-hue,
/// hue] of a circle of 1, in an order that is drawn. RGB images.
Transform color_jitter(double brightness, double contrast, double saturation, double hue);

/// With `probability`, a Gaussian blur with a sigma from [least, most] pixels.
Transform random_blur(double least, double most, double probability = 1);

/// (x - mean) / deviation, by channel. Images and volumes.
Transform normalize(std::vector<float> mean, std::vector<float> deviation);

/// Those of ImageNet's training images, for RGB from 0 to 1.
inline constexpr std::array<float, 3> kImageNetMean = {0.485F, 0.456F, 0.406F};
inline constexpr std::array<float, 3> kImageNetDeviation = {0.229F, 0.224F, 0.225F};

/// Appends the edges of the target's classes to the extras: 1 where a pixel is within `radius` of
/// one of another class, or of the image's frame, where one of the two is a class below `classes`
/// and void counts as one other. With frame = false, the image's frame is no edge.
/// (The distance transforms of the one-hot labels and of their complements, cut at `radius`.)
Transform label_edges(std::size_t classes, int radius = 2, bool frame = true);

// --- volumes: input C×D×H×W, target L×D×H×W of 0 and 1 ---

struct Deformation {
  double rotation = 0;    ///< most degrees about each axis
  double scale = 0;       ///< sizes by factors from [1 - scale, 1 + scale]
  double warp = 0;        ///< standard deviation, in voxels, of the shifts of a grid's nodes
  double warp_grid = 32;  ///< voxels between those nodes
};

/// A part of depth × height × width, drawn uniformly where the volume is larger, zeros around it
/// where it is smaller; and deformed about its middle, linearly interpolated.
Transform random_crop3d(std::array<std::int64_t, 3> size, const Deformation& deformation = {});

/// The middle part.
Transform center_crop3d(std::array<std::int64_t, 3> size);

/// Adds zeros behind each axis until the sides are multiples of `divisor`.
Transform pad_to_multiple3d(std::int64_t divisor);

/// One of the 6 orders of the axes.
Transform random_axes3d();

/// Each axis turned around with `probability`.
Transform random_flip3d(double probability = 0.5);

/// Each channel times a factor from [1 - scale, 1 + scale], plus a shift from [-shift, shift].
Transform random_intensity3d(double scale, double shift);

}  // namespace lms::data
