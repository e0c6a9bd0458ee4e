// Folders of images beside folders of label PNGs with the same names; CamVid (Brostow et al. 2009,
// as SegNet's tutorial lays it out) is one with known classes.

#include <map>

#include "lab/datasets/files.h"
#include "lab/datasets/kinds.h"
#include "lab/datasets/options.h"
#include "lab/datasets/paired.h"

namespace lms::data {
namespace {

bool is_image_name(const std::string& name) {
  for (const char* end : {".png", ".jpg", ".jpeg", ".PNG", ".JPG", ".JPEG"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

/// Every image of `images` with the PNG of its name in `labels` ("": none has labels).
std::vector<Pair> list_pairs(const std::string& images, const std::string& labels) {
  std::vector<Pair> pairs;
  std::map<std::string, std::string> seen;
  for (const std::string& file : files_in(images)) {
    if (!is_image_name(file)) continue;
    const std::string name = without_extension(file);
    const auto [other, fresh] = seen.emplace(name, file);
    if (!fresh) fail(images + "/" + file, "has the name of " + other->second);
    pairs.push_back(
        {name, images + "/" + file, labels.empty() ? "" : labels + "/" + name + ".png"});
  }
  if (pairs.empty()) fail(images, "has no image (.png, .jpg, .jpeg)");
  return pairs;
}

}  // namespace

std::shared_ptr<const Dataset> open_folder(const DataSpec& spec) {
  const Options options(spec);
  const auto below_path = [&](const char* option) {
    const std::string folder = options.text(option, "");
    return folder.empty() || folder == "." ? spec.path
                                           : inside(spec.path, folder, spec.text() + ": " + option);
  };
  const std::string labels = options.has("labels") ? below_path("labels") : "";
  const auto classes =
      static_cast<std::size_t>(options.integer("classes", labels.empty() ? 1 : 0, 1, 255));
  if (classes == 0) {
    fail(spec.text(), "option classes is missing: the number of classes, with ids from 0 on");
  }
  std::vector<std::uint8_t> voids;
  for (const std::string& text : options.list("void", "255")) {
    const DataSpec one{spec.kind, spec.path, {{"void", text}}};
    voids.push_back(static_cast<std::uint8_t>(Options(one).integer("void", 255, 0, 255)));
  }
  Classes named = {classes, options.list("names", ""), {}};
  if (!named.names.empty() && named.names.size() != classes) {
    options.refuse("names", "a list of " + std::to_string(classes) + " names");
  }
  return paired_images(list_pairs(below_path("images"), labels), LabelMap(classes, voids),
                       std::move(named), options.word("missing", {"error", "skip"}) == "skip");
}

std::shared_ptr<const Dataset> open_camvid(const DataSpec& spec) {
  const Options options(spec);
  const std::string split = options.word("split", {"train", "val", "test"});
  const std::string images = spec.path + "/" + split;
  Classes classes = {11,
                     {"sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car",
                      "pedestrian", "bicyclist"},
                     {{128, 128, 128},
                      {128, 0, 0},
                      {192, 192, 128},
                      {128, 64, 128},
                      {60, 40, 222},
                      {128, 128, 0},
                      {192, 128, 128},
                      {64, 64, 128},
                      {64, 0, 128},
                      {64, 64, 0},
                      {0, 128, 192}}};
  return paired_images(list_pairs(images, images + "annot"), LabelMap(11, {11, 255}),
                       std::move(classes), options.word("missing", {"error", "skip"}) == "skip");
}

}  // namespace lms::data
