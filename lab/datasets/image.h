#pragma once

// Decoded images, and files of them.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lab/datasets/dataset.h"

namespace lms::data {

/// 8-bit RGB, row-major, three bytes a pixel.
struct Image {
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::vector<std::uint8_t> pixels;
};

/// What a file may claim before it is believed. Checked before memory is taken.
struct ImageLimits {
  std::int64_t side = 65500;
  std::int64_t pixels = std::int64_t{1} << 27;
};

using ByteView = std::span<const std::uint8_t>;
using Palette = std::vector<std::array<std::uint8_t, 3>>;

/// A PNG or JPEG file, told apart by its first bytes, as RGB: grey and palette images are
/// converted, transparency is dropped, 16 bits become 8, a JPEG's EXIF orientation is carried out.
/// Throws DataError, with the path in front.
Image read_image(const std::string& path, const ImageLimits& limits = {});

/// A label PNG: the indices of a palette image, or the grey values, of any bit depth, as they are
/// stored. Throws DataError for colour images and values above 255.
Array<std::uint8_t> read_labels(const std::string& path, const ImageLimits& limits = {});

/// Pixels as a Sample has them: 3×H×W, from 0 to 1.
Array<float> to_planes(const Image& image);
/// The reverse: what is outside of 0 to 1 is clamped.
Image from_planes(const Array<float>& planes);

/// Label ids H×W as a palette PNG: index = id. A palette that is shorter than 256 is filled up with
/// greys. Throws DataError if the file cannot be written, or the shape is not H×W.
void write_label_png(const std::string& path, const Array<std::uint8_t>& labels,
                     const Palette& palette);
void write_rgb_png(const std::string& path, const Image& image);

}  // namespace lms::data
