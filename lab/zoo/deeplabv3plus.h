#pragma once

#include "lab/zoo/model.h"
#include "lab/zoo/resize.h"
#include "lab/zoo/xception.h"

namespace lms::zoo {

class DeepLabPyramid;
class DeepLabDecoder;

/// DeepLabv3+ (Chen et al. 2018, "Encoder-Decoder with Atrous Separable Convolution for Semantic
/// Image Segmentation") on the aligned Xception of 65 layers, as the public PyTorch port
/// (jfzhang95/pytorch-deeplab-xception) lays it out, with its names. N×3×H×W of any size to
/// N×21×H×W. 54,705,317 parameters. Training takes batches of two or more.
///
/// Loss: mean cross-entropy over the pixels whose label is not 255. Two parameter groups: the
/// backbone, and the head at ten times its learning rate. Initialised as the port does.
///
/// Variants:
///   output_stride  16 (default), 8.
///   shortcut       released (default): the port's ReLU works in place, so that the shortcut of
///                  blocks 3 to 20 begins after it. paper: it leads past the ReLU, and keeps one
///                  tensor more a block.
///   loss           mean (default). released: the port's, divided by the batch size once more.
///   dropout        on (default), off.
class DeepLabV3Plus final : public Model {
 public:
  explicit DeepLabV3Plus(const ModelOptions& options = {});
  ~DeepLabV3Plus() override;

  [[nodiscard]] Task task() const override { return Task::kSegmentation; }
  std::vector<torch::Tensor> forward(const torch::Tensor& input) override;
  torch::Tensor loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) override;
  std::vector<ParameterGroup> parameter_groups() override;

 private:
  std::int64_t channels_;
  bool deterministic_;
  bool loss_over_batch_;
  Bilinear resize_;
  Xception backbone_{nullptr};
  std::shared_ptr<DeepLabPyramid> pyramid_;
  std::shared_ptr<DeepLabDecoder> decoder_;
};

}  // namespace lms::zoo
