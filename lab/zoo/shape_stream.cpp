#include "lab/zoo/shape_stream.h"

#include "lab/zoo/blocks.h"
#include "lab/zoo/checkpoint.h"

namespace lms::zoo {

/// Two 3×3 convolutions beside a shortcut.
class ShapeBlock : public torch::nn::Module {
 public:
  explicit ShapeBlock(std::int64_t channels)
      : conv1_(conv_options(channels, channels, 3)),
        bn1_(channels),
        conv2_(conv_options(channels, channels, 3)),
        bn2_(channels) {
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    register_module("conv2", conv2_);
    register_module("bn2", bn2_);
    init_normal(*this, torch::kFanOut);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor output = bn2_(conv2_(norm_relu(bn1_, conv1_(input))));
    output += input;
    return output.relu_();
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
};

/// features·(1 + α) through a 1×1 convolution, where α comes of the features and the trunk's word.
class Gate : public torch::nn::Module {
 public:
  explicit Gate(std::int64_t channels)
      : norm1_(channels + 1),
        conv1_(conv_options(channels + 1, channels + 1, 1).bias(true)),
        conv2_(conv_options(channels + 1, 1, 1).bias(true)),
        norm2_(1) {
    weight_ = register_parameter("weight", torch::empty({channels, channels, 1, 1}));
    torch::nn::init::xavier_normal_(weight_);
    auto gate = register_module("_gate_conv", std::make_shared<torch::nn::Module>());
    gate->register_module("0", norm1_);
    gate->register_module("1", conv1_);
    gate->register_module("3", conv2_);
    gate->register_module("4", norm2_);
  }

  torch::Tensor forward(const torch::Tensor& features, const torch::Tensor& side) {
    torch::Tensor alpha = conv1_(norm1_(torch::cat({features, side}, 1))).relu_();
    alpha = norm2_(conv2_(alpha)).sigmoid();
    return torch::conv2d(features * (alpha + 1), weight_);
  }

 private:
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::Tensor weight_;
};

ShapeStream::~ShapeStream() = default;

ShapeStream::ShapeStream(torch::nn::Module& parent, bool checkpoint) : checkpoint_(checkpoint) {
  struct Plan {
    const char* side;
    std::int64_t trunk;
    std::int64_t channels;
  };
  const auto one = [&](const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
    return parent.register_module(name, torch::nn::Conv2d(conv_options(in, out, 1).bias(bias)));
  };
  one("dsn1", 64, 1, true);  // the released code has it, and never uses it
  for (const Plan& plan : {Plan{"dsn3", 256, 64}, Plan{"dsn4", 512, 32}, Plan{"dsn7", 4096, 16}}) {
    const std::string index = std::to_string(levels_.size() + 1);
    levels_.push_back(
        {one(plan.side, plan.trunk, 1, true),
         parent.register_module("res" + index, std::make_shared<ShapeBlock>(plan.channels)),
         one("d" + index, plan.channels, plan.channels / 2, true),
         parent.register_module("gate" + index, std::make_shared<Gate>(plan.channels / 2))});
  }
  fuse_ = one("fuse", 8, 1, false);
}

torch::Tensor ShapeStream::forward(const WideResNet::Features& features, Bilinear& resize) {
  const torch::IntArrayRef size = features.m1.sizes().slice(2);
  const torch::Tensor* trunk[] = {&features.m3, &features.m4, &features.m7};
  torch::Tensor output = features.m1;
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    Level& level = levels_[i];
    const torch::Tensor side = resize(level.side(*trunk[i]), size);
    if (checkpoint_) {
      const auto gated = [&level](const std::vector<torch::Tensor>& inputs) {
        return level.gate->forward(level.reduce(level.block->forward(inputs[0])), inputs[1]);
      };
      output = run_block(checkpoint_, gated, {output, side});
    } else {
      output = level.gate->forward(level.reduce(level.block->forward(output)), side);
    }
  }
  return fuse_(output).sigmoid();
}

}  // namespace lms::zoo
