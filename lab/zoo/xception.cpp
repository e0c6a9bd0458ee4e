#include "lab/zoo/xception.h"

#include "lab/zoo/blocks.h"
#include "lab/zoo/checkpoint.h"

namespace lms::zoo {
namespace {

struct Layer {
  std::int64_t in;
  std::int64_t out;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
};

}  // namespace

/// Three of ReLU, separable convolution and batch norm, beside a shortcut.
class XceptionBlock : public torch::nn::Module {
 public:
  XceptionBlock(const std::vector<Layer>& layers, bool first_relu,
                const XceptionImpl::Options& options)
      : first_relu_(first_relu),
        shortcut_after_relu_(options.shortcut_after_relu),
        keep_input_(!options.shortcut_after_relu || options.checkpoint) {
    const std::int64_t in = layers.front().in;
    const std::int64_t out = layers.back().out;
    const std::int64_t stride = layers.back().stride;
    if (in != out || stride != 1) {
      skip_ = register_module("skip", torch::nn::Conv2d(conv_options(in, out, 1, stride)));
      skip_norm_ = register_module("skipbn", torch::nn::BatchNorm2d(out));
    }
    // The names count ReLUs too.
    auto rep = register_module("rep", std::make_shared<torch::nn::Module>());
    int index = first_relu ? 1 : 0;
    for (const Layer& layer : layers) {
      convs_.emplace_back(rep->register_module(
          std::to_string(index), SeparableConv(layer.in, layer.out, layer.stride, layer.dilation)));
      norms_.emplace_back(
          rep->register_module(std::to_string(index + 1), torch::nn::BatchNorm2d(layer.out)));
      index += 3;
    }
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor output = input;
    torch::Tensor shortcut = input;
    if (first_relu_) {
      output = keep_input_ ? input.relu() : input.relu_();
      if (shortcut_after_relu_) shortcut = output;
    }
    for (std::size_t i = 0; i < convs_.size(); ++i) {
      if (i > 0) output.relu_();
      output = norms_[i](convs_[i](output));
    }
    output += skip_.is_empty() ? shortcut : skip_norm_(skip_(shortcut));
    return output;
  }

 private:
  bool first_relu_;
  bool shortcut_after_relu_;
  bool keep_input_;
  torch::nn::Conv2d skip_{nullptr};
  torch::nn::BatchNorm2d skip_norm_{nullptr};
  std::vector<SeparableConv> convs_;
  std::vector<torch::nn::BatchNorm2d> norms_;
};

XceptionImpl::~XceptionImpl() = default;

XceptionImpl::XceptionImpl(const Options& options) : checkpoint_(options.checkpoint) {
  const std::int64_t wide =
      options.output_stride == 8 ? 2 : 1;  // dilation where a stride is left out
  conv1_ = register_module("conv1", torch::nn::Conv2d(conv_options(options.channels, 32, 3, 2)));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(32));
  conv2_ = register_module("conv2", torch::nn::Conv2d(conv_options(32, 64, 3)));
  bn2_ = register_module("bn2", torch::nn::BatchNorm2d(64));

  const auto add = [&](const std::vector<Layer>& layers, bool first_relu) {
    auto block = std::make_shared<XceptionBlock>(layers, first_relu, options);
    blocks_.push_back(register_module("block" + std::to_string(blocks_.size() + 1), block));
  };
  add({{64, 128}, {128, 128}, {128, 128, 2}}, false);
  add({{128, 256}, {256, 256}, {256, 256, 2}}, false);
  add({{256, 728}, {728, 728}, {728, 728, wide == 1 ? 2 : 1}}, true);
  while (blocks_.size() < 19) {
    add({{728, 728, 1, wide}, {728, 728, 1, wide}, {728, 728, 1, wide}}, true);
  }
  add({{728, 728, 1, wide}, {728, 1024, 1, wide}, {1024, 1024}}, true);

  std::int64_t in = 1024;
  for (const std::int64_t out : {1536, 1536, 2048}) {
    const std::string index = std::to_string(exit_convs_->size() + 3);
    const SeparableConv conv(in, out, 1, 2 * wide);
    const torch::nn::BatchNorm2d norm(out);
    exit_convs_->push_back(register_module("conv" + index, conv));
    exit_norms_->push_back(register_module("bn" + index, norm));
    in = out;
  }
  init_normal(*this, torch::kFanOut);
}

std::pair<torch::Tensor, torch::Tensor> XceptionImpl::forward(const torch::Tensor& input) {
  torch::Tensor output = norm_relu(bn1_, conv1_(input));
  output = norm_relu(bn2_, conv2_(output));
  output = run_block(checkpoint_, blocks_.front(), output).relu_();
  const torch::Tensor low_level = output;
  for (std::size_t i = 1; i < blocks_.size(); ++i) {
    output = run_block(checkpoint_, blocks_[i], output);
  }
  output = output.relu_();
  for (std::size_t i = 0; i < exit_convs_->size(); ++i) {
    output = exit_convs_[i]->as<SeparableConvImpl>()->forward(output);
    output = exit_norms_[i]->as<torch::nn::BatchNorm2dImpl>()->forward(output).relu_();
  }
  return {output, low_level};
}

}  // namespace lms::zoo
