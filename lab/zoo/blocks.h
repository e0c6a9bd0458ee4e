#pragma once

// What several models are built from.

#include <torch/torch.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace lms::zoo {

/// Options of a square convolution without bias, padded so that stride 1 keeps the sides.
torch::nn::Conv2dOptions conv_options(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                      std::int64_t stride = 1, std::int64_t dilation = 1);

/// Batch norm, and ReLU over its result in place.
torch::Tensor norm_relu(torch::nn::BatchNorm2d& norm, const torch::Tensor& input);

/// Depthwise 3×3, batch norm, pointwise 1×1; no bias. Parameters: conv1, bn, pointwise.
class SeparableConvImpl : public torch::nn::Module {
 public:
  SeparableConvImpl(std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t dilation);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::nn::Conv2d depthwise_;
  torch::nn::BatchNorm2d norm_;
  torch::nn::Conv2d pointwise_;
};
TORCH_MODULE(SeparableConv);

/// Every convolution of `module` from a normal distribution for ReLU; biases zero.
void init_normal(torch::nn::Module& module, torch::nn::init::FanModeType fan);

/// Throws c10::ValueError unless `input` is floating point, N×`channels`×…, with `sides` sides.
void check_input(const std::string& model, const torch::Tensor& input, std::int64_t channels,
                 std::int64_t sides);

/// Throws c10::ValueError unless `tensor` has that shape; `what` names it.
void check_shape(const std::string& model, const char* what, const torch::Tensor& tensor,
                 torch::IntArrayRef shape);

/// Throws c10::ValueError if a training batch has one image, of which the pooled branch's batch
/// norm cannot take statistics.
void check_pooled_batch(const std::string& model, const torch::Tensor& input, bool training);

}  // namespace lms::zoo
