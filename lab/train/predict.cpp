#include "lab/train/predict.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "lab/datasets/image.h"
#include "lab/datasets/nifti.h"
#include "lab/datasets/open.h"
#include "lab/train/parts.h"
#include "lab/train/progress.h"
#include "lab/train/signals.h"

namespace lms::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kImages = "images:";

/// A file's name for a sample's: the folders within it become part of the name.
std::string flat(std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

/// Pictures without labels.
class Images : public data::Dataset {
 public:
  Images(const fs::path& path, std::size_t classes) : classes_(classes) {
    if (fs::is_regular_file(path)) files_.push_back(path);
    if (fs::is_directory(path)) {
      for (const auto& entry : fs::directory_iterator(path)) {
        std::string end = entry.path().extension().string();
        std::transform(end.begin(), end.end(), end.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        if (end == ".png" || end == ".jpg" || end == ".jpeg") files_.push_back(entry.path());
      }
    }
    if (files_.empty()) {
      throw data::DataError(path.string() + ": there is no .png or .jpg file here");
    }
    std::sort(files_.begin(), files_.end());
    std::map<std::string, fs::path> seen;
    for (const fs::path& file : files_) {
      const auto [other, fresh] = seen.emplace(file.stem().string(), file);
      if (!fresh) {
        throw data::DataError(file.string() + ": has the name of " + other->second.string() +
                              ", and so would their predictions");
      }
    }
  }

  [[nodiscard]] std::size_t size() const override { return files_.size(); }
  [[nodiscard]] data::Sample get(std::size_t index, std::uint64_t /*seed*/) const override {
    const data::Image image = data::read_image(files_.at(index).string());
    data::Sample sample;
    sample.name = files_[index].stem().string();
    sample.input = data::to_planes(image);
    sample.target.shape = {image.height, image.width};
    sample.target.values.resize(static_cast<std::size_t>(image.height * image.width));
    return sample;
  }
  [[nodiscard]] std::size_t classes() const override { return classes_; }

 private:
  std::vector<fs::path> files_;
  std::size_t classes_;
};

std::shared_ptr<const data::Dataset> open_source(const Settings& settings) {
  if (settings.data.starts_with(kImages)) {
    return std::make_shared<Images>(settings.data.substr(kImages.size()),
                                    static_cast<std::size_t>(settings.classes));
  }
  return open_split(settings, false);
}

/// Predictions have the names of pictures: among these they would replace them. Throws BadSetting.
void check_out(const Settings& settings) {
  const bool pictures = settings.data.starts_with(kImages);
  const std::string& data =
      pictures || settings.val_data.empty() ? settings.data : settings.val_data;
  fs::path from = pictures ? data.substr(kImages.size()) : data::parse_spec(data).path;
  if (from.empty()) return;
  if (!fs::is_directory(from)) from = from.parent_path();
  const fs::path to = fs::weakly_canonical(settings.out)
                          .lexically_relative(fs::weakly_canonical(fs::absolute(from)));
  // Folders in a data set are its own; in a folder of pictures they do not count.
  if (to == "." || (!pictures && !to.empty() && *to.begin() != "..")) {
    throw BadSetting("out: '" + settings.out + "' lies in the data, '" + data +
                     "', whose files predictions could replace; another folder");
  }
}

/// A colour a class: the data set's, or hues that are far apart.
data::Palette palette_of(const data::Dataset& dataset, std::size_t classes) {
  data::Palette palette = dataset.palette();
  for (std::size_t i = palette.size(); i < std::max<std::size_t>(classes, 1); ++i) {
    const double turn = std::fmod(static_cast<double>(i) * 0.618034, 1.0) * 6;
    const auto channel = [&](double offset) {
      const double x = std::fmod(turn + offset, 6.0);
      const double level = std::clamp(std::abs(x - 3) - 1, 0.0, 1.0);
      return static_cast<std::uint8_t>(std::lround(255 * level));
    };
    palette.push_back({channel(0), channel(4), channel(2)});
  }
  return palette;
}

data::Image colours(const data::Array<std::uint8_t>& labels, const data::Palette& palette) {
  data::Image image{labels.shape[1], labels.shape[0], {}};
  image.pixels.reserve(labels.values.size() * 3);
  for (const std::uint8_t label : labels.values) {
    const auto colour =
        label < palette.size() ? palette[label] : std::array<std::uint8_t, 3>{0, 0, 0};
    image.pixels.insert(image.pixels.end(), colour.begin(), colour.end());
  }
  return image;
}

void blend(data::Image& picture, const data::Image& over, const std::vector<bool>& where) {
  for (std::size_t i = 0; i < picture.pixels.size(); ++i) {
    if (!where[i / 3]) continue;
    picture.pixels[i] = static_cast<std::uint8_t>((picture.pixels[i] + over.pixels[i] + 1) / 2);
  }
}

/// The predicted classes of a picture, without the padding.
data::Array<std::uint8_t> label_map(const torch::Tensor& prediction,
                                    const std::vector<std::int64_t>& sides) {
  const torch::Tensor map = prediction.narrow(1, 0, sides[0])
                                .narrow(2, 0, sides[1])
                                .squeeze(0)
                                .to(torch::kUInt8)
                                .cpu()
                                .contiguous();
  const auto* from = map.const_data_ptr<std::uint8_t>();
  return {{sides[0], sides[1]}, {from, from + map.numel()}};
}

class Writer {
 public:
  Writer(const Settings& settings, const data::Dataset& dataset)
      : settings_(settings),
        names_(dataset.class_names()),
        palette_(palette_of(dataset, static_cast<std::size_t>(settings.classes))) {}

  void image(const data::Sample& raw, const torch::Tensor& prediction) const {
    const auto labels = label_map(prediction, {raw.input.shape[1], raw.input.shape[2]});
    write_map(raw.name, labels);
    if (!settings_.overlay) return;
    data::Image picture = data::from_planes(raw.input);
    blend(picture, colours(labels, palette_), std::vector<bool>(labels.values.size(), true));
    data::write_rgb_png(file(raw.name, ".overlay.png"), picture);
  }

  void volume(const data::Sample& raw, const torch::Tensor& prediction) const {
    const auto& shape = raw.input.shape;
    torch::Tensor mask = prediction.squeeze(0);
    for (int axis = 0; axis < 3; ++axis) {
      mask = mask.narrow(axis + 1, 0, shape[static_cast<std::size_t>(axis) + 1]);
    }
    mask = mask.to(torch::kUInt8).cpu().contiguous();
    for (std::int64_t label = 0; label < mask.size(0); ++label) {
      const torch::Tensor one = mask[label].contiguous();
      const auto* from = one.const_data_ptr<std::uint8_t>();
      const auto index = static_cast<std::size_t>(label);
      const std::string name = index < names_.size() ? names_[index] : std::to_string(label);
      data::write_nifti(file(raw.name, std::string(".").append(flat(name)).append(".nii.gz")),
                        {{shape[1], shape[2], shape[3]}, {from, from + one.numel()}}, {1, 1, 1});
    }
    planes(raw, mask);
  }

 private:
  [[nodiscard]] std::string file(const std::string& name, const std::string& end) const {
    return settings_.out + "/" + flat(name) + end;
  }

  void write_map(const std::string& name, const data::Array<std::uint8_t>& labels) const {
    if (settings_.labels == "true") data::write_label_png(file(name, ".png"), labels, palette_);
    if (settings_.labels == "rgb") {
      data::write_rgb_png(file(name, ".png"), colours(labels, palette_));
    }
  }

  /// The middle plane across each axis, side by side: labels by their number + 1, the last on top.
  void planes(const data::Sample& raw, const torch::Tensor& mask) const {
    const auto& s = raw.input.shape;
    const auto volume =
        torch::from_blob(const_cast<float*>(raw.input.values.data()), s, torch::kFloat32)[0];
    torch::Tensor ids = torch::zeros_like(mask[0]);
    for (std::int64_t label = 0; label < mask.size(0); ++label) {
      ids = torch::where(mask[label] != 0, torch::full_like(ids, label + 1), ids);
    }
    const std::int64_t height = std::max(s[1], s[2]);
    std::vector<torch::Tensor> maps;
    std::vector<torch::Tensor> greys;
    const auto fit = [&](const torch::Tensor& plane) {
      return torch::constant_pad_nd(plane, {0, 0, 0, height - plane.size(0)});
    };
    for (int axis = 0; axis < 3; ++axis) {
      const std::int64_t middle = s[static_cast<std::size_t>(axis) + 1] / 2;
      maps.push_back(fit(ids.select(axis, middle)));
      greys.push_back(fit(volume.select(axis, middle)));
    }
    const torch::Tensor map = torch::cat(maps, 1).contiguous();
    const auto* from = map.const_data_ptr<std::uint8_t>();
    const data::Array<std::uint8_t> labels{{map.size(0), map.size(1)}, {from, from + map.numel()}};
    data::Palette palette = {{0, 0, 0}};
    palette.insert(palette.end(), palette_.begin(), palette_.end());
    if (settings_.labels == "true") data::write_label_png(file(raw.name, ".png"), labels, palette);
    const data::Image over = colours(labels, palette);
    if (settings_.labels == "rgb") data::write_rgb_png(file(raw.name, ".png"), over);
    if (!settings_.overlay) return;
    const torch::Tensor grey = torch::cat(greys, 1);
    const torch::Tensor level =
        ((grey - grey.min()) / (grey.max() - grey.min()).clamp_min(1e-6)).contiguous();
    data::Image picture{map.size(1), map.size(0), {}};
    std::vector<bool> where;
    for (std::int64_t i = 0; i < level.numel(); ++i) {
      const auto value =
          static_cast<std::uint8_t>(std::lround(255 * level.const_data_ptr<float>()[i]));
      picture.pixels.insert(picture.pixels.end(), 3, value);
      where.push_back(labels.values[static_cast<std::size_t>(i)] != 0);
    }
    blend(picture, over, where);
    data::write_rgb_png(file(raw.name, ".overlay.png"), picture);
  }

  const Settings& settings_;
  std::vector<std::string> names_;
  data::Palette palette_;
};

std::size_t count_of(const Settings& settings, const data::Dataset& dataset) {
  if (settings.val_limit <= 0) return dataset.size();
  return std::min<std::size_t>(dataset.size(), static_cast<std::size_t>(settings.val_limit));
}

std::ofstream begun_classes(const std::string& folder) {
  std::ofstream classes(folder + "/classes.csv");
  classes << "name,class\n";
  if (!classes) throw Error(folder + "/classes.csv: cannot be written");
  return classes;
}

torch::Tensor predicted(data::Sample& sample, const Machine& machine, zoo::Model& model) {
  const torch::Tensor input =
      torch::from_blob(sample.input.values.data(), sample.input.shape, torch::kFloat32)
          .unsqueeze(0)
          .to(machine.device());
  const Autocast autocast(machine);
  return model.predict(model.forward(input));
}

}  // namespace

std::int64_t predict(const Settings& given, const Machine& machine, zoo::Model& model,
                     std::FILE* err) {
  Settings settings = given;
  settings.model.clear();  // no edges of labels: there may be no labels
  const auto dataset = open_source(settings);
  check_out(settings);
  std::error_code error;
  fs::create_directories(settings.out, error);
  if (error) throw Error(settings.out + ": cannot be made: " + error.message());
  std::vector<data::Transform> prepare = validation_transforms(settings, model, 0);
  data::Transform crop;
  if (!settings.val_crop.empty()) {
    crop = prepare.front();
    prepare.erase(prepare.begin());
  }
  const Writer writer(settings, *dataset);
  Progress progress(err, settings.progress);
  std::ofstream classes;
  if (model.task() == zoo::Task::kClassification) classes = begun_classes(settings.out);

  const Signals signals;
  const torch::NoGradGuard no_grad;
  model.eval();
  const std::size_t count = count_of(settings, *dataset);
  std::size_t done = 0;
  std::set<std::string> names;
  for (; done < count && Signals::stop() == 0; ++done) {
    data::Sample raw = dataset->get(done, 0);
    if (!names.insert(flat(raw.name)).second) {
      throw Error(settings.out + ": two samples would be written as '" + flat(raw.name) + "'");
    }
    data::Generator generator(static_cast<std::uint64_t>(settings.seed));
    if (crop) crop(raw, generator);
    data::Sample sample = raw;
    for (const data::Transform& transform : prepare) transform(sample, generator);
    const torch::Tensor prediction = predicted(sample, machine, model);
    switch (model.task()) {
      case zoo::Task::kClassification:
        classes << raw.name << "," << prediction.item<std::int64_t>() << "\n";
        break;
      case zoo::Task::kSegmentation:
        writer.image(raw, prediction);
        break;
      case zoo::Task::kVolumes:
        writer.volume(raw, prediction);
        break;
    }
  }
  if (classes.is_open()) {
    classes.close();
    if (!classes) throw Error(settings.out + "/classes.csv: cannot be written");
  }
  progress.message(std::to_string(done) + " of " + std::to_string(count) + " predicted; in " +
                   settings.out);
  return static_cast<std::int64_t>(done);
}

}  // namespace lms::train
