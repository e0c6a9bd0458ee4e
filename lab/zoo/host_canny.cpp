#include "lab/zoo/host_canny.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>

#include "lab/zoo/canny.h"

namespace lms::zoo {
namespace {

constexpr double kLow = 10;
constexpr double kHigh = 100;

torch::Tensor channelwise(std::initializer_list<double> values, const torch::Tensor& like) {
  return torch::tensor(at::ArrayRef<double>(values), torch::kFloat32)
      .view({-1, 1, 1})
      .to(like.device(), /*non_blocking=*/true);
}

/// Host memory that is read and written past PyTorch's operators, where who moves tensors' memory
/// would not see it: pinned for a device, else of the heap.
torch::Tensor plain_bytes(torch::IntArrayRef shape, bool pinned) {
  if (pinned) return torch::empty(shape, torch::TensorOptions(torch::kUInt8).pinned_memory(true));
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(shape));
  const std::shared_ptr<std::uint8_t[]> memory(new std::uint8_t[bytes]);
  return torch::from_blob(
      memory.get(), shape, [memory](void*) {}, torch::kUInt8);
}

}  // namespace

torch::Tensor bytes_modulo_256(const torch::Tensor& values) {
  return values.detach().to(torch::kInt32).bitwise_and(255).to(torch::kUInt8);
}

torch::Tensor bytes_of_imagenet(const torch::Tensor& values) {
  const torch::Tensor normalised = values.detach().to(torch::kFloat32);
  const torch::Tensor deviation = channelwise({0.229, 0.224, 0.225}, normalised);
  const torch::Tensor mean = channelwise({0.485, 0.456, 0.406}, normalised);
  return (normalised * deviation + mean).mul(255).round().clamp(0, 255).to(torch::kUInt8);
}

HostCanny::HostCanny(const torch::Tensor& images) : device_(images.device()) {
  host_ = plain_bytes(images.sizes(), !device_.is_cpu());
  host_.copy_(images, /*non_blocking=*/true);
  if (device_.is_cpu()) return;
  arrived_.emplace(device_.type());
  arrived_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

torch::Tensor HostCanny::finish() {
  if (arrived_) arrived_->synchronize();
  const std::int64_t channels = host_.size(1);
  const std::int64_t height = host_.size(2);
  const std::int64_t width = host_.size(3);
  torch::Tensor edges = plain_bytes({host_.size(0), 1, height, width}, !device_.is_cpu());
  const std::uint8_t* from = host_.const_data_ptr<std::uint8_t>();
  std::uint8_t* to = edges.mutable_data_ptr<std::uint8_t>();
  at::parallel_for(0, host_.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      canny({from + i * channels * height * width, channels, height, width}, kLow, kHigh,
            to + i * height * width);
    }
  });
  host_.reset();
  return edges.to(device_, /*non_blocking=*/true).to(torch::kFloat32);
}

}  // namespace lms::zoo
