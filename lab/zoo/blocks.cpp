#include "lab/zoo/blocks.h"

namespace lms::zoo {

torch::nn::Conv2dOptions conv_options(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                      std::int64_t stride, std::int64_t dilation) {
  return torch::nn::Conv2dOptions(in, out, kernel)
      .stride(stride)
      .padding(dilation * (kernel - 1) / 2)
      .dilation(dilation)
      .bias(false);
}

torch::Tensor norm_relu(torch::nn::BatchNorm2d& norm, const torch::Tensor& input) {
  return norm(input).relu_();
}

SeparableConvImpl::SeparableConvImpl(std::int64_t in, std::int64_t out, std::int64_t stride,
                                     std::int64_t dilation)
    : depthwise_(conv_options(in, in, 3, stride, dilation).groups(in)),
      norm_(in),
      pointwise_(conv_options(in, out, 1)) {
  register_module("conv1", depthwise_);
  register_module("bn", norm_);
  register_module("pointwise", pointwise_);
}

torch::Tensor SeparableConvImpl::forward(const torch::Tensor& input) {
  return pointwise_(norm_(depthwise_(input)));
}

void init_normal(torch::nn::Module& module, torch::nn::init::FanModeType fan) {
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto* conv = child->as<torch::nn::Conv2dImpl>()) {
      torch::nn::init::kaiming_normal_(conv->weight, 0, fan, torch::kReLU);
      if (conv->bias.defined()) torch::nn::init::zeros_(conv->bias);
    }
  }
}

void check_input(const std::string& model, const torch::Tensor& input, std::int64_t channels,
                 std::int64_t sides) {
  const char* layout = sides == 2 ? "×H×W" : "×D×H×W";
  TORCH_CHECK_VALUE(input.dim() == sides + 2 && input.size(1) == channels && input.numel() > 0,
                    model, ": the input's shape is ", input.sizes(), ", but it must be N×",
                    channels, layout);
  TORCH_CHECK_VALUE(input.is_floating_point(), model, ": the input is ", input.scalar_type(),
                    ", but it must be floating point");
}

void check_shape(const std::string& model, const char* what, const torch::Tensor& tensor,
                 torch::IntArrayRef shape) {
  TORCH_CHECK_VALUE(tensor.sizes() == shape, model, ": the ", what, "'s shape is ", tensor.sizes(),
                    ", but the outputs ask for ", shape);
}

void check_pooled_batch(const std::string& model, const torch::Tensor& input, bool training) {
  TORCH_CHECK_VALUE(!training || input.size(0) > 1, model,
                    ": a batch of one image cannot train, since the branch that pools the image to "
                    "one pixel is normalised over the batch; use two or more, or eval()");
}

}  // namespace lms::zoo
