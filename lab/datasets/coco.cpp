// Images with annotations.json as COCO (Lin et al. 2014) and TACO (Proença, Simões 2020) have them.

#include "lab/datasets/coco_file.h"
#include "lab/datasets/files.h"
#include "lab/datasets/kinds.h"
#include "lab/datasets/options.h"
#include "lab/datasets/random.h"

namespace lms::data {
namespace {

constexpr std::size_t kMostJson = std::size_t{512} << 20;

class CocoImages : public Dataset {
 public:
  CocoImages(CocoFile file, std::string json, std::string folder)
      : file_(std::move(file)), json_(std::move(json)), folder_(std::move(folder)) {}

  [[nodiscard]] std::size_t size() const override { return file_.images.size(); }
  [[nodiscard]] std::size_t classes() const override { return file_.categories.size() + 1; }
  [[nodiscard]] std::vector<std::string> class_names() const override {
    std::vector<std::string> names = {"background"};
    names.insert(names.end(), file_.categories.begin(), file_.categories.end());
    return names;
  }
  /// Drawn once and for all: the format has none. Black is the background.
  [[nodiscard]] std::vector<std::array<std::uint8_t, 3>> palette() const override {
    Palette palette(classes());
    for (std::size_t i = 1; i < palette.size(); ++i) {
      Generator generator(mixed(i, 0));
      for (std::uint8_t& part : palette[i]) {
        part = static_cast<std::uint8_t>(48 + below(generator, 208));
      }
    }
    return palette;
  }

  [[nodiscard]] Sample get(std::size_t index, std::uint64_t /*seed*/) const override {
    const CocoImage& entry = file_.images.at(index);
    const std::string path = folder_ + "/" + entry.file;
    const Image image = read_image(path);
    if (image.width != entry.width || image.height != entry.height) {
      fail(path, "has " + std::to_string(image.width) + " x " + std::to_string(image.height) +
                     " pixels, turned upright; " + json_ + " says " + std::to_string(entry.width) +
                     " x " + std::to_string(entry.height) + " for image " +
                     std::to_string(entry.id));
    }
    Sample sample;
    sample.name = without_extension(entry.file);
    sample.input = to_planes(image);
    sample.target = label_image(entry, json_);
    return sample;
  }

 private:
  CocoFile file_;
  std::string json_;
  std::string folder_;
};

}  // namespace

std::shared_ptr<const Dataset> open_coco(const DataSpec& spec) {
  const Options options(spec);
  const std::string where = spec.text();
  const std::string json =
      inside(spec.path, options.text("annotations", "annotations.json"), where + ": annotations");
  const std::string images = options.text("images", ".");
  const std::string folder =
      images == "." ? spec.path : inside(spec.path, images, where + ": images");
  CocoFile file = parse_coco(read_bytes(json, kMostJson), json);
  const bool skip = options.word("missing", {"error", "skip"}) == "skip";
  std::vector<CocoImage> kept;
  for (CocoImage& image : file.images) {
    const std::string path = folder + "/" + image.file;
    if (is_file(path)) {
      kept.push_back(std::move(image));
    } else if (!skip) {
      fail(path, "is missing: image " + std::to_string(image.id) + " of " + json +
                     " (missing=skip leaves such samples out)");
    }
  }
  if (kept.empty()) fail(json, "none of its images is in " + folder);
  file.images = std::move(kept);
  return std::make_shared<CocoImages>(std::move(file), json, folder);
}

}  // namespace lms::data
