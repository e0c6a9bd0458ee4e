#pragma once

#include <optional>

#include "lab/zoo/gscnn_loss.h"
#include "lab/zoo/model.h"
#include "lab/zoo/resize.h"
#include "lab/zoo/wide_resnet.h"

namespace lms::zoo {

class ShapeStream;
class GscnnPyramid;

/// Gated-SCNN (Takikawa et al. 2019, "Gated-SCNN: Gated Shape CNNs for Semantic Segmentation"), as
/// its authors released it (nv-tlabs/GSCNN), with its names. N×3×H×W of any size to two outputs:
/// scores N×19×H×W, and edges N×1×H×W after a sigmoid. 137,278,190 parameters, of which `dsn1`
/// (65) is never used: its gradient stays undefined. Training takes batches of two or more.
///
/// Canny's edges of the input are found on the host, as in the released code, but while the device
/// runs the trunk: see host_canny.h.
///
/// Loss: the sum of four terms, see gscnn_loss.h; the same under train() and eval(). (The released
/// code validates with unweighted cross-entropy.) Batch::extras[0] holds the labels' edges: uint8,
/// N×H×W of 0 and 1. The Gumbel noise comes from the default generator of the device.
/// Initialised as released, but for the trunk, which the authors took from ImageNet.
///
/// Variants:
///   canny      released (default): of the input as it comes, cut to whole numbers modulo 256: of a
///              normalised picture, where its channels change sign or pass ±1 and ±2. image: of the
///              picture, taking the input as normalised with ImageNet's mean and deviation.
///   edge_loss  released (default): the cross-entropy takes the edges, which are probabilities, for
///              logits, and so applies a second sigmoid. paper: one sigmoid.
///   dual_task  released (default): the magnitude of a boundary is that of the values themselves.
///              paper: that of their gradient, after smoothing.
///   dropout    on (default), off.
class GatedScnn final : public Model {
 public:
  explicit GatedScnn(const ModelOptions& options = {});
  ~GatedScnn() override;

  [[nodiscard]] Task task() const override { return Task::kSegmentation; }
  std::vector<torch::Tensor> forward(const torch::Tensor& input) override;
  torch::Tensor loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) override;

 private:
  std::int64_t channels_;
  bool canny_of_image_;
  GscnnLossOptions loss_options_;
  Bilinear resize_;
  std::optional<WideResNet> trunk_;
  std::shared_ptr<ShapeStream> shape_;
  std::shared_ptr<GscnnPyramid> pyramid_;
  torch::nn::Conv2d canny_weight_{nullptr};
  torch::nn::Conv2d fine_{nullptr};
  torch::nn::Conv2d reduce_{nullptr};
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d norm1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::BatchNorm2d norm2_{nullptr};
  torch::nn::Conv2d classify_{nullptr};
};

}  // namespace lms::zoo
