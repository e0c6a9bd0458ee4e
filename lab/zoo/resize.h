#pragma once

// Bilinear resizing, in the stock formulation or one that repeats its bits.

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <tuple>

namespace lms::zoo {

/// The out×in matrix of linear interpolation along one axis, float64, on the CPU. Each row holds at
/// most two weights, which sum to 1. With `align_corners` the outermost samples of both sides
/// coincide; else the outermost edges of their pixels do.
torch::Tensor interpolation_matrix(std::int64_t in, std::int64_t out, bool align_corners);

/// Resizes N×C×H×W. The backward pass of stock upsample_bilinear2d adds with atomics on CUDA, in an
/// order that changes from run to run. The deterministic formulation multiplies by the two axes'
/// matrices instead, in float32 at least, whatever autocast does; they are made once for each size,
/// device and type, and kept, unless there are very many. Not thread-safe.
class Bilinear {
 public:
  explicit Bilinear(bool deterministic) : deterministic_(deterministic) {}

  torch::Tensor operator()(const torch::Tensor& input, torch::IntArrayRef size,
                           bool align_corners = true);

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, bool, c10::DeviceType, c10::DeviceIndex,
                         torch::ScalarType>;
  torch::Tensor matrix(std::int64_t in, std::int64_t out, bool align_corners,
                       const torch::TensorOptions& like);

  bool deterministic_;
  std::map<Key, torch::Tensor> matrices_;
};

}  // namespace lms::zoo
