#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "adapters/torch/fused/norm_kernels.h"

namespace lms::torch {

/// Which batch norms the kernels of NormKernels compute again bit by bit. PyTorch's own they do. Of
/// cuDNN's, which has several kernels and says of none how it rounds, this is found out for each
/// kind of input by a trial (NormRule). Thread-safe.
class NormChecks {
 public:
  /// What cuDNN chooses a kernel by: sizes and strides of a float32 input.
  using Kind = std::vector<std::int64_t>;
  static Kind kind_of(at::IntArrayRef sizes, at::IntArrayRef strides);

  /// The operator that this is about.
  static constexpr const char* kOperator = "aten::cudnn_batch_norm";

  /// Of a call with saved statistics; kOther unless it is known.
  [[nodiscard]] Rounding rounding_of(const Call& call) const;
  /// Milliseconds that the kernel takes for a cuDNN batch norm of this input; negative: it is not
  /// known to compute it.
  [[nodiscard]] float ms_of(const at::Tensor& input) const;

  /// True if a trial is wanted: each kind has a few.
  [[nodiscard]] bool begin_trial(const Kind& kind);
  void end_trial(const Kind& kind, const NormTrial& trial);

 private:
  struct Known {
    NormTrial trial;
    int tries = 0;
  };
  [[nodiscard]] NormTrial find(const Kind& kind) const;

  mutable std::mutex mutex_;
  std::map<Kind, Known> known_;
};

}  // namespace lms::torch
