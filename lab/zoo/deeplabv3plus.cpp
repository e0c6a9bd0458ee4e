#include "lab/zoo/deeplabv3plus.h"

#include "lab/zoo/blocks.h"
#include "lab/zoo/losses.h"
#include "lab/zoo/variants.h"

namespace lms::zoo {

/// Atrous spatial pyramid pooling: 2048 to 256 channels.
class DeepLabPyramid : public torch::nn::Module {
 public:
  DeepLabPyramid(std::int64_t rate, double dropout) : dropout_(dropout) {
    for (const std::int64_t dilation : {std::int64_t{1}, 6 * rate, 12 * rate, 18 * rate}) {
      auto branch = register_module("aspp" + std::to_string(convs_.size() + 1),
                                    std::make_shared<torch::nn::Module>());
      convs_.emplace_back(branch->register_module(
          "atrous_conv",
          torch::nn::Conv2d(conv_options(2048, 256, dilation == 1 ? 1 : 3, 1, dilation))));
      norms_.emplace_back(branch->register_module("bn", torch::nn::BatchNorm2d(256)));
    }
    auto pool = register_module("global_avg_pool", std::make_shared<torch::nn::Module>());
    pool_conv_ = pool->register_module("1", torch::nn::Conv2d(conv_options(2048, 256, 1)));
    pool_norm_ = pool->register_module("2", torch::nn::BatchNorm2d(256));
    conv1_ = register_module("conv1", torch::nn::Conv2d(conv_options(1280, 256, 1)));
    bn1_ = register_module("bn1", torch::nn::BatchNorm2d(256));
    init_normal(*this, torch::kFanIn);
  }

  torch::Tensor forward(const torch::Tensor& input, Bilinear& resize) {
    std::vector<torch::Tensor> branches;
    for (std::size_t i = 0; i < convs_.size(); ++i) {
      branches.push_back(norm_relu(norms_[i], convs_[i](input)));
    }
    const torch::Tensor pooled =
        norm_relu(pool_norm_, pool_conv_(input.mean({2, 3}, /*keepdim=*/true)));
    branches.push_back(resize(pooled, input.sizes().slice(2)));
    const torch::Tensor output = norm_relu(bn1_, conv1_(torch::cat(branches, 1)));
    return torch::dropout(output, dropout_, is_training());
  }

 private:
  double dropout_;
  std::vector<torch::nn::Conv2d> convs_;
  std::vector<torch::nn::BatchNorm2d> norms_;
  torch::nn::Conv2d pool_conv_{nullptr};
  torch::nn::BatchNorm2d pool_norm_{nullptr};
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
};

class DeepLabDecoder : public torch::nn::Module {
 public:
  DeepLabDecoder(std::int64_t classes, double dropout) : dropout_(dropout) {
    conv1_ = register_module("conv1", torch::nn::Conv2d(conv_options(128, 48, 1)));
    bn1_ = register_module("bn1", torch::nn::BatchNorm2d(48));
    auto last = register_module("last_conv", std::make_shared<torch::nn::Module>());
    conv2_ = last->register_module("0", torch::nn::Conv2d(conv_options(304, 256, 3)));
    bn2_ = last->register_module("1", torch::nn::BatchNorm2d(256));
    conv3_ = last->register_module("4", torch::nn::Conv2d(conv_options(256, 256, 3)));
    bn3_ = last->register_module("5", torch::nn::BatchNorm2d(256));
    classify_ =
        last->register_module("8", torch::nn::Conv2d(conv_options(256, classes, 1).bias(true)));
    init_normal(*this, torch::kFanIn);
  }

  torch::Tensor forward(const torch::Tensor& input, const torch::Tensor& low_level,
                        Bilinear& resize) {
    const torch::Tensor fine = norm_relu(bn1_, conv1_(low_level));
    torch::Tensor output = torch::cat({resize(input, fine.sizes().slice(2)), fine}, 1);
    output = norm_relu(bn2_, conv2_(output));
    output = torch::dropout(output, 0.5 * dropout_, is_training());
    output = norm_relu(bn3_, conv3_(output));
    output = torch::dropout(output, 0.1 * dropout_, is_training());
    return classify_(output);
  }

 private:
  double dropout_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::BatchNorm2d bn2_{nullptr};
  torch::nn::Conv2d conv3_{nullptr};
  torch::nn::BatchNorm2d bn3_{nullptr};
  torch::nn::Conv2d classify_{nullptr};
};

DeepLabV3Plus::~DeepLabV3Plus() = default;

DeepLabV3Plus::DeepLabV3Plus(const ModelOptions& options)
    : deterministic_(options.deterministic), resize_(options.deterministic) {
  VariantReader reader("deeplabv3plus", options);
  channels_ = reader.channels(3);
  const std::int64_t classes = reader.classes_in_bytes(21);
  XceptionImpl::Options backbone;
  backbone.channels = channels_;
  backbone.checkpoint = options.checkpoint;
  backbone.output_stride = std::stoi(reader.choice("output_stride", {"16", "8"}));
  backbone.shortcut_after_relu = reader.choice("shortcut", {"released", "paper"}) == "released";
  loss_over_batch_ = reader.choice("loss", {"mean", "released"}) == "released";
  const double dropout = reader.on_or_off("dropout");
  reader.finish();

  backbone_ = register_module("backbone", Xception(backbone));
  pyramid_ = register_module(
      "aspp", std::make_shared<DeepLabPyramid>(16 / backbone.output_stride, 0.5 * dropout));
  decoder_ = register_module("decoder", std::make_shared<DeepLabDecoder>(classes, dropout));
}

std::vector<torch::Tensor> DeepLabV3Plus::forward(const torch::Tensor& input) {
  check_input("deeplabv3plus", input, channels_, 2);
  check_pooled_batch("deeplabv3plus", input, is_training());
  const auto [deep, low_level] = backbone_->forward(input);
  const torch::Tensor scores =
      decoder_->forward(pyramid_->forward(deep, resize_), low_level, resize_);
  return {resize_(scores, input.sizes().slice(2))};
}

torch::Tensor DeepLabV3Plus::loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) {
  const torch::Tensor& scores = outputs.at(0);
  check_shape("deeplabv3plus", "target", batch.target,
              {scores.size(0), scores.size(2), scores.size(3)});
  const torch::Tensor loss = cross_entropy(scores, batch.target, deterministic_);
  return loss_over_batch_ ? loss / scores.size(0) : loss;
}

std::vector<ParameterGroup> DeepLabV3Plus::parameter_groups() {
  ParameterGroup backbone{backbone_->parameters(), 1};
  ParameterGroup head{pyramid_->parameters(), 10};
  for (const torch::Tensor& parameter : decoder_->parameters()) {
    head.parameters.push_back(parameter);
  }
  return {backbone, head};
}

}  // namespace lms::zoo
