#include "lab/datasets/paired.h"

#include <algorithm>

#include "lab/datasets/augment.h"
#include "lab/datasets/files.h"

namespace lms::data {
namespace {

class PairedImages : public Dataset {
 public:
  PairedImages(std::vector<Pair> pairs, const LabelMap& map, Classes classes)
      : pairs_(std::move(pairs)), map_(map), classes_(std::move(classes)) {}

  [[nodiscard]] std::size_t size() const override { return pairs_.size(); }
  [[nodiscard]] std::size_t classes() const override { return classes_.count; }
  [[nodiscard]] std::vector<std::string> class_names() const override { return classes_.names; }
  [[nodiscard]] std::vector<std::array<std::uint8_t, 3>> palette() const override {
    return classes_.palette;
  }

  [[nodiscard]] Sample get(std::size_t index, std::uint64_t /*seed*/) const override {
    const Pair& pair = pairs_.at(index);
    const Image image = read_image(pair.image);
    Sample sample;
    sample.name = pair.name;
    sample.input = to_planes(image);
    const std::vector<std::int64_t> shape = {image.height, image.width};
    if (pair.labels.empty()) {
      sample.target = {shape, std::vector<std::uint8_t>(
                                  static_cast<std::size_t>(image.height * image.width), kVoid)};
      return sample;
    }
    sample.target = read_labels(pair.labels);
    if (sample.target.shape != shape) {
      fail(pair.labels, "labels of " + std::to_string(sample.target.shape[1]) + " x " +
                            std::to_string(sample.target.shape[0]) + " pixels; the image " +
                            pair.image + " has " + std::to_string(image.width) + " x " +
                            std::to_string(image.height));
    }
    map_.apply(sample.target, pair.labels);
    return sample;
  }

 private:
  std::vector<Pair> pairs_;
  LabelMap map_;
  Classes classes_;
};

}  // namespace

LabelMap::LabelMap(std::size_t classes, const std::vector<std::uint8_t>& voids) {
  classes_.fill(kNone);
  for (std::size_t i = 0; i < std::min<std::size_t>(classes, 256); ++i) {
    classes_[i] = static_cast<std::int16_t>(i);
  }
  for (const std::uint8_t id : voids) classes_[id] = kVoid;
}

LabelMap::LabelMap(const std::vector<std::uint8_t>& ids, const std::vector<std::uint8_t>& voids) {
  classes_.fill(kNone);
  for (std::size_t i = 0; i < ids.size(); ++i) classes_[ids[i]] = static_cast<std::int16_t>(i);
  for (const std::uint8_t id : voids) classes_[id] = kVoid;
}

void LabelMap::apply(Array<std::uint8_t>& labels, const std::string& name) const {
  for (std::size_t i = 0; i < labels.values.size(); ++i) {
    const std::int16_t mapped = classes_[labels.values[i]];
    if (mapped == kNone) {
      const auto width = static_cast<std::size_t>(labels.shape.back());
      fail(name, "pixel (" + std::to_string(i % width) + ", " + std::to_string(i / width) +
                     "): label id " + std::to_string(labels.values[i]) +
                     " is out of range: it is no class of this data set");
    }
    labels.values[i] = static_cast<std::uint8_t>(mapped);
  }
}

std::shared_ptr<const Dataset> paired_images(std::vector<Pair> pairs, const LabelMap& map,
                                             Classes classes, bool skip) {
  const auto missing = [](const Pair& pair) -> std::string {
    if (!is_file(pair.image)) return pair.image;
    if (!pair.labels.empty() && !is_file(pair.labels)) return pair.labels;
    return "";
  };
  for (const Pair& pair : pairs) {
    const std::string file = missing(pair);
    if (file.empty() || skip) continue;
    fail(file, std::string("is missing: the ") + (file == pair.image ? "image" : "labels") +
                   " of \"" + pair.name + "\" (missing=skip leaves such samples out)");
  }
  if (skip) {
    const std::string first = pairs.empty() ? "" : missing(pairs.front());
    std::erase_if(pairs, [&](const Pair& pair) { return !missing(pair).empty(); });
    if (pairs.empty()) fail(first, "is missing, and so is every other sample");
  }
  return std::make_shared<PairedImages>(std::move(pairs), map, std::move(classes));
}

}  // namespace lms::data
