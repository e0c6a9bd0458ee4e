#pragma once

#include <torch/torch.h>

#include <optional>

namespace lms::zoo {

/// Values cut to whole numbers, modulo 256, as a conversion to bytes does on x86, on every device.
torch::Tensor bytes_modulo_256(const torch::Tensor& values);

/// The pictures, as bytes, of N×3×H×W normalised with ImageNet's mean and deviation.
torch::Tensor bytes_of_imagenet(const torch::Tensor& values);

/// Canny's edges of a batch, found on the host while the device computes on: the picture leaves
/// when this is made, and only finish() waits for its arrival.
class HostCanny {
 public:
  /// `images`: uint8, N×C×H×W, on any device.
  explicit HostCanny(const torch::Tensor& images);
  /// Edges of cv2.Canny(image, 10, 100): float32, N×1×H×W on the images' device, 0 or 255. To be
  /// called once.
  torch::Tensor finish();

 private:
  torch::Device device_;
  torch::Tensor host_;
  std::optional<c10::Event> arrived_;
};

}  // namespace lms::zoo
