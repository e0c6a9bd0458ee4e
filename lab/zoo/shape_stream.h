#pragma once

#include <torch/torch.h>

#include <vector>

#include "lab/zoo/resize.h"
#include "lab/zoo/wide_resnet.h"

namespace lms::zoo {

class ShapeBlock;
class Gate;

/// Gated-SCNN's second stream, at full size: residual blocks, and after each a gate, through which
/// the trunk says where boundaries matter.
class ShapeStream {
 public:
  /// The modules belong to `parent`, with the released code's names. `checkpoint`: see
  /// ModelOptions.
  ShapeStream(torch::nn::Module& parent, bool checkpoint);
  ~ShapeStream();
  ShapeStream(const ShapeStream&) = delete;
  ShapeStream& operator=(const ShapeStream&) = delete;

  /// Edges, N×1×H×W of `features.m1`'s size, after a sigmoid.
  torch::Tensor forward(const WideResNet::Features& features, Bilinear& resize);

 private:
  struct Level {
    torch::nn::Conv2d side;  ///< of the trunk, to the gate's one channel
    std::shared_ptr<ShapeBlock> block;
    torch::nn::Conv2d reduce;
    std::shared_ptr<Gate> gate;
  };

  bool checkpoint_;
  std::vector<Level> levels_;
  torch::nn::Conv2d fuse_{nullptr};
};

}  // namespace lms::zoo
