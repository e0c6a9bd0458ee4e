#pragma once

// How good predictions are. Counting happens on the device, and waits for it once, at the end.

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/zoo/model.h"

namespace lms::train {

/// Of one class (or label): pixels or voxels that are it and were said to be (true positives), were
/// said to be and are not, are and were not said to be.
struct ClassCounts {
  std::int64_t hits = 0;
  std::int64_t false_alarms = 0;
  std::int64_t misses = 0;

  /// Nothing where the class neither is nor was said to be.
  [[nodiscard]] std::optional<double> iou() const;
  [[nodiscard]] std::optional<double> dice() const;
  [[nodiscard]] std::optional<double> accuracy() const;  ///< of the pixels that are it
};

struct Scores {
  std::vector<ClassCounts> classes;
  std::int64_t correct = 0;
  std::int64_t total = 0;
  double loss = 0;  ///< mean over samples
  std::int64_t samples = 0;

  [[nodiscard]] double accuracy() const;
  /// Means over the classes that there are; 0 if there are none.
  [[nodiscard]] double mean_iou() const;
  [[nodiscard]] double mean_dice() const;
  /// What "best" goes by: mean IoU, mean Dice of volumes, accuracy of classification.
  [[nodiscard]] double score(zoo::Task task) const;
};

/// From rows of a confusion matrix (truth × prediction).
Scores scores_of(const std::vector<std::vector<std::int64_t>>& confusion);

class Metrics {
 public:
  Metrics(zoo::Task task, std::int64_t classes, const torch::Device& device);

  /// Targets of 255 do not count. `loss` is the mean over the batch's samples. Enqueues work, and
  /// does not wait for it.
  void add(const torch::Tensor& prediction, const torch::Tensor& target, const torch::Tensor& loss);

  /// Waits for the device. Throws lms::Error where a target or prediction is out of range.
  [[nodiscard]] Scores scores() const;

 private:
  void add_classes(const torch::Tensor& prediction, const torch::Tensor& target);
  void add_labels(const torch::Tensor& prediction, const torch::Tensor& target);

  zoo::Task task_;
  std::int64_t classes_;
  torch::Tensor
      counts_;  ///< confusion and, last, what is out of range; or labels × (hits, said, true)
  torch::Tensor loss_;
  std::int64_t samples_ = 0;
  std::int64_t voxels_ = 0;
};

}  // namespace lms::train
