#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace lms::zoo {

class WideBlock;

/// The trunk of WiderResNet38-A2 (Wu et al. 2016, Rota Bulò et al. 2018): pre-activated residual
/// blocks, two poolings and one stride, then dilation. To 4096 channels at 1/8.
class WideResNet {
 public:
  struct Options {
    std::int64_t channels = 3;
    double dropout = 1;       ///< factor on the modules' own probabilities
    bool checkpoint = false;  ///< see ModelOptions
  };

  /// What some of its seven modules give.
  struct Features {
    torch::Tensor m1;  ///< 64 channels at full size
    torch::Tensor m2;  ///< 128 at 1/2
    torch::Tensor m3;  ///< 256 at 1/4
    torch::Tensor m4;  ///< 512 at 1/8
    torch::Tensor m7;  ///< 4096 at 1/8
  };

  /// The modules belong to `parent`, as mod1 to mod7.
  WideResNet(const Options& options, torch::nn::Module& parent);

  Features forward(const torch::Tensor& input);

 private:
  bool checkpoint_;
  torch::nn::Conv2d first_;
  std::vector<std::vector<std::shared_ptr<WideBlock>>> modules_;  ///< 2 to 7
};

}  // namespace lms::zoo
