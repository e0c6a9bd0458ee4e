#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "lab/studies/try_spec.h"
#include "lab/train/machine.h"
#include "lab/train/optimizer.h"
#include "lab/zoo/model.h"

namespace lms::studies {

/// The settings of training that a try stands for: the model's published ones, and the try's own.
train::Settings training_settings(const TrySpec& spec);

/// Classes or labels: the try's, or the model's own.
std::int64_t class_count(const TrySpec& spec);

/// A model of the zoo with an optimizer and one batch of random data, which every step takes anew.
/// Weights and data follow from the seed that the machine has set.
class Workload {
 public:
  /// Throws BadSetting or c10::ValueError for a model or sides that cannot be.
  Workload(const TrySpec& spec, const train::Settings& settings, const train::Machine& machine,
           std::int64_t host_budget);

  /// Enqueues a training step.
  void step();
  /// The loss of the last step, once the device has got there.
  [[nodiscard]] double loss() const;
  /// Of all parameters, without buffers: checkpointing counts batches twice in those.
  [[nodiscard]] std::string fingerprint() const;

 private:
  bool offload_;
  std::int64_t host_budget_;
  const train::Machine& machine_;
  std::shared_ptr<zoo::Model> model_;
  std::optional<train::Optimizer> optimizer_;
  train::LossScaler scaler_;
  zoo::Batch batch_;
  torch::Tensor loss_;  ///< on the host
};

}  // namespace lms::studies
