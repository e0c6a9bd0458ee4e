#include "lab/zoo/googlenet.h"

#include <array>

#include "lab/zoo/blocks.h"
#include "lab/zoo/checkpoint.h"
#include "lab/zoo/losses.h"
#include "lab/zoo/variants.h"

namespace lms::zoo {
namespace {

/// 1×1; 3×3 reduce, 3×3; 5×5 reduce, 5×5; pool projection.
using Widths = std::array<std::int64_t, 6>;

torch::Tensor conv_relu(torch::nn::Conv2d& conv, const torch::Tensor& input) {
  return conv(input).relu_();
}

class Inception : public torch::nn::Module {
 public:
  Inception(std::int64_t in, const Widths& widths)
      : one_(make("conv1", in, widths[0], 1)),
        reduce3_(make("reduce3", in, widths[1], 1)),
        three_(make("conv3", widths[1], widths[2], 3)),
        reduce5_(make("reduce5", in, widths[3], 1)),
        five_(make("conv5", widths[3], widths[4], 5)),
        project_(make("project", in, widths[5], 1)) {}

  torch::Tensor forward(const torch::Tensor& input) {
    return torch::cat({conv_relu(one_, input), conv_relu(three_, conv_relu(reduce3_, input)),
                       conv_relu(five_, conv_relu(reduce5_, input)),
                       conv_relu(project_, torch::max_pool2d(input, 3, 1, 1))},
                      1);
  }

 private:
  torch::nn::Conv2d make(const char* name, std::int64_t in, std::int64_t out, std::int64_t kernel) {
    return register_module(name, torch::nn::Conv2d(conv_options(in, out, kernel).bias(true)));
  }

  torch::nn::Conv2d one_;
  torch::nn::Conv2d reduce3_;
  torch::nn::Conv2d three_;
  torch::nn::Conv2d reduce5_;
  torch::nn::Conv2d five_;
  torch::nn::Conv2d project_;
};

/// SAME at kernel 3 and stride 2: an odd side is padded by one pixel before and after, an even side
/// by one after it, which is what rounding the result's size up does.
torch::Tensor pool_same(const torch::Tensor& input) {
  return torch::max_pool2d(input, 3, 2, {input.size(2) % 2, input.size(3) % 2}, 1, true);
}

/// SAME at kernel 7 and stride 2.
torch::Tensor pad_same(const torch::Tensor& input) {
  const std::int64_t down = 2 + input.size(2) % 2;
  const std::int64_t across = 2 + input.size(3) % 2;
  return torch::constant_pad_nd(input, {across, 3, down, 3});
}

const std::vector<std::vector<Widths>>& stage_widths() {
  static const std::vector<std::vector<Widths>> widths = {
      {{64, 96, 128, 16, 32, 32}, {128, 128, 192, 32, 96, 64}},
      {{192, 96, 208, 16, 48, 64},
       {160, 112, 224, 24, 64, 64},
       {128, 128, 256, 24, 64, 64},
       {112, 144, 288, 32, 64, 64},
       {256, 160, 320, 32, 128, 128}},
      {{256, 160, 320, 32, 128, 128}, {384, 192, 384, 48, 128, 128}},
  };
  return widths;
}

}  // namespace

GoogLeNet::GoogLeNet(const ModelOptions& options)
    : deterministic_(options.deterministic), checkpoint_(options.checkpoint) {
  VariantReader reader("googlenet", options);
  channels_ = reader.channels(3);
  const std::int64_t classes = reader.classes(1001);
  reader.finish();

  conv1_ = register_module("conv1",
                           torch::nn::Conv2d(torch::nn::Conv2dOptions(channels_, 64, 7).stride(2)));
  conv2_ = register_module("conv2", torch::nn::Conv2d(conv_options(64, 64, 1).bias(true)));
  conv3_ = register_module("conv3", torch::nn::Conv2d(conv_options(64, 192, 3).bias(true)));
  std::int64_t in = 192;
  for (const auto& blocks : stage_widths()) {
    torch::nn::Sequential stage;
    for (const Widths& widths : blocks) {
      stage->push_back(std::make_shared<Inception>(in, widths));
      in = widths[0] + widths[2] + widths[4] + widths[5];
    }
    stages_.emplace_back(register_module("inception" + std::to_string(stages_.size() + 3), stage));
  }
  fc_ = register_module("fc", torch::nn::Linear(in, classes));
  init_normal(*this, torch::kFanIn);
  torch::nn::init::zeros_(fc_->bias);
}

std::vector<torch::Tensor> GoogLeNet::forward(const torch::Tensor& input) {
  check_input("googlenet", input, channels_, 2);
  torch::Tensor output = pool_same(conv_relu(conv1_, pad_same(input)));
  output = conv_relu(conv3_, conv_relu(conv2_, output));
  for (torch::nn::Sequential& stage : stages_) {
    output = pool_same(output);
    for (std::size_t i = 0; i < stage->size(); ++i) {
      output = run_block(checkpoint_, stage->ptr<Inception>(i), output);
    }
  }
  return {fc_(output.mean({2, 3}))};
}

torch::Tensor GoogLeNet::loss(const std::vector<torch::Tensor>& outputs, const Batch& batch) {
  const torch::Tensor& logits = outputs.at(0);
  check_shape("googlenet", "target", batch.target, {logits.size(0)});
  return cross_entropy(logits, batch.target, deterministic_);
}

}  // namespace lms::zoo
