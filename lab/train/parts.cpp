#include "lab/train/parts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "lab/datasets/augment.h"
#include "lab/datasets/open.h"
#include "lab/datasets/wrap.h"
#include "lab/train/machine.h"

namespace lms::train {
namespace {

constexpr int kEdgeRadius = 2;
constexpr double kLeastBlur = 0.1;
constexpr double kMostBlur = 1.5;

std::array<std::int64_t, 3> sides3(const std::vector<std::int64_t>& sides) {
  if (sides.size() == 1) return {sides[0], sides[0], sides[0]};
  if (sides.size() != 3) throw BadSetting("crop: volumes want one side, or three");
  return {sides[0], sides[1], sides[2]};
}

std::array<std::int64_t, 2> sides2(const std::vector<std::int64_t>& sides) {
  if (sides.size() == 1) return {sides[0], sides[0]};
  if (sides.size() != 2) throw BadSetting("crop: images want one side, or two");
  return {sides[0], sides[1]};
}

std::vector<float> floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

bool wants_edges(const Settings& settings) { return settings.model == "gscnn"; }

void add_last(const Settings& settings, const zoo::Model& model, std::size_t classes,
              std::vector<data::Transform>& transforms) {
  const Normalisation norm = normalisation(settings, model.task());
  if (!norm.mean.empty()) transforms.push_back(data::normalize(norm.mean, norm.deviation));
  if (wants_edges(settings)) transforms.push_back(data::label_edges(classes, kEdgeRadius));
}

/// What lies around an image is to be 0 after the normalisation.
std::vector<float> fill_of(const Settings& settings, const zoo::Model& model) {
  return normalisation(settings, model.task()).mean;
}

void add_crop(const std::vector<std::int64_t>& sides, const Settings& settings,
              const zoo::Model& model, std::vector<data::Transform>& transforms) {
  if (sides.empty()) return;
  if (model.task() == zoo::Task::kVolumes) {
    transforms.push_back(data::center_crop3d(sides3(sides)));
  } else {
    const auto [height, width] = sides2(sides);
    transforms.push_back(data::center_crop(height, width, fill_of(settings, model)));
  }
}

void check_sides(const char* key, const std::vector<std::int64_t>& sides, const zoo::Model& model) {
  const std::int64_t divisor = model.side_divisor();
  for (const std::int64_t side : sides) {
    if (side % divisor != 0) {
      const std::int64_t below = std::max(side / divisor, std::int64_t{1}) * divisor;
      throw BadSetting(std::string(key) + ": " + std::to_string(side) + " is not divisible by " +
                       std::to_string(divisor) + ", as the model wants; " + std::to_string(below) +
                       " would do");
    }
  }
}

data::DataSpec spec_of_split(const Settings& settings, bool training) {
  const bool own = !training && !settings.val_data.empty();
  data::DataSpec spec = data::parse_spec(own ? settings.val_data : settings.data);
  for (const auto& [name, value] : settings.options) {
    if (data::takes_option(spec.kind, name)) spec = spec.with(name, value);
  }
  const bool said = !training && !own ? false : spec.options.contains("split");
  if (!said && data::takes_option(spec.kind, "split")) {
    spec = spec.with("split", training ? settings.split : settings.val_split);
  }
  return spec;
}

}  // namespace

std::shared_ptr<const data::Dataset> open_split(const Settings& settings, bool training) {
  return data::open_dataset(spec_of_split(settings, training));
}

Normalisation normalisation(const Settings& settings, zoo::Task task) {
  if (!settings.mean.empty()) return {floats(settings.mean), floats(settings.std)};
  if (task == zoo::Task::kVolumes || (settings.channels != 0 && settings.channels != 3)) return {};
  return {{data::kImageNetMean.begin(), data::kImageNetMean.end()},
          {data::kImageNetDeviation.begin(), data::kImageNetDeviation.end()}};
}

std::vector<data::Transform> training_transforms(const Settings& settings, const zoo::Model& model,
                                                 std::size_t classes) {
  std::vector<data::Transform> all;
  check_sides("crop", settings.crop, model);
  if (model.task() == zoo::Task::kVolumes) {
    if (!settings.crop.empty()) {
      data::Deformation deformation;
      deformation.rotation = settings.rotate;
      deformation.warp = settings.warp;
      if (!settings.scale.empty()) {
        deformation.scale = std::max(settings.scale[1] - 1, 1 - settings.scale[0]);
      }
      all.push_back(data::random_crop3d(sides3(settings.crop), deformation));
    } else {
      all.push_back(data::pad_to_multiple3d(model.side_divisor()));
    }
    if (settings.axes) all.push_back(data::random_axes3d());
    if (settings.flip) all.push_back(data::random_flip3d());
    if (settings.colour > 0) {
      all.push_back(data::random_intensity3d(settings.colour, settings.colour));
    }
  } else {
    if (!settings.crop.empty()) {
      const auto [height, width] = sides2(settings.crop);
      const bool scaled = !settings.scale.empty();
      all.push_back(data::random_scale_crop(scaled ? settings.scale[0] : 1,
                                            scaled ? settings.scale[1] : 1, height, width,
                                            fill_of(settings, model)));
    } else {
      if (!settings.scale.empty()) throw BadSetting("scale wants a crop");
      all.push_back(data::pad_to_multiple(model.side_divisor(), fill_of(settings, model)));
    }
    if (settings.flip) all.push_back(data::random_flip());
    const double c = settings.colour;
    if (c > 0) all.push_back(data::color_jitter(c, c, c, std::min(c, 0.5)));
    if (settings.blur) all.push_back(data::random_blur(kLeastBlur, kMostBlur, 0.5));
  }
  add_last(settings, model, classes, all);
  return all;
}

std::vector<data::Transform> validation_transforms(const Settings& settings,
                                                   const zoo::Model& model, std::size_t classes) {
  std::vector<data::Transform> all;
  check_sides("val_crop", settings.val_crop, model);
  add_crop(settings.val_crop, settings, model, all);
  if (model.task() == zoo::Task::kVolumes) {
    all.push_back(data::pad_to_multiple3d(model.side_divisor()));
  } else {
    all.push_back(data::pad_to_multiple(model.side_divisor(), fill_of(settings, model)));
  }
  add_last(settings, model, classes, all);
  return all;
}

std::shared_ptr<zoo::Model> make_model(const Settings& settings, std::size_t classes) {
  zoo::ModelOptions options;
  options.classes = static_cast<std::int64_t>(classes);
  options.channels = settings.channels;
  options.deterministic = settings.deterministic != "false";
  options.variants = settings.variants;
  try {
    return zoo::make_model(settings.model, options);
  } catch (const c10::ValueError& error) {
    const std::string near = nearest(settings.model, zoo::model_names());
    throw BadSetting(std::string("model: ") + error.what_without_backtrace() +
                     (near.empty() || near == settings.model ? "" : "; the nearest is " + near));
  }
}

Parts make_parts(Settings& settings, bool with_train) {
  Parts parts;
  std::shared_ptr<const data::Dataset> train;
  if (with_train) train = open_split(settings, true);
  const bool validates = !with_train || settings.val_every >= 0;
  std::shared_ptr<const data::Dataset> val;
  if (validates) val = open_split(settings, false);
  const std::size_t found = (train ? train : val)->classes();
  if (settings.classes == 0) settings.classes = static_cast<std::int64_t>(found);
  const auto classes = static_cast<std::size_t>(settings.classes);
  if (found > classes) {
    throw BadSetting("classes: the data set has " + std::to_string(found) + ", and the model " +
                     std::to_string(classes));
  }
  if (val && val->classes() > classes) {
    throw BadSetting("val_data: has " + std::to_string(val->classes()) + " classes, the model " +
                     std::to_string(classes));
  }
  if (settings.channels == 0) settings.channels = (train ? train : val)->get(0, 0).input.shape[0];
  parts.model = make_model(settings, classes);
  const std::int64_t cache = read_amount("cache", settings.cache, torch::kCPU);
  if (train) {
    if (cache > 0) train = data::cached(train, static_cast<std::size_t>(cache));
    if (settings.repeat > 1) {
      train = data::repeated(train, static_cast<std::size_t>(settings.repeat));
    }
    parts.train = data::transformed(train, training_transforms(settings, *parts.model, classes));
  }
  if (val) {
    if (settings.val_limit > 0 && static_cast<std::size_t>(settings.val_limit) < val->size()) {
      std::vector<std::size_t> first(static_cast<std::size_t>(settings.val_limit));
      for (std::size_t i = 0; i < first.size(); ++i) first[i] = i;
      val = data::subset(val, std::move(first));
    }
    parts.val_is_train =
        spec_of_split(settings, true).text() == spec_of_split(settings, false).text();
    parts.val = data::transformed(val, validation_transforms(settings, *parts.model, classes));
  }
  return parts;
}

}  // namespace lms::train
