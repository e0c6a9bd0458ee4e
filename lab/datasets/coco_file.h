#pragma once

// Annotations as COCO's JSON has them, and TACO's.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/datasets/image.h"
#include "lab/datasets/polygon.h"

namespace lms::data {

struct CocoAnnotation {
  std::size_t number = 0;  ///< in the file's list, from 0
  std::int64_t id = 0;
  std::uint8_t label = 0;  ///< 1 + the place of its category in the order of their ids
  double area = 0;
  std::vector<std::vector<double>> polygons;
  std::vector<std::int64_t> runs;  ///< instead of polygons, as is `packed`
  std::string packed;
};

struct CocoImage {
  std::int64_t id = 0;
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::string file;
  std::vector<CocoAnnotation> annotations;  ///< in the file's order
};

struct CocoFile {
  std::vector<CocoImage> images;        ///< in the file's order
  std::vector<std::string> categories;  ///< in the order of their ids
};

/// Throws DataError that names the field, such as "annotations[3].segmentation[0]", for what is
/// missing, of another type, or impossible: ids that do not exist, or exist twice; more than 254
/// categories; polygons of fewer than three points, or more than 2 pixels outside of their image;
/// run lengths of another size.
CocoFile parse_coco(ByteView json, const std::string& name);

/// The annotation's mask, of its image's size. Throws DataError for broken run lengths.
Mask annotation_mask(const CocoImage& image, const CocoAnnotation& annotation,
                     const std::string& name);

/// Class ids of the whole image, 0 for the background. Where objects overlap, the one with the
/// smaller area (as annotated) is on top, of equal ones the later.
Array<std::uint8_t> label_image(const CocoImage& image, const std::string& name);

}  // namespace lms::data
