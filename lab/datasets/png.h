#pragma once

// PNG by libspng. Errors have `name` in front.

#include "lab/datasets/image.h"

namespace lms::data {

bool is_png(ByteView file);
Image decode_png(ByteView file, const std::string& name, const ImageLimits& limits);
Array<std::uint8_t> decode_label_png(ByteView file, const std::string& name,
                                     const ImageLimits& limits);

/// Of H×W ids; of an image.
std::vector<std::uint8_t> encode_label_png(const Array<std::uint8_t>& labels,
                                           const Palette& palette, const std::string& name);
std::vector<std::uint8_t> encode_png(const Image& image, const std::string& name);

}  // namespace lms::data
