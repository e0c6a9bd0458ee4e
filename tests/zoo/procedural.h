#pragma once

// The values of goldens/procedural.py, and its goldens.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/zoo/model.h"

namespace lms::zoo::test {

/// float64, flat, in [-1, 1).
torch::Tensor uniform(const std::string& name, std::int64_t count);
torch::Tensor picture(torch::IntArrayRef shape);
torch::Tensor classes(std::int64_t count, std::int64_t classes);
torch::Tensor labels(torch::IntArrayRef shape, std::int64_t classes);
torch::Tensor binary(const std::string& name, torch::IntArrayRef shape);

/// Gives every parameter its procedural value.
void fill(torch::nn::Module& model);

/// tests/zoo/goldens/<name>.json, or that of the folder in the environment's LMS_ZOO_GOLDENS.
nlohmann::json load_golden(const std::string& name);

/// The model of a golden: its classes and variants, filled, in training without dropout.
std::shared_ptr<Model> model_of(const nlohmann::json& golden, bool deterministic = false);

/// The batch for which a golden was made.
Batch batch_of(const nlohmann::json& golden, Task task);

/// Runs the model of a golden, and expects its numbers: parameters; outputs and loss in float32, to
/// 1e-4; outputs, loss and every gradient in float64, to 1e-6 of its norm, and 1e-8 of the norm of
/// all gradients, for those that are zero but for rounding. Of a golden in float32: all to 1e-4.
void expect_golden(const std::string& name, bool deterministic = false);

}  // namespace lms::zoo::test
