#pragma once

#include "lab/zoo/model.h"

namespace lms::zoo {

/// GoogLeNet (Szegedy et al. 2014, "Going Deeper with Convolutions") as the studies enlarged it:
/// without normalisation, dropout or auxiliary heads, and pooled globally, so that it takes
/// N×3×H×W of any size (theirs: 2240²), to N×1001. 6,999,577 parameters.
///
/// Padding is TensorFlow's SAME: where the sides are even and the stride is 2, there is one pixel
/// more after the image than before. Loss: mean cross-entropy. Weights are initialised for ReLU
/// (normal, He et al. 2015); biases are zero. Variants: none.
class GoogLeNet final : public Model {
 public:
  explicit GoogLeNet(const ModelOptions& options = {});

  [[nodiscard]] Task task() const override { return Task::kClassification; }
  std::vector<torch::Tensor> forward(const torch::Tensor& input) override;
  torch::Tensor loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) override;

 private:
  std::int64_t channels_;
  bool deterministic_;
  bool checkpoint_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::Conv2d conv3_{nullptr};
  std::vector<torch::nn::Sequential> stages_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace lms::zoo
