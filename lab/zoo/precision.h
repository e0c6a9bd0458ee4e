#pragma once

#include <torch/torch.h>

namespace lms::zoo {

/// Operators run in their arguments' own types, whatever autocast would do.
class WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

/// float16 and bfloat16 as float32; float64 stays.
inline torch::Tensor at_least_float(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kFloat64 ? tensor : tensor.to(torch::kFloat32);
}

}  // namespace lms::zoo
