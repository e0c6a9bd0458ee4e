#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lab/datasets/dataset.h"
#include "lab/train/settings.h"
#include "lab/zoo/model.h"

namespace lms::train {

/// What a run is made of.
struct Parts {
  std::shared_ptr<zoo::Model> model;           ///< on the CPU
  std::shared_ptr<const data::Dataset> train;  ///< augmented, normalised, of equal shapes
  std::shared_ptr<const data::Dataset> val;    ///< normalised, padded to what the model can take
  bool val_is_train = false;                   ///< both are of the same samples
};

/// The data set of a split as it is: images from 0 to 1, without transforms.
std::shared_ptr<const data::Dataset> open_split(const Settings& settings, bool training);

/// What the model's inputs are divided and shifted by: the settings', or ImageNet's for images, or
/// nothing. Both empty or as long as each other.
struct Normalisation {
  std::vector<float> mean;
  std::vector<float> deviation;
};
Normalisation normalisation(const Settings& settings, zoo::Task task);

/// The transforms of training, and those of validation and prediction.
std::vector<data::Transform> training_transforms(const Settings& settings, const zoo::Model& model,
                                                 std::size_t classes);
std::vector<data::Transform> validation_transforms(const Settings& settings,
                                                   const zoo::Model& model, std::size_t classes);

/// Throws BadSetting where the model or its settings are unknown.
std::shared_ptr<zoo::Model> make_model(const Settings& settings, std::size_t classes);

/// All of them. `train` is left out (null) for evaluation. `settings.classes` and
/// `settings.channels` are filled in, where they are 0.
Parts make_parts(Settings& settings, bool with_train);

}  // namespace lms::train
