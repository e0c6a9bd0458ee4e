#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "adapters/torch/norm_chain.h"

namespace lms::torch {

class DeviceManager;
struct OpInfo;

/// Which batch norms the kernels of NormChains compute again bit by bit. PyTorch's own they do. Of
/// cuDNN's, which has several kernels and says of none how it rounds, this is found out for each
/// kind of input by a trial (examine_norm()). Thread-safe.
class NormChecks {
 public:
  /// What cuDNN chooses a kernel by: sizes and strides of a float32 input.
  using Kind = std::vector<std::int64_t>;

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

/// A batch norm is about to run, with the last on the stack for arguments. If it is cuDNN's, and
/// nothing is known of its kind: runs the kernel on the same input with weights that tell one way
/// of rounding from another, and compares. Takes memory for one more result and waits for the
/// device. Where that fails, nothing becomes known.
void examine_norm(DeviceManager& manager, const OpInfo& info, const c10::SafeKernelFunction& kernel,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, const c10::Stack& stack);

}  // namespace lms::torch
