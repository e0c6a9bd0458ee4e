#pragma once

// How a photograph is to be turned.

#include "lab/datasets/image.h"

namespace lms::data {

/// The orientation, 1 to 8, that EXIF data (from "Exif\0\0" on, as in a JPEG's APP1) names in its
/// first directory. 1, upright, where it names none, or is broken: viewers do the same.
int exif_orientation(ByteView exif);

/// Carries out an orientation (1 to 8): 2, 4 mirror; 3 turns around; 5 to 8 exchange the sides.
Image oriented(Image image, int orientation);

}  // namespace lms::data
