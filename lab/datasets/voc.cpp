// PASCAL VOC 2012 (Everingham et al.), segmentation: the indices of palette PNGs are the classes.

#include "lab/datasets/files.h"
#include "lab/datasets/kinds.h"
#include "lab/datasets/options.h"
#include "lab/datasets/paired.h"

namespace lms::data {
namespace {

/// The benchmark's colours: the bits of an index, three by three, from the highest bit down.
Palette voc_palette(std::size_t count) {
  Palette palette(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t bits = i;
    for (unsigned shift = 8; bits != 0 && shift-- > 0; bits >>= 3U) {
      for (unsigned channel = 0; channel < 3; ++channel) {
        palette[i][channel] =
            static_cast<std::uint8_t>(palette[i][channel] | (bits >> channel & 1U) << shift);
      }
    }
  }
  return palette;
}

}  // namespace

std::shared_ptr<const Dataset> open_voc(const DataSpec& spec) {
  const Options options(spec);
  const std::string split = options.text("split", "train");
  const std::string list =
      inside(spec.path + "/ImageSets/Segmentation", split + ".txt", spec.text() + ": option split");
  const bool skip = options.word("missing", {"error", "skip"}) == "skip";
  std::vector<Pair> pairs;
  for (const Line& line : read_lines(list)) {
    const std::string where = list + ": line " + std::to_string(line.number);
    const std::string image = inside(spec.path + "/JPEGImages", line.text + ".jpg", where);
    const std::string labels = inside(spec.path + "/SegmentationClass", line.text + ".png", where);
    for (const std::string& file : {image, labels}) {
      if (!skip && !is_file(file)) {
        fail(where, "id \"" + line.text + "\": " + file +
                        " is missing (missing=skip leaves such samples out)");
      }
    }
    pairs.push_back({line.text, image, labels});
  }
  if (pairs.empty()) fail(list, "names no image");
  Classes classes = {
      21,
      {"background", "aeroplane", "bicycle",      "bird",  "boat",         "bottle", "bus",
       "car",        "cat",       "chair",        "cow",   "dining table", "dog",    "horse",
       "motorbike",  "person",    "potted plant", "sheep", "sofa",         "train",  "tv/monitor"},
      voc_palette(21)};
  return paired_images(std::move(pairs), LabelMap(21, {255}), std::move(classes), skip);
}

}  // namespace lms::data
