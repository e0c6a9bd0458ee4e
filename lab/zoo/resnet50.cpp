#include "lab/zoo/resnet50.h"

#include "lab/zoo/blocks.h"
#include "lab/zoo/checkpoint.h"
#include "lab/zoo/losses.h"
#include "lab/zoo/variants.h"

namespace lms::zoo {
namespace {

constexpr std::int64_t kExpansion = 4;

class Bottleneck : public torch::nn::Module {
 public:
  Bottleneck(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1_(conv_options(in, width, 1)),
        bn1_(width),
        conv2_(conv_options(width, width, 3, stride)),
        bn2_(width),
        conv3_(conv_options(width, width * kExpansion, 1)),
        bn3_(width * kExpansion) {
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    register_module("conv2", conv2_);
    register_module("bn2", bn2_);
    register_module("conv3", conv3_);
    register_module("bn3", bn3_);
    if (stride != 1 || in != width * kExpansion) {
      downsample_ = register_module(
          "downsample",
          torch::nn::Sequential(torch::nn::Conv2d(conv_options(in, width * kExpansion, 1, stride)),
                                torch::nn::BatchNorm2d(width * kExpansion)));
    }
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor output = norm_relu(bn1_, conv1_(input));
    output = norm_relu(bn2_, conv2_(output));
    output = bn3_(conv3_(output));
    output += downsample_.is_empty() ? input : downsample_->forward(input);
    return output.relu_();
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Conv2d conv3_;
  torch::nn::BatchNorm2d bn3_;
  torch::nn::Sequential downsample_{nullptr};
};

}  // namespace

ResNet50::ResNet50(const ModelOptions& options)
    : deterministic_(options.deterministic), checkpoint_(options.checkpoint) {
  VariantReader reader("resnet50", options);
  channels_ = reader.channels(3);
  const std::int64_t classes = reader.classes(1000);
  reader.finish();

  conv1_ = register_module("conv1", torch::nn::Conv2d(conv_options(channels_, 64, 7, 2)));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(64));
  std::int64_t in = 64;
  std::int64_t width = 64;
  for (const std::int64_t blocks : {3, 4, 6, 3}) {
    torch::nn::Sequential layer;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const bool strided = block == 0 && !layers_.empty();
      layer->push_back(std::make_shared<Bottleneck>(in, width, strided ? 2 : 1));
      in = width * kExpansion;
    }
    layers_.emplace_back(register_module("layer" + std::to_string(layers_.size() + 1), layer));
    width *= 2;
  }
  fc_ = register_module("fc", torch::nn::Linear(in, classes));
  init_normal(*this, torch::kFanOut);
}

std::vector<torch::Tensor> ResNet50::forward(const torch::Tensor& input) {
  check_input("resnet50", input, channels_, 2);
  torch::Tensor output = norm_relu(bn1_, conv1_(input));
  output = torch::max_pool2d(output, 3, 2, 1);
  for (torch::nn::Sequential& layer : layers_) {
    for (std::size_t i = 0; i < layer->size(); ++i) {
      output = run_block(checkpoint_, layer->ptr<Bottleneck>(i), output);
    }
  }
  return {fc_(output.mean({2, 3}))};
}

torch::Tensor ResNet50::loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) {
  const torch::Tensor& logits = outputs.at(0);
  check_shape("resnet50", "target", batch.target, {logits.size(0)});
  return cross_entropy(logits, batch.target, deterministic_);
}

}  // namespace lms::zoo
