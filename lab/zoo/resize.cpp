#include "lab/zoo/resize.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "lab/zoo/precision.h"

namespace lms::zoo {
namespace {

constexpr std::size_t kMostMatrices = 64;  // several times those of one pass

}  // namespace

torch::Tensor interpolation_matrix(std::int64_t in, std::int64_t out, bool align_corners) {
  // Memory of the heap: what is written past PyTorch's operators into a tensor of theirs would be
  // lost to who computes it again by them.
  const auto count = static_cast<std::size_t>(out * in);
  const std::shared_ptr<double[]> memory(new double[count]());
  torch::Tensor matrix = torch::from_blob(
      memory.get(), {out, in}, [memory](void*) {}, torch::kFloat64);
  auto weights = matrix.accessor<double, 2>();
  for (std::int64_t i = 0; i < out; ++i) {
    double source = 0;
    if (align_corners) {
      if (out > 1) source = static_cast<double>(i * (in - 1)) / static_cast<double>(out - 1);
    } else {
      const double scale = static_cast<double>(in) / static_cast<double>(out);
      source = std::max((static_cast<double>(i) + 0.5) * scale - 0.5, 0.0);
    }
    const auto first = std::min(static_cast<std::int64_t>(source), in - 1);
    const std::int64_t second = std::min(first + 1, in - 1);
    const double fraction = source - static_cast<double>(first);
    weights[i][first] += 1 - fraction;
    weights[i][second] += fraction;
  }
  return matrix;
}

torch::Tensor Bilinear::matrix(std::int64_t in, std::int64_t out, bool align_corners,
                               const torch::TensorOptions& like) {
  const torch::Device device = like.device();
  const torch::ScalarType type = c10::typeMetaToScalarType(like.dtype());
  const Key key{in, out, align_corners, device.type(), device.index(), type};
  if (const auto found = matrices_.find(key); found != matrices_.end()) return found->second;
  // Images of many sizes, each with matrices of its own, would fill the memory.
  if (matrices_.size() >= kMostMatrices) matrices_.clear();
  // It outlives this pass, which may be one of inference mode.
  const c10::InferenceMode outside(false);
  return matrices_[key] = interpolation_matrix(in, out, align_corners).to(device, type);
}

torch::Tensor Bilinear::operator()(const torch::Tensor& input, torch::IntArrayRef size,
                                   bool align_corners) {
  const std::int64_t height = input.size(2);
  const std::int64_t width = input.size(3);
  if (height == size[0] && width == size[1]) return input;
  if (height == 1 && width == 1) return input.expand({-1, -1, size[0], size[1]});
  if (!deterministic_) return at::upsample_bilinear2d(input, size, align_corners);

  const WithoutAutocast outside;
  torch::Tensor output = at_least_float(input);
  if (width != size[1]) {
    output = output.matmul(matrix(width, size[1], align_corners, output.options()).t());
  }
  if (height != size[0]) {
    output = matrix(height, size[0], align_corners, output.options()).matmul(output);
  }
  return output.to(input.scalar_type());
}

}  // namespace lms::zoo
