#pragma once

#include "lab/zoo/model.h"

namespace lms::zoo {

class UNetBlock;

/// The 3D U-Net of Isensee et al. (2017, "Brain Tumor Segmentation and Radiomics Survival
/// Prediction"), as the public Keras port (ellisdg/3DUnetCNN) lays it out. N×4×D×H×W, sides
/// divisible by 16, to N×3×D×H×W after a sigmoid. 8,269,561 parameters.
///
/// Loss: dice_loss of losses.h. (The port minimises −Dice: the same gradients.) Weights: Glorot,
/// uniform; biases zero. Nothing in it needs another formulation to be deterministic.
///
/// Variants:
///   norm     fused (default): instance norm as everyone's, (x − μ) / √(σ² + ε), in one kernel.
///            released: the port's (x − μ) / (σ + ε), in several; undefined gradient where a
///            channel is constant.
///   padding  symmetric (default): a strided convolution is padded before and after the volume, of
///            which an even side uses the former alone. same: the port's, padded after it, at the
///            cost of a copy. The one is the other mirrored: equal for mirrored kernels and
///            volumes.
///   dropout  on (default), off.
class UNet3d final : public Model {
 public:
  explicit UNet3d(const ModelOptions& options = {});
  ~UNet3d() override;

  [[nodiscard]] Task task() const override { return Task::kVolumes; }
  std::vector<torch::Tensor> forward(const torch::Tensor& input) override;
  torch::Tensor loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) override;
  [[nodiscard]] std::int64_t side_divisor() const override { return 16; }

 private:
  struct Encoder {
    std::shared_ptr<UNetBlock> in;
    std::shared_ptr<UNetBlock> context1;
    std::shared_ptr<UNetBlock> context2;
  };
  struct Decoder {
    std::shared_ptr<UNetBlock> up;
    std::shared_ptr<UNetBlock> local3;
    std::shared_ptr<UNetBlock> local1;
    torch::nn::Conv3d head{nullptr};
  };

  std::int64_t channels_;
  bool checkpoint_;
  double dropout_;
  std::vector<Encoder> encoders_;
  std::vector<Decoder> decoders_;  ///< of levels 0 (finest) to 3
};

}  // namespace lms::zoo
