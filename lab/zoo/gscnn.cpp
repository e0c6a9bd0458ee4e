#include "lab/zoo/gscnn.h"

#include "lab/zoo/blocks.h"
#include "lab/zoo/host_canny.h"
#include "lab/zoo/shape_stream.h"
#include "lab/zoo/variants.h"

namespace lms::zoo {

/// Atrous spatial pyramid pooling at stride 8, with a branch for edges: six times 256 channels.
class GscnnPyramid : public torch::nn::Module {
 public:
  GscnnPyramid() {
    auto features = register_module("features", std::make_shared<torch::nn::Module>());
    for (const std::int64_t dilation : {1, 12, 24, 36}) {
      add(*features, std::to_string(branches_.size()),
          conv_options(4096, 256, dilation == 1 ? 1 : 3, 1, dilation));
    }
    add(*this, "img_conv", conv_options(4096, 256, 1));
    add(*this, "edge_conv", conv_options(1, 256, 1));
  }

  torch::Tensor forward(const torch::Tensor& input, const torch::Tensor& edges, Bilinear& resize) {
    const torch::IntArrayRef size = input.sizes().slice(2);
    const torch::Tensor pooled = run(4, input.mean({2, 3}, /*keepdim=*/true));
    std::vector<torch::Tensor> parts = {resize(pooled, size), run(5, resize(edges, size))};
    for (std::size_t i = 0; i < 4; ++i) parts.push_back(run(i, input));
    return torch::cat(parts, 1);
  }

 private:
  struct Branch {
    torch::nn::Conv2d conv;
    torch::nn::BatchNorm2d norm;
  };

  void add(torch::nn::Module& parent, const std::string& name,
           const torch::nn::Conv2dOptions& options) {
    auto branch = parent.register_module(name, std::make_shared<torch::nn::Module>());
    branches_.push_back({branch->register_module("0", torch::nn::Conv2d(options)),
                         branch->register_module("1", torch::nn::BatchNorm2d(256))});
  }

  torch::Tensor run(std::size_t branch, const torch::Tensor& input) {
    return norm_relu(branches_[branch].norm, branches_[branch].conv(input));
  }

  std::vector<Branch> branches_;
};

GatedScnn::~GatedScnn() = default;

GatedScnn::GatedScnn(const ModelOptions& options) : resize_(options.deterministic) {
  VariantReader reader("gscnn", options);
  channels_ = reader.channels(3);
  const std::int64_t classes = reader.classes_in_bytes(19);
  canny_of_image_ = reader.choice("canny", {"released", "image"}) == "image";
  loss_options_.second_sigmoid = reader.choice("edge_loss", {"released", "paper"}) == "released";
  loss_options_.gradients = reader.choice("dual_task", {"released", "paper"}) == "paper";
  const double dropout = reader.on_or_off("dropout");
  reader.finish();
  TORCH_CHECK_VALUE(!canny_of_image_ || channels_ == 3, "gscnn: canny = 'image' takes 3 channels, ",
                    "not ", channels_);

  const auto conv = [&](const char* name, const torch::nn::Conv2dOptions& conv) {
    return register_module(name, torch::nn::Conv2d(conv));
  };
  trunk_.emplace(WideResNet::Options{channels_, dropout, options.checkpoint}, *this);
  shape_ = std::make_shared<ShapeStream>(*this, options.checkpoint);
  canny_weight_ = conv("cw", conv_options(2, 1, 1));
  pyramid_ = register_module("aspp", std::make_shared<GscnnPyramid>());
  fine_ = conv("bot_fine", conv_options(128, 48, 1));
  reduce_ = conv("bot_aspp", conv_options(1536, 256, 1));
  auto head = register_module("final_seg", std::make_shared<torch::nn::Module>());
  conv1_ = head->register_module("0", torch::nn::Conv2d(conv_options(304, 256, 3)));
  norm1_ = head->register_module("1", torch::nn::BatchNorm2d(256));
  conv2_ = head->register_module("3", torch::nn::Conv2d(conv_options(256, 256, 3)));
  norm2_ = head->register_module("4", torch::nn::BatchNorm2d(256));
  classify_ = head->register_module("6", torch::nn::Conv2d(conv_options(256, classes, 1)));
  init_normal(*head, torch::kFanIn);
}

std::vector<torch::Tensor> GatedScnn::forward(const torch::Tensor& input) {
  check_input("gscnn", input, channels_, 2);
  check_pooled_batch("gscnn", input, is_training());
  HostCanny canny(canny_of_image_ ? bytes_of_imagenet(input) : bytes_modulo_256(input));

  const WideResNet::Features features = trunk_->forward(input);
  const torch::Tensor edges = shape_->forward(features, resize_);
  const torch::Tensor attention = canny_weight_(torch::cat({edges, canny.finish()}, 1)).sigmoid();

  const torch::Tensor coarse = reduce_(pyramid_->forward(features.m7, attention, resize_));
  torch::Tensor output =
      torch::cat({fine_(features.m2), resize_(coarse, features.m2.sizes().slice(2))}, 1);
  output = norm_relu(norm1_, conv1_(output));
  output = classify_(norm_relu(norm2_, conv2_(output)));
  return {resize_(output, input.sizes().slice(2), /*align_corners=*/false), edges};
}

torch::Tensor GatedScnn::loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) {
  const torch::Tensor& scores = outputs.at(0);
  const std::vector<std::int64_t> shape = {scores.size(0), scores.size(2), scores.size(3)};
  check_shape("gscnn", "target", batch.target, shape);
  TORCH_CHECK_VALUE(!batch.extras.empty(), "gscnn: the batch has no extras, but extras[0] must be ",
                    "the labels' edges");
  check_shape("gscnn", "edge map", batch.extras[0], shape);
  return gscnn_loss(scores, outputs.at(1), batch.target, batch.extras[0], loss_options_);
}

}  // namespace lms::zoo
