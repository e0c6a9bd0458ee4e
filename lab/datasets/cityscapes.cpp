// Cityscapes (Cordts et al. 2016): leftImg8bit/{split}/{city}/*_leftImg8bit.png beside
// gtFine/{split}/{city}/*_gtFine_labelIds.png.

#include <algorithm>

#include "lab/datasets/files.h"
#include "lab/datasets/kinds.h"
#include "lab/datasets/options.h"
#include "lab/datasets/paired.h"

namespace lms::data {
namespace {

const std::vector<std::uint8_t> kIds = {7,  8,  11, 12, 13, 17, 19, 20, 21, 22,
                                        23, 24, 25, 26, 27, 28, 31, 32, 33};

Classes cityscapes_classes() {
  return {kIds.size(),
          {"road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign",
           "vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train",
           "motorcycle", "bicycle"},
          {{128, 64, 128},
           {244, 35, 232},
           {70, 70, 70},
           {102, 102, 156},
           {190, 153, 153},
           {153, 153, 153},
           {250, 170, 30},
           {220, 220, 0},
           {107, 142, 35},
           {152, 251, 152},
           {70, 130, 180},
           {220, 20, 60},
           {255, 0, 0},
           {0, 0, 142},
           {0, 0, 70},
           {0, 60, 100},
           {0, 80, 100},
           {0, 0, 230},
           {119, 11, 32}}};
}

/// The ids that are not trained on: 0 to 33 but for kIds, and the licence plate's -1 in a byte.
std::vector<std::uint8_t> void_ids() {
  std::vector<std::uint8_t> ids = {255};
  for (std::uint8_t id = 0; id <= 33; ++id) {
    if (std::find(kIds.begin(), kIds.end(), id) == kIds.end()) ids.push_back(id);
  }
  return ids;
}

}  // namespace

std::shared_ptr<const Dataset> open_cityscapes(const DataSpec& spec) {
  const Options options(spec);
  const std::string split = options.word("split", {"train", "val", "test"});
  const std::string images = spec.path + "/leftImg8bit/" + split;
  const std::string labels = spec.path + "/gtFine/" + split;
  const std::string image_end = "_leftImg8bit.png";
  std::vector<Pair> pairs;
  for (const std::string& city : folders_in(images)) {
    for (const std::string& file : files_in(images + "/" + city)) {
      if (!file.ends_with(image_end)) continue;
      const std::string name = city + "/" + file.substr(0, file.size() - image_end.size());
      std::string label_file = labels + "/" + name + "_gtFine_labelIds.png";
      // Those of the test images are not published: what is there instead is all void.
      if (split == "test" && !is_file(label_file)) label_file.clear();
      pairs.push_back({name, images + "/" + city + "/" + file, std::move(label_file)});
    }
  }
  if (pairs.empty()) fail(images, "has no {city}/*" + image_end);
  return paired_images(std::move(pairs), LabelMap(kIds, void_ids()), cityscapes_classes(),
                       options.word("missing", {"error", "skip"}) == "skip");
}

}  // namespace lms::data
