#pragma once

// JPEG by libjpeg-turbo. Errors have `name` in front.

#include "lab/datasets/image.h"

namespace lms::data {

bool is_jpeg(ByteView file);

/// As RGB, turned as its EXIF data say. Grey is converted. Throws DataError for CMYK, and for a
/// file that ends before its image does.
Image decode_jpeg(ByteView file, const std::string& name, const ImageLimits& limits);

}  // namespace lms::data
