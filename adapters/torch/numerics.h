#pragma once

#include <ATen/Context.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <optional>

namespace lms::torch {

/// Settings of the process, or thread, that change which bits a kernel computes.
struct Numerics {
  bool cudnn = true;
  bool cudnn_benchmark = false;
  bool cudnn_deterministic = false;
  bool mkldnn = true;
  bool mkldnn_deterministic = false;
  bool nnpack = true;
  bool deterministic = false;
  bool deterministic_warns = false;
  bool half_accumulation = false;
  bool half_reduction_on_cpu = false;
  at::CuBLASReductionOption half_reduction{};
  at::CuBLASReductionOption bfloat_reduction{};
  at::BlasBackend blas{};
  c10::ScalarType default_type = c10::ScalarType::Float;
  at::Float32MatmulPrecision matmul{};
  std::array<at::Float32Precision, 9> precisions{};
  int threads = 0;

  bool operator==(const Numerics&) const = default;

  /// Those of the calling thread. Nothing while PyTorch cannot tell them apart (its older and newer
  /// ways to set precisions have been mixed).
  static std::optional<Numerics> now();
};

/// While it lives, these hold: where they differ from what holds now, which is rare, they are set
/// for the time being, for other threads as well.
class NumericsScope {
 public:
  explicit NumericsScope(const Numerics& wanted);
  ~NumericsScope();
  NumericsScope(const NumericsScope&) = delete;
  NumericsScope& operator=(const NumericsScope&) = delete;

 private:
  std::optional<Numerics> before_;  ///< nothing: there is nothing to put back
};

}  // namespace lms::torch
