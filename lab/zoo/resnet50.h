#pragma once

#include "lab/zoo/model.h"

namespace lms::zoo {

/// ResNet50 in torchvision's layout (He et al. 2015, "Deep Residual Learning for Image
/// Recognition"; the stride sits on the 3×3 convolution, which some call v1.5). N×3×H×W of any
/// size to N×1000. 25,557,032 parameters, with torchvision's names: its state dict fits.
///
/// Loss: mean cross-entropy. Initialised as torchvision does. Variants: none.
class ResNet50 final : public Model {
 public:
  explicit ResNet50(const ModelOptions& options = {});

  [[nodiscard]] Task task() const override { return Task::kClassification; }
  std::vector<torch::Tensor> forward(const torch::Tensor& input) override;
  torch::Tensor loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) override;

 private:
  std::int64_t channels_;
  bool deterministic_;
  bool checkpoint_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::vector<torch::nn::Sequential> layers_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace lms::zoo
