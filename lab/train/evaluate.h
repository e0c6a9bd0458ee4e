#pragma once

#include <functional>
#include <memory>

#include "lab/datasets/dataset.h"
#include "lab/train/machine.h"
#include "lab/train/metrics.h"
#include "lab/train/settings.h"
#include "lab/zoo/model.h"

namespace lms::train {

/// The scores of a model on a data set, in evaluation mode and without gradients; the model is in
/// training mode, and PyTorch's generators are as they were, afterwards. `stop` is asked between
/// batches; where it says so the result is nothing. The loss is one of the model's, too, on
/// labels as they are.
std::optional<Scores> evaluate(zoo::Model& model, std::shared_ptr<const data::Dataset> dataset,
                               const Settings& settings, const Machine& machine,
                               const std::function<bool()>& stop = {});

/// A table for people, and the same as JSON.
std::string scores_text(const Scores& scores, zoo::Task task,
                        const std::vector<std::string>& class_names);
std::string scores_json(const Scores& scores, zoo::Task task,
                        const std::vector<std::string>& class_names);

}  // namespace lms::train
