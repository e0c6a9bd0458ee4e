#pragma once

#include <ATen/Context.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

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
  bool flash_3 = false;
  std::optional<std::int32_t> spared_processors;  ///< that products of matrices leave to others
  std::uint32_t environment = 0;                  ///< see float_environment()

  bool operator==(const Numerics&) const = default;

  /// Those of the calling thread. Nothing while PyTorch cannot tell them apart (its older and newer
  /// ways to set precisions have been mixed).
  static std::optional<Numerics> now();
};

/// How the calling thread's floating-point unit rounds, and whether it flushes what is too small to
/// be normal (torch.set_flush_denormal()); 0: to nearest, and not. A thread begins with that of the
/// thread that begins it, and so does each of those that help it with an operator.
std::uint32_t float_environment() noexcept;
void set_float_environment(std::uint32_t environment) noexcept;

/// To be called by threads that run operators. False from then on once any of them had an
/// environment other than 0: threads that help may have been begun with it, so that what operators
/// have computed on the CPU depends on who has helped.
bool plain_environments() noexcept;

/// While it lives, these hold: where they differ from what holds now, which is rare, they are set
/// for the time being, for other threads as well. Threads that help have the environment 0.
/// Throws Error where nobody can tell what holds now.
class NumericsScope {
 public:
  explicit NumericsScope(const Numerics& wanted);
  ~NumericsScope();
  NumericsScope(const NumericsScope&) = delete;
  NumericsScope& operator=(const NumericsScope&) = delete;

 private:
  void plain_helpers();

  std::optional<Numerics> before_;  ///< nothing: there is nothing to put back
  /// Environments of the threads that help this one, by their numbers; empty: left alone.
  std::vector<std::uint32_t> helpers_;
};

}  // namespace lms::torch
