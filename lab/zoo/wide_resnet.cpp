#include "lab/zoo/wide_resnet.h"

#include "lab/zoo/blocks.h"
#include "lab/zoo/checkpoint.h"

namespace lms::zoo {

/// Batch norm, ReLU, convolution, twice or three times, beside a shortcut.
class WideBlock : public torch::nn::Module {
 public:
  struct Shape {
    std::vector<std::int64_t> channels;  ///< two 3×3; or 1×1, 3×3, 1×1
    std::int64_t stride;
    std::int64_t dilation;
    double dropout;
  };

  WideBlock(std::int64_t in, const Shape& shape) : dropout_(shape.dropout) {
    const std::vector<std::int64_t>& channels = shape.channels;
    norms_.push_back(register_norm(*this, "bn1", in));
    auto convs = register_module("convs", std::make_shared<torch::nn::Module>());
    std::int64_t from = in;
    for (std::size_t i = 0; i < channels.size(); ++i) {
      const std::string index = std::to_string(i + 1);
      if (i > 0) norms_.push_back(register_norm(*convs, "bn" + index, from));
      const bool small = channels.size() == 3 && i != 1;
      convs_.emplace_back(convs->register_module(
          "conv" + index,
          torch::nn::Conv2d(conv_options(from, channels[i], small ? 1 : 3,
                                         i == 0 ? shape.stride : 1, small ? 1 : shape.dilation))));
      from = channels[i];
    }
    if (in != from || shape.stride != 1) {
      project_ =
          register_module("proj_conv", torch::nn::Conv2d(conv_options(in, from, 1, shape.stride)));
    }
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor active = norm_relu(norms_[0], input);
    torch::Tensor output = convs_[0](active);
    for (std::size_t i = 1; i < convs_.size(); ++i) {
      output = norm_relu(norms_[i], output);
      if (dropout_ > 0 && i + 1 == convs_.size()) {
        output = torch::feature_dropout(output, dropout_, is_training());
      }
      output = convs_[i](output);
    }
    output += project_.is_empty() ? input : project_(active);
    return output;
  }

 private:
  static torch::nn::BatchNorm2d register_norm(torch::nn::Module& parent, const std::string& name,
                                              std::int64_t channels) {
    return parent.register_module(name, std::make_shared<torch::nn::Module>())
        ->register_module("0", torch::nn::BatchNorm2d(channels));
  }

  double dropout_;
  std::vector<torch::nn::BatchNorm2d> norms_;
  std::vector<torch::nn::Conv2d> convs_;
  torch::nn::Conv2d project_{nullptr};
};

WideResNet::WideResNet(const Options& options, torch::nn::Module& parent)
    : checkpoint_(options.checkpoint), first_(conv_options(options.channels, 64, 3)) {
  parent.register_module("mod1", std::make_shared<torch::nn::Module>())
      ->register_module("conv1", first_);

  struct Stage {
    int blocks;
    WideBlock::Shape shape;
  };
  const double dropout = options.dropout;
  const Stage stages[] = {
      {3, {{128, 128}, 1, 1, 0}},
      {3, {{256, 256}, 1, 1, 0}},
      {6, {{512, 512}, 2, 1, 0}},
      {3, {{512, 1024}, 1, 2, 0}},
      {1, {{512, 1024, 2048}, 1, 4, 0.3 * dropout}},
      {1, {{1024, 2048, 4096}, 1, 4, 0.5 * dropout}},
  };
  std::int64_t in = 64;
  for (const Stage& stage : stages) {
    auto module = parent.register_module("mod" + std::to_string(modules_.size() + 2),
                                         std::make_shared<torch::nn::Module>());
    auto& blocks = modules_.emplace_back();
    for (int i = 0; i < stage.blocks; ++i) {
      WideBlock::Shape shape = stage.shape;
      if (i > 0) shape.stride = 1;
      blocks.push_back(module->register_module("block" + std::to_string(i + 1),
                                               std::make_shared<WideBlock>(in, shape)));
      in = shape.channels.back();
    }
  }
}

WideResNet::Features WideResNet::forward(const torch::Tensor& input) {
  Features features;
  features.m1 = first_(input);
  torch::Tensor output = features.m1;
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    if (i < 2) output = torch::max_pool2d(output, 3, 2, 1);
    for (const auto& block : modules_[i]) output = run_block(checkpoint_, block, output);
    if (i == 0) features.m2 = output;
    if (i == 1) features.m3 = output;
    if (i == 2) features.m4 = output;
  }
  features.m7 = output;
  return features;
}

}  // namespace lms::zoo
