#pragma once

// Images and their label PNGs: what Cityscapes, VOC, CamVid and folders have in common.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/datasets/dataset.h"
#include "lab/datasets/image.h"

namespace lms::data {

struct Pair {
  std::string name;
  std::string image;   ///< path
  std::string labels;  ///< path; empty: all is void
};

/// From what is stored to class ids.
class LabelMap {
 public:
  /// 0 to classes - 1 as they are, and these as void.
  LabelMap(std::size_t classes, const std::vector<std::uint8_t>& voids);
  /// The place of an id in `ids` is its class; `voids` are void.
  LabelMap(const std::vector<std::uint8_t>& ids, const std::vector<std::uint8_t>& voids);

  /// In place. Throws DataError, with `name` and the pixel, for an id that has no class.
  void apply(Array<std::uint8_t>& labels, const std::string& name) const;

 private:
  static constexpr std::int16_t kNone = -1;
  std::array<std::int16_t, 256> classes_{};
};

struct Classes {
  std::size_t count = 0;
  std::vector<std::string> names;
  Palette palette;
};

/// Throws DataError where a file is missing; with `skip`, leaves such pairs out, and throws if none
/// is left.
std::shared_ptr<const Dataset> paired_images(std::vector<Pair> pairs, const LabelMap& map,
                                             Classes classes, bool skip = false);

}  // namespace lms::data
