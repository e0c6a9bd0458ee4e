#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace lms::zoo {

class XceptionBlock;

/// The aligned Xception of 65 layers that DeepLabv3+ stands on (Chollet 2016, as Chen et al. 2018
/// changed it): separable convolutions in 20 residual blocks, without pooling.
class XceptionImpl : public torch::nn::Module {
 public:
  struct Options {
    std::int64_t channels = 3;
    std::int64_t output_stride = 16;  ///< 16 or 8
    /// The shortcut of a block that begins with ReLU leads past it (the paper), or begins after it
    /// (the released code, whose ReLU works in place).
    bool shortcut_after_relu = true;
    bool checkpoint = false;  ///< see ModelOptions
  };

  explicit XceptionImpl(const Options& options);
  ~XceptionImpl() override;

  /// 2048 channels at 1/output_stride, and the 128 of the first block at 1/4.
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& input);

 private:
  bool checkpoint_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::BatchNorm2d bn2_{nullptr};
  std::vector<std::shared_ptr<XceptionBlock>> blocks_;
  torch::nn::ModuleList exit_convs_;
  torch::nn::ModuleList exit_norms_;
};
TORCH_MODULE(Xception);

}  // namespace lms::zoo
